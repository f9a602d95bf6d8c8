"""`p3 eval`: deterministic, the same for permuted orders, intervals that mean something, and errors that say what."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from helpers.trainer.permuted import permuted_checkpoint, permuted_contract
from helpers.trainer.small_runs import stepped

from trainer import cli
from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import COURSES, Episodes, evaluate, run_episodes, trial_task
from trainer.evaluation.statistics import mean_interval, share_interval, t_quantile
from trainer.evaluation.table import Row, markdown, numbers
from trainer.runs.checkpoint import load_checkpoint, save_checkpoint
from trainer.runs.policy import acting_in, load_candidate
from trainer.tasks import TASKS, LocomotionTask, make_task


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A walker's run of one iteration."""
    return stepped(tmp_path_factory.mktemp("runs") / "walker", iterations=1)


def copy_of(run, content, name="other"):
    """The run in another directory, with another checkpoint."""
    other = run.parent / name
    other.mkdir(exist_ok=True)
    (other / "config.json").write_bytes((run / "config.json").read_bytes())
    save_checkpoint(other / "model_1.pt", content)
    return other


def eval_numbers(tmp_path, *arguments):
    path = tmp_path / "numbers.json"
    assert cli.main(["eval", *map(str, arguments), "--json", str(path), "--num-threads", "1"]) == 0
    return json.loads(path.read_text())


SHORT = ("--episodes", "3", "--seconds", "0.6", "--strengths", "1")


def test_the_same_seed_gives_the_same_numbers(run, tmp_path):
    first = eval_numbers(tmp_path, run, *SHORT, "--latent", "mean", "policy")
    assert eval_numbers(tmp_path, run, *SHORT, "--latent", "mean", "policy") == first
    assert eval_numbers(tmp_path, run, *SHORT, "--seed", "7")["results"][0] != first["results"][0]
    mean, policy = first["results"]
    assert mean["reward"] != policy["reward"]
    assert list(mean["terrains"]) == list(COURSES)
    assert first["protocol"]["task"] == "walker-parkour"


def test_checkpoints_side_by_side_do_not_disturb_each_other(run, tmp_path, capsys):
    table, picture = tmp_path / "table.md", tmp_path / "bars.png"
    alone = eval_numbers(tmp_path, run, *SHORT)["results"]
    both = eval_numbers(
        tmp_path, run / "model_1.pt", run, *SHORT, "--difficulty", "0", "0.37", "--markdown", table, "--plot", picture
    )["results"]
    assert [(row["difficulty"], row["checkpoint"]) for row in both] == [
        (grade, "walker/model_1") for grade in (0, 0, 0.37, 0.37)
    ]
    assert both[0] == both[1] == alone[0]
    assert both[2] == both[3] != both[0]
    assert picture.read_bytes().startswith(b"\x89PNG")
    lines = table.read_text().splitlines()
    assert lines[0].startswith("walker-parkour: 3 episodes of 0.6 s on each of single_row_stones, stairs, gaps")
    assert lines[2:] == capsys.readouterr().out.splitlines()[-6:]
    assert len({line.count("|") for line in lines[2:]}) == 1


def rollout(run, steps=30):
    """Positions of 2 robots over some steps of the deployed policy, with noise and pushes."""
    task = LocomotionTask(TASKS["walker-parkour"])
    env = MujocoEnv(task, 2, seed=5, num_threads=1, difficulty=0.0)
    act = acting_in(load_candidate(run), task, "mean")
    states = []
    with torch.inference_mode():
        for _ in range(steps):
            env.step(act(env.get_observations()))
            states.append(torch.cat([env.state.root_pos, env.state.joint_pos], -1))
    return torch.stack(states)


@pytest.mark.parametrize("seed", [0, 1])
def test_permuted_orders_give_the_same_trajectory(run, seed):
    content = load_checkpoint(run / "model_1.pt")
    contract = load_candidate(run).contract
    # The encoder's normaliser reads frame by frame and its convolution a grid: these two stay as they are.
    theirs = dataclasses.replace(permuted_contract(contract, seed, layout="frame_major"), scan=contract.scan)
    other = copy_of(run, permuted_checkpoint(content, theirs), f"permuted{seed}")
    assert load_candidate(other).contract.joint_names != contract.joint_names
    ours = rollout(run)
    # The same sums in another order: rounding of float32, and what contacts make of it in 30 steps.
    assert torch.allclose(rollout(other), ours, atol=1e-4)
    assert (ours[-1] - ours[0]).abs().max() > 0.05
    # Without the matching the same weights do something else.
    content = load_checkpoint(other / "model_1.pt")
    content["contract"] = contract.to_dict()
    wrong = copy_of(run, content, f"wrong{seed}")
    assert not torch.allclose(rollout(wrong), ours, atol=1e-2)


