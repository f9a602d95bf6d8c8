"""Episodes on PhysX: the same beginnings as in native MuJoCo, falls, contacts, time-outs, and going on from a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from trainer.engines.registry import make_env
from trainer.evaluation.episodes import PLANE, trial_task
from trainer.tasks import make_task
from trainer.tasks.robots import G1

Measured = Callable[..., None]
ROBOTS = 8


@pytest.mark.parametrize("strength", [0.0, 1.0])
@pytest.mark.parametrize("terrain", [PLANE, "stairs"])
def test_episodes_begin_as_in_native_mujoco(terrain: str, strength: float, measured: Measured) -> None:
    """For one seed, robots, masses, commands, tiles and observations are the same; so is half a second at action 0."""
    config = make_task("g1-flat" if terrain == PLANE else "g1-parkour").config
    task, difficulty = (
        trial_task(config, terrain, strength, 20.0, pushes=True).config,
        None if terrain == PLANE else 0.4,
    )
    native = make_env("mujoco", task, ROBOTS, seed=11, difficulty=difficulty, auto_reset=False, num_threads=1)
    env = make_env("physx", task, ROBOTS, seed=11, difficulty=difficulty, auto_reset=False)
    assert (env.running.tile_of == native.running.tile_of).all()
    for name in ("root_pos", "root_quat", "joint_pos", "foot_pos", "dynamics"):
        torch.testing.assert_close(
            getattr(env.state, name), getattr(native.state, name), atol=1e-5, rtol=1e-4, msg=name
        )
    torch.testing.assert_close(env.episode.command, native.episode.command)
    torch.testing.assert_close(
        env.get_observations()["proprio"], native.get_observations()["proprio"], atol=1e-4, rtol=0
    )
    for one in (env, native):  # told to stand: by the clock they would step in place, and land differently
        one.episode.command.zero_()
        one.episode.clock.zero_()
    apart = []
    with torch.inference_mode():
        for _ in range(25):
            for one in (env, native):
                one.step(torch.zeros(ROBOTS, 29))
            apart.append((env.state.root_pos - native.state.root_pos).norm(dim=-1))
    # Contacts differ: MuJoCo's are soft, PhysX's hard. With the 8 iterations of NVIDIA's asset these are more: the legs
    # give way.
    assert torch.stack(apart).median() < 0.0025
    measured(median_apart_m=torch.stack(apart).median(), largest_apart_m=torch.stack(apart).max(), seconds=0.5)


def test_random_actions_fall_time_out_and_stay_finite(measured: Measured) -> None:
    """Under 300 control steps of random actions robots fall, time out and begin anew; all that is seen is finite."""
    task = replace(make_task("g1-flat").config, episode_seconds=0.8)
    env = make_env("physx", task, ROBOTS, seed=1)
    generator = torch.Generator().manual_seed(0)
    fell = timed_out = broken = touched = begun = airborne = 0
    with torch.inference_mode():
        for _ in range(300):
            observations, reward, done, extras = env.step(torch.randn(ROBOTS, 29, generator=generator))
            assert all(torch.isfinite(group).all() for group in observations.values())
            assert torch.isfinite(reward).all()
            assert all(torch.isfinite(group).all() for group in extras["final_observations"].values())
            timed_out += int(extras["time_outs"].sum())
            fell += int((done & ~extras["time_outs"]).sum())
            broken += int(extras["broken"].sum())
            touched += int(env.state.foot_contact.sum())
            airborne += int((~env.state.foot_contact).sum())
            if done.any():  # where an episode has ended, the next one has begun
                state = env.state.select(done.nonzero().squeeze(-1))
                begun += len(state.root_pos)
                assert (state.root_pos[:, 2] > G1.standing_height).all()
                assert (state.root_pos[:, :2].abs() < 0.11).all()
                assert not state.body_contact.any()
    assert min(fell, timed_out, touched, airborne) > 10
    assert begun == fell + timed_out
    assert broken == 0
    measured(control_steps=300, robots=ROBOTS, fell=fell, timed_out=timed_out, feet_on_the_ground=touched)


def test_a_fall_is_seen_by_its_contact(measured: Measured) -> None:
    """A robot that lies down is told to have fallen, and the trunk's contact is told where the trunk touches."""
    task = trial_task(make_task("g1-flat").config, PLANE, 0.0, 20.0, pushes=False)
    env = make_env("physx", task.config, ROBOTS, seed=4, auto_reset=False)
    ended, contact = torch.zeros(ROBOTS, dtype=torch.bool), torch.zeros(ROBOTS, dtype=torch.bool)
    with torch.inference_mode():
        for _ in range(150):
            _, _, done, extras = env.step(torch.zeros(ROBOTS, 29))
            ended |= done & ~extras["time_outs"]
            contact |= env.state.body_contact
    low = env.state.root_pos[:, 2] < 0.3
    assert low.float().mean() > 0.7  # action 0 does not balance
    assert ended[low].all()
    assert contact[low].any()
    measured(lying=int(low.sum()), fell=int(ended.sum()), trunk_touched=int(contact.sum()))


def test_an_environment_goes_on_from_its_state(measured: Measured) -> None:
    """From a saved state the same actions lead to the same motion: PhysX's contacts alone are not in it."""
    env = make_env("physx", trial_task(make_task("g1-flat").config, PLANE, 0.0, 20.0, pushes=False).config, 4, seed=2)
    generator = torch.Generator().manual_seed(3)
    actions = 0.3 * torch.randn(10, 4, 29, generator=generator)
    with torch.inference_mode():
        for action in actions:
            env.step(action)
        saved = env.state_dict()
        paths = []
        for _ in range(2):
            env.load_state_dict(saved)
            path = []
            for action in actions:
                env.step(action)
                path.append(env.state.root_pos.clone())
            paths.append(torch.stack(path))
    apart = (paths[0] - paths[1]).norm(dim=-1).max().item()
    assert apart < 2e-3
    measured(largest_apart_m=apart, seconds=0.2)
