"""mjlab's engine against native MuJoCo: the same task, model and random numbers, so that everything is compared.

On a CPU, where Warp runs too; its kernels are compiled on first use, which is most of the time that these tests take.
mjlab is imported where it is used: every process of the tests reads this file, and one of them runs it.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import mujoco
import pytest
import torch

from trainer.algorithms.presets import check_engine
from trainer.engines.mujoco.env import MujocoEnv
from trainer.runs.config_file import load_config
from trainer.tasks import TASKS, make_task
from trainer.tasks.locomotion import OBSERVATION_GROUPS as GROUPS

WITHIN = 1e-4
"""Largest difference over 1 + |value|: float32 in Warp against float64 in native MuJoCo."""


def make_pair(name, num_envs, **options):
    from trainer.engines.mjlab.env import MjlabEnv

    task = make_task(name)
    native = MujocoEnv(task, num_envs, seed=3, num_threads=1, **options)
    return SimpleNamespace(task=task, native=native, mjlab=MjlabEnv(task, num_envs, seed=3, **options))


@pytest.fixture(scope="module")
def parkour():
    pair = make_pair("g1-parkour", 40)
    yield pair
    pair.mjlab.close()


@pytest.fixture(scope="module")
def flat():
    pair = make_pair("g1-flat", 4)
    yield pair
    pair.mjlab.close()


def errors(ours, theirs):
    """The largest of |difference| / (1 + |value|)."""
    if ours.dtype == torch.bool:
        return float((ours != theirs).any())
    assert ours.isfinite().all()
    return ((ours - theirs).abs() / (1 + theirs.abs())).max().item()


def test_episodes_begin_alike(parkour, flat):
    for pair in (parkour, flat):
        theirs = pair.native.get_observations()
        ours = pair.mjlab.get_observations()
        for group in GROUPS:
            assert errors(ours[group], theirs[group]) < WITHIN, group
        assert torch.equal(pair.mjlab.running.tile_of, pair.native.running.tile_of)
    assert len(set(parkour.native.running.tile_of.tolist())) > 5


def random_states(pair, generator):
    """qpos [E, nq] in the tiles' frames, around where the robots began and near the ground, and qvel [E, nv]."""

    def uniform(*shape):
        return 2 * torch.rand(*shape, generator=generator) - 1

    count, running = pair.native.num_envs, pair.native.running
    position = running.episode.spawn + uniform(count, 2) * torch.tensor([3.0, 1.0])
    ground = pair.native.engine.ground.height(running.tile_of, position[:, None]).clamp(min=-0.3)
    tilt = torch.cat([torch.ones(count, 1), 0.25 * uniform(count, 2), uniform(count, 1)], -1)
    joints = pair.task.default_pos + 0.25 * uniform(count, 29)
    height = 0.72 + 0.12 * uniform(count, 1) + ground
    qpos = torch.cat([position, height, tilt / tilt.norm(dim=-1, keepdim=True), joints], -1)
    return qpos, torch.cat([uniform(count, 3), 2 * uniform(count, 3), 4 * uniform(count, 29)], -1)


def native_state(pair, qpos, qvel, targets):
    """What native MuJoCo's sensors say in these states, under these controls, and where nothing but feet touches."""
    engine = pair.native.engine
    only_feet = torch.zeros(pair.native.num_envs, dtype=torch.bool)
    for env in range(pair.native.num_envs):
        model = engine.model_of(env)
        data = mujoco.MjData(model)
        data.qpos[:], data.qvel[:] = qpos[env].numpy(), qvel[env].numpy()
        data.ctrl[engine._reader.control] = targets[env].numpy()
        mujoco.mj_forward(model, data)
        engine._state[env, 1:] = torch.cat([qpos[env], qvel[env]]).numpy()
        engine._sensors[env] = data.sensordata
        touching = [f"{model.geom(a).name} {model.geom(b).name}" for a, b in data.contact.geom]
        only_feet[env] = all("_foot" in names for names in touching)
    return engine._read(slice(None)), only_feet


def mjlab_outcome(pair, qpos, qvel):
    """What mjlab's managers make of these states: reward terms by name, dones by term, observations by group."""
    env, walk = pair.mjlab.simulation, pair.mjlab._walk
    data = env.sim.data
    data.qpos[:] = qpos
    data.qpos[:, :3] = qpos[:, :3] + walk.robots._middles[walk.running.tile_of]
    data.qvel[:], data.qacc_warmstart[:] = qvel, 0.0
    env.scene.write_data_to_sim()
    env.sim.forward()
    env.episode_length_buf += 1
    env.termination_manager.compute()
    env.reward_manager.compute(dt=env.step_dt)
    rewards = dict(zip(env.reward_manager.active_terms, env.reward_manager._step_reward.T.clone(), strict=True))
    dones = {name: env.termination_manager.get_term(name).clone() for name in env.termination_manager.active_terms}
    return rewards, dones, env.observation_manager.compute(update_history=True)