def test_a_contract_that_does_not_fit_names_the_joint(run, capsys):
    content = load_checkpoint(run / "model_1.pt")
    content["contract"]["stiffness"] = (61.0, *content["contract"]["stiffness"][1:])
    other = copy_of(run, content, "stiff")
    assert cli.main(["eval", str(other), *SHORT]) == 2
    error = capsys.readouterr().err
    assert "does not fit walker-parkour: joint 'left_hip': stiffness 61 of the policy, 60 here" in error
    content["contract"] = {"robot": "walker"}
    assert cli.main(["eval", str(copy_of(run, content, "half")), *SHORT]) == 2
    assert "model_1.pt: contract: task is missing" in capsys.readouterr().err


def test_a_checkpoint_without_a_contract_takes_its_tasks(run, tmp_path, capsys):
    content = load_checkpoint(run / "model_1.pt")
    del content["contract"]
    other = copy_of(run, content, "old")
    assert eval_numbers(tmp_path, other, *SHORT)["results"][0]["checkpoint"] == "old/model_1"
    assert "old/model_1.pt: saved without a contract; takes that of walker-parkour" in capsys.readouterr().out


def test_files_that_are_not_checkpoints(run, tmp_path, capsys):
    whole = (run / "model_1.pt").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    for data, message in (
        (whole[: len(whole) // 2], "cut off"),
        (bytes(flipped), "is not as written"),
        (b"", "empty"),
        (b"hello", "not a torch file"),
    ):
        path = run.parent / "damaged.pt"
        path.write_bytes(data)
        assert cli.main(["eval", str(path), *SHORT]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "damaged.pt" in error
        assert "Traceback" not in error
    torch.save({"model_state_dict": {}}, run / "model_9.pt")
    assert cli.main(["eval", str(run / "model_9.pt")]) == 2
    assert "not a checkpoint of this trainer: one of rsl_rl's" in capsys.readouterr().err
    (run / "model_9.pt").unlink()


def test_another_robots_task(run, capsys):
    assert cli.main(["eval", str(run), "--task", "g1-flat"]) == 2
    error = capsys.readouterr().err
    assert "does not fit g1-flat: robot: the policy is for 'walker', this is 'g1'" in error
    assert "Traceback" not in error


def test_missing_runs(tmp_path, capsys):
    assert cli.main(["eval", str(tmp_path / "nothing")]) == 2
    assert "CHECKPOINT: no run directory, no file and no policy" in capsys.readouterr().err
    assert cli.main(["eval", str(tmp_path)]) == 2
    assert "CHECKPOINT: no config.json in" in capsys.readouterr().err


def test_common_random_numbers_whatever_the_policy_does():
    task = trial_task(TASKS["walker-parkour"], "gaps", 1.0, 2.0, pushes=True)
    drawn, ended = [], []
    for size in (0.0, 5.0):  # one that stands, one that falls at once
        env = MujocoEnv(task, 4, seed=3, num_threads=1, difficulty=0.0, auto_reset=False)
        ended.append(torch.stack([env.step(torch.full((4, 6), size))[2] for _ in range(30)]).any())
        drawn.append(env.generator.get_state())
    assert ended == [False, True]
    assert torch.equal(*drawn)


def test_robots_that_rest_change_nothing_that_is_measured(monkeypatch):
    """Robots whose episode is over are simulated no more: the others' episodes are the same, bit for bit."""

    def act(observations):
        return 0.5 * observations["proprio"][:, :1].expand(-1, 6).contiguous()

    simulated, found = {}, {}
    for rests in (True, False):
        env = MujocoEnv(make_task("walker-parkour"), 32, seed=3, difficulty=0.4, auto_reset=False, num_threads=1)
        rows, simulate = [], env.engine.simulate
        monkeypatch.setattr(env.engine, "simulate", lambda *a, s=simulate, r=rows: (r.append(len(a[0])), s(*a))[1])
        found[rests] = vars(run_episodes(act, env, 4.0, rests=rests))
        simulated[rests] = sum(rows)
    assert simulated[True] < 0.8 * simulated[False]
    assert found[True]["fell"].sum() > 0
    for name, value in found[False].items():
        same = torch.equal(found[True][name], value) if isinstance(value, torch.Tensor) else found[True][name] == value
        assert same, name


def test_a_robot_that_rests_wakes_when_it_begins_anew():
    env = MujocoEnv(make_task("walker-parkour"), 2, seed=0, auto_reset=False, num_threads=1)
    kept = env.state_dict()
    action = torch.full((2, 6), 0.5)
    env.rest(torch.tensor([1]))
    before = env.state.root_pos.clone()
    env.step(action)
    moved = (env.state.root_pos != before).any(-1)
    assert moved.tolist() == [True, False]
    env.load_state_dict(kept)
    env.step(action)
    assert (env.state.root_pos != before).any(-1).all()
    env.rest(torch.tensor([0, 1]))
    env.step(action)  # nobody is left
    env.begin_anew()
    before = env.state.root_pos.clone()
    env.step(action)
    assert (env.state.root_pos != before).any(-1).all()


def test_strength_scales_what_is_randomised_and_nothing_else():
    config = TASKS["g1-parkour"]
    none, one, more = (trial_task(config, "stairs", s, 20.0, pushes=True).config for s in (0.0, 1.0, 1.5))
    assert none.dynamics.friction == (0.65, 0.65)
    assert none.dynamics.added_mass == (0.0, 0.0)
    assert vars(none.noise) == dict.fromkeys(vars(none.noise), 0.0)
    assert np.allclose(one.dynamics.friction, config.dynamics.friction)
    assert one.dynamics.added_mass == config.dynamics.added_mass
    assert one.noise == config.noise
    assert np.allclose(more.dynamics.friction, (0.125, 1.175))
    assert more.noise.scan == 1.5 * config.noise.scan
    assert none.dynamics.push_velocity == config.dynamics.push_velocity
    assert trial_task(config, "stairs", 1.0, 20.0, pushes=False).config.dynamics.push_velocity == (0.0, 0.0)
    wild = trial_task(config, "stairs", 10.0, 20.0, pushes=True).config
    assert wild.dynamics.friction[0] == 0.05


def test_a_flat_policy_goes_on_courses_straight_ahead():
    config = trial_task(TASKS["g1-flat"], "stairs", 1.0, 20.0, pushes=True).config
    assert (config.terrains, config.keep_heading, config.standing_fraction) == (("stairs",), True, 0.0)
    assert config.command_y == (0.0, 0.0)
    assert config.rewards == TASKS["g1-flat"].rewards
    assert trial_task(TASKS["g1-parkour"], "plane", 1.0, 20.0, pushes=True).config.terrains == ()


def test_energy_is_the_sum_of_absolute_powers():
    task = trial_task(TASKS["walker-parkour"], "plane", 0.0, 1.0, pushes=False)
    env = MujocoEnv(task, 2, seed=3, num_threads=1, auto_reset=False)
    powers = []

    def act(observations):
        if env.episode.step[0]:
            powers.append((env.state.joint_torque * env.state.joint_vel).abs().sum(-1) * 0.02)
        return torch.full((2, 6), 0.1)

    episodes = run_episodes(act, env, 0.1)
    powers.append((env.state.joint_torque * env.state.joint_vel).abs().sum(-1) * 0.02)
    assert torch.allclose(episodes.energy, torch.stack(powers).sum(0))
    assert (episodes.energy > 0).all()


@pytest.mark.parametrize(("share", "succeeds"), [(0.4, False), (0.6, True)])
def test_on_the_plane_a_robot_that_stands_has_not_succeeded(share, succeeds):
    """Both outlast the time; asked for 10 m so far, they have gone a share of it along their commands."""
    env = MujocoEnv(
        trial_task(TASKS["walker-parkour"], "plane", 0.0, 0.1, pushes=False), 2, seed=3, num_threads=1, auto_reset=False
    )
    env.episode.commanded_distance[:], env.episode.followed_distance[:] = 10.0, 10.0 * share
    episodes = run_episodes(lambda observations: torch.zeros(2, 6), env, 0.1)
    assert not episodes.fell.any()
    assert episodes.success.tolist() == [succeeds] * 2
    assert episodes.followed_share.tolist() == pytest.approx([share] * 2, abs=0.02)


def test_who_arrives_has_succeeded_and_who_stands_has_not():
    task = trial_task(TASKS["walker-parkour"], "gaps", 0.0, 1.0, pushes=False)
    env = MujocoEnv(task, 2, seed=3, num_threads=1, difficulty=0.0, auto_reset=False)
    env.episode.spawn[0, 0] -= 100.0  # as if it had come from far away
    episodes = run_episodes(lambda observations: torch.zeros(2, 6), env, 0.2)
    assert episodes.arrived.tolist() == episodes.success.tolist() == [True, False]
    assert not episodes.fell.any()
    assert episodes.time.tolist() == pytest.approx([0.02, 0.2])
    assert episodes.lifetime.tolist() == pytest.approx([0.2, 0.2])


def test_arriving_is_credited_with_the_rest_of_the_time():
    arrived = torch.tensor([True, False])
    episodes = Episodes(
        time=torch.tensor([8.0, 8.0]),
        reward=torch.tensor([4.0, 4.0]),
        distance=torch.tensor([7.5, 3.0]),
        energy=torch.ones(2),
        torque=torch.tensor([10.0, 12.0]),
        foot_force=torch.tensor([300.0, 400.0]),
        fell=torch.tensor([False, True]),
        arrived=arrived,
        success=arrived,
        followed=torch.tensor([8.0, 3.0]),
        commanded=torch.tensor([8.0, 4.0]),
        seconds=20.0,
    )
    assert episodes.lifetime.tolist() == [20.0, 8.0]
    assert episodes.total_reward.tolist() == [10.0, 4.0]
    assert episodes.followed_share.tolist() == [1.0, 0.75]
    found = numbers(Row("run/model_1", "p3", "mean", 0, 1.0, {"stairs": episodes}))
    assert found["terrains"]["stairs"]["success"]["successes_of_trials"] == 1
    assert found["energy_per_metre"] == pytest.approx(2 / 10.5)
    assert (found["torque"]["value"], found["foot_force"]["value"], found["engine"]) == (11.0, 350.0, "mujoco")
    row = Row("run/model_1", "p3", "mean", 0, 1.0, {"stairs": episodes})
    assert "1 (50%, 9% to 91%)" in markdown([row])
    assert "engine" not in markdown([row])
    both = markdown([row, dataclasses.replace(row, engine="mjlab")]).splitlines()
    assert both[0].startswith("| checkpoint | method | engine | z |")
    assert [line.split(" | ")[2] for line in both[2:]] == ["mujoco", "mjlab"]
    assert (row.name, dataclasses.replace(row, engine="mjlab").name) == (
        "run/model_1, z mean",
        "run/model_1, z mean, mjlab",
    )


def test_evaluate_keeps_its_signature_for_an_environment_that_resets():
    env = MujocoEnv(LocomotionTask(TASKS["walker-parkour"]), 4, seed=3, num_threads=1, difficulty=0.0)
    result = evaluate(lambda observations: torch.full((4, 6), 5.0), env, 2.0)
    assert result.episodes == 4
    assert result.survival == 0.0
    assert 0 < result.lifetime < 2.0
    assert result.energy > 0
    assert result.success == 0.0


@pytest.mark.parametrize(("freedom", "expected"), [(1, 12.706), (2, 4.3027), (3, 3.1824), (9, 2.2622), (99, 1.9842)])
def test_t_quantiles_of_the_tables(freedom, expected):
    assert t_quantile(0.975, freedom) == pytest.approx(expected, rel=2e-3)


def test_intervals():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    interval = mean_interval([values])
    assert interval.value == 3.0
    assert interval.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), rel=1e-3)
    # Strata: their distance from each other is no uncertainty of the mean of their means.
    two = mean_interval([values, values + 100.0])
    assert two.value == 53.0
    assert two.half_width < interval.half_width
    assert mean_interval([np.array([1.0])]).high == math.inf
    share = share_interval(8, 10)  # Wilson's own, from the formula worked by hand
    assert (share.low, share.high) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert share_interval(0, 10).low == 0.0
    assert share_interval(10, 10).high == 1.0
    for wrong in ((-1, 10), (11, 10), (0, 0)):
        with pytest.raises(ValueError, match="successes: expected"):
            share_interval(*wrong)