@pytest.mark.parametrize("name", ["parkour", "flat"])
def test_terms_agree_on_random_states(request, name):
    """1,000 states on the tiles, 100 on the plane: every field, group, reward term and done, through the managers.

    Contact forces come from a solver that stops earlier in float32, and Warp turns the friction pyramid of a capsule
    that stands on a plane, such as a shin, another way. They are compared where feet alone touch; the terms are then
    compared under the same forces, because a foot can be at the threshold of a contact.
    """
    pair = request.getfixturevalue(name)
    native, mjlab = pair.native.running, pair.mjlab.running
    generator = torch.Generator().manual_seed(0)
    worst, forces, ended, contacts, crossed = {}, [], 0, 0, 0

    def note(what, ours, theirs):
        worst[what] = max(worst.get(what, 0.0), errors(ours, theirs))

    for _ in range(25):
        qpos, qvel = random_states(pair, generator)
        action = 2 * torch.randn(pair.native.num_envs, 29, generator=generator)
        length = torch.randint(990, 1000, (pair.native.num_envs,), generator=generator)
        pair.native.episode_length_buf, pair.mjlab.episode_length_buf = length, length
        targets = native.act(action)
        native.draw_pushes()
        pair.mjlab._walk.act(action)
        state, only_feet = native_state(pair, qpos, qvel, targets)
        rewards, dones, observations = mjlab_outcome(pair, qpos, qvel)

        for field in dataclasses.fields(state):
            if field.name not in ("foot_force", "scan"):
                note(f"state {field.name}", getattr(mjlab.state, field.name), getattr(state, field.name))
        difference = (mjlab.state.foot_force - state.foot_force).norm(dim=-1) / (1 + state.foot_force.norm(dim=-1))
        forces.append(difference[only_feet & state.foot_contact.any(-1)])
        # Tens of metres from the origin a position is rounded to some 1e-5: a scan point on the border of two cells of
        # the height map may be in either.
        crossed += int(((mjlab.state.scan - state.scan).abs() > WITHIN).sum())
        state = dataclasses.replace(state, foot_force=mjlab.state.foot_force, scan=mjlab.state.scan)
        outcome = native.after_physics(state, torch.zeros(pair.native.num_envs, dtype=torch.bool))
        for row, term in enumerate(pair.task.config.rewards):
            note(f"reward {term}", rewards[term], outcome.terms[row])
        for group in GROUPS:
            note(f"observations {group}", observations[group], outcome.observations[group])
        note("fell", dones["fell"], outcome.terminated)
        timed_out = torch.stack([dones[term] for term in dones if term != "fell"]).any(0)
        note("timed out", timed_out, outcome.timed_out)
        note("reward", pair.mjlab.simulation.reward_manager._reward_buf, outcome.reward)
        ended, contacts = ended + int(outcome.done.sum()), contacts + int(state.foot_contact.sum())
    assert {what: error for what, error in worst.items() if error >= WITHIN} == {}
    force = torch.cat(forces)
    assert len(force) > 20
    assert force.max() < 2e-2  # friction included, of which a solver that stops earlier says least
    assert force.median() < 1e-5
    assert ended > 10
    assert contacts > 50
    assert crossed < 1e-4 * 25 * state.scan.numel()
    assert len(worst) == 13 + len(pair.task.config.rewards) + len(GROUPS) + 3


def test_control_steps_agree():
    """Both engines step on their own, a new episode among it; contacts let them drift apart slowly."""
    generator = torch.Generator().manual_seed(1)
    pair = make_pair("g1-flat", 4)
    for env in (pair.native, pair.mjlab):
        env.episode_length_buf = torch.tensor([995, 0, 0, 0])
    resets = 0
    for _ in range(20):
        action = 0.5 * torch.randn(4, 29, generator=generator)
        theirs, their_reward, their_done, their_extras = pair.native.step(action)
        ours, reward, done, extras = pair.mjlab.step(action)
        assert torch.equal(done, their_done)
        assert torch.equal(extras["time_outs"], their_extras["time_outs"])
        assert errors(reward, their_reward) < 2e-2
        for group in GROUPS:
            assert errors(ours[group], theirs[group]) < 2e-2, group
            assert errors(extras["final_observations"][group], their_extras["final_observations"][group]) < 2e-2
        assert extras["log"].keys() == their_extras["log"].keys()
        if done.any():
            assert errors(extras["episodes"]["reward"], their_extras["episodes"]["reward"]) < 2e-2
        resets += int(done.sum())
    assert resets > 0
    pair.mjlab.close()


def test_a_saved_environment_continues_exactly(flat):
    env = flat.mjlab
    env.simulation.reset()
    actions = 0.3 * torch.randn(6, 4, 29, generator=torch.Generator().manual_seed(2))
    for action in actions[:3]:
        env.step(action)
    saved = env.state_dict()
    first = [env.step(action) for action in actions[3:]]
    env.load_state_dict(saved)
    for action, (observations, reward, done, _) in zip(actions[3:], first, strict=True):
        again, again_reward, again_done, _ = env.step(action)
        assert torch.equal(reward, again_reward)
        assert torch.equal(done, again_done)
        for group in GROUPS:
            assert torch.equal(observations[group], again[group]), group
    with pytest.raises(ValueError, match="expected the state of 4 environments"):
        env.load_state_dict(flat.native.state_dict())


def test_a_broken_simulation_costs_its_environment_alone(flat):
    env = flat.mjlab
    env.simulation.reset()
    env.simulation.sim.data.qpos[1, 9] = float("nan")
    observations, reward, done, extras = env.step(torch.zeros(4, 29))
    assert extras["broken"].tolist() == [False, True, False, False]
    assert done[1]
    assert not extras["time_outs"][1]
    assert reward[1] == 0
    for value in (*observations.values(), *extras["final_observations"].values(), reward):
        assert value.isfinite().all()
    observations, _, _, extras = env.step(torch.zeros(4, 29))
    assert not extras["broken"].any()


def test_levels_follow_the_task_and_survive_a_checkpoint_of_mjlabs_runner(parkour, tmp_path):
    from mjlab.rl import RslRlVecEnvWrapper
    from mjlab.tasks.registry import load_rl_cfg

    from trainer.engines.mjlab.runner import P3Runner

    env, curriculum = parkour.mjlab, parkour.mjlab.curriculum
    env.simulation.reset()
    curriculum.position[:] = 2
    env.episode.spawn[0, 0] -= 100.0  # as if it had come from far away
    env.episode.commanded_distance[:] = 0.0
    env.simulation.sim.data.qpos[1, 3:7] = torch.tensor([0.5, 0.866, 0.0, 0.0])
    _, _, done, extras = env.step(torch.zeros(40, 29))
    assert (done[0], done[1], done[2]) == (True, True, False)
    assert (extras["time_outs"][0], extras["time_outs"][1]) == (True, False)
    assert curriculum.position[:3].tolist() == [3, 1, 2]
    assert (env.running.tile_of[:2] % 11).tolist() == [3, 1]

    settings = dataclasses.asdict(load_rl_cfg("P3-Parkour-Unitree-G1"))
    settings |= {"num_steps_per_env": 1, "upload_model": False}
    wrapped = RslRlVecEnvWrapper(env.simulation)
    assert settings["algorithm"]["mirror_share"] == 0.0
    settings["algorithm"]["mirror_share"] = 1.0
    runner = P3Runner(wrapped, settings, str(tmp_path))
    runner.learn(1)
    frames = runner.alg.actor.proprio_normalizer
    assert frames.count == 2 * 40  # the robots, and their images
    torch.testing.assert_close(env.symmetry.group("proprio", frames.mean), frames.mean, rtol=1e-4, atol=1e-5)
    assert load_config(tmp_path / "config.json").ppo.mirror_share == 1.0
    levels, path = curriculum.position.clone(), tmp_path / "model_0.pt"
    assert path.exists()
    curriculum.position[:] = 5
    again = P3Runner(wrapped, settings, None)
    again.load(str(path))
    assert torch.equal(curriculum.position, levels)
    assert again.current_learning_iteration == again.alg.iteration == 1
    for ours, theirs in zip(again.alg.actor.parameters(), runner.alg.actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    settings["actor"]["hidden_dims"] = (16, 16)
    with pytest.raises(ValueError, match="networks of other sizes"):
        P3Runner(wrapped, settings, None).load(str(path))


def test_mjlab_knows_the_tasks():
    from mjlab.tasks.registry import list_tasks, load_env_cfg, load_rl_cfg

    from trainer.engines.mjlab.tasks import TASK_IDS

    assert set(TASK_IDS) == {"P3-Flat-Unitree-G1", "P3-Parkour-Unitree-G1"}
    assert set(TASK_IDS) <= set(list_tasks())
    for task_id, name in TASK_IDS.items():
        cfg = load_env_cfg(task_id)
        assert cfg.scene.num_envs == 4096
        assert cfg.commands["walk"].task == TASKS[name]
        assert {k: v.weight for k, v in cfg.rewards.items() if k != "fall"} == TASKS[name].rewards
        assert load_rl_cfg(task_id).algorithm.class_name == "trainer.algorithms:P3PPO"
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8")
    (module,) = re.findall(r'\[project.entry-points."mjlab.tasks"\]\np3 = "(.*)"', project)
    assert module == "trainer.engines.mjlab.tasks"


@pytest.mark.parametrize(
    ("engine", "device", "message"),
    [
        ("mujoco", "cuda:0", "--device: native MuJoCo runs on the CPU"),
        ("mjlab", "cpu", "--engine: mjlab runs the G1's tasks, not walker-parkour"),
        ("mjlab", "gpu", "--device: expected cpu, cuda:0, ..., got 'gpu'"),
    ],
)
def test_what_cannot_be_is_named(engine, device, message):
    with pytest.raises(ValueError, match=message):
        check_engine(engine, device, TASKS["walker-parkour"])
