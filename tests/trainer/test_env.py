"""The environment: episodes begin, end and are told apart; a saved one continues exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from trainer.env import LocomotionEnv
from trainer.tasks import TASKS, LocomotionTask, make_task
from trainer.tasks.running import make_tiles


def walker(num_envs=6, **options):
    return LocomotionEnv(make_task("walker-parkour"), num_envs, num_threads=0, **options)


def test_observations_after_a_reset_are_new_and_the_final_ones_are_kept():
    env = walker()
    env.episode_length_buf[2] = env.max_episode_length - 1
    first = env.get_observations()["proprio"].clone()
    observations, _, dones, extras = env.step(torch.full((6, 6), 0.3))
    assert dones.tolist() == [False, False, True, False, False, False]
    assert extras["time_outs"].tolist() == dones.tolist()
    final = extras["final_observations"]
    others = [0, 1, 3, 4, 5]
    for name in ("proprio", "history", "critic", "velocity"):
        assert torch.equal(final[name][others], observations[name][others])
        assert not torch.equal(final[name][2], observations[name][2])
    assert not torch.equal(first, observations["proprio"])
    # the action is the last part of the proprioception: 0.3 before the reset, 0 after it
    assert final["proprio"][2, -6:].tolist() == pytest.approx([0.3] * 6)
    assert observations["proprio"][2, -6:].tolist() == [0.0] * 6
    assert env.episode_length_buf.tolist() == [1, 1, 0, 1, 1, 1]
    assert extras["episodes"]["length"].tolist() == [env.max_episode_length]


def test_history_shifts_and_begins_with_the_first_observation():
    env = walker()
    size = env.task.proprio_size
    start = env.get_observations()["history"].view(6, 5, size)
    assert torch.equal(start, start[:, :1].expand(6, 5, size))
    observations, _, dones, _ = env.step(torch.zeros(6, 6))
    after = observations["history"].view(6, 5, size)
    alive = ~dones
    assert torch.equal(after[alive][:, :4], start[alive][:, 1:])
    assert torch.equal(after[:, -1], observations["proprio"])
    assert not torch.equal(after[alive][:, -1], after[alive][:, -2])


def test_falls_terminate_and_are_not_time_outs():
    env = walker(12)
    fell = 0
    for _ in range(150):
        _, _, dones, extras = env.step(torch.zeros(12, 6))
        fell += int((dones & ~extras["time_outs"]).sum())
        if "episodes" in extras:
            assert torch.equal(extras["episodes"]["fell"].bool(), ~extras["time_outs"][dones])
    assert fell > 0


def test_a_fall_is_penalised_once():
    config = replace(TASKS["walker-parkour"], fall_penalty=50.0)
    env = LocomotionEnv(LocomotionTask(config), 12, num_threads=0)
    falls = 0
    for _ in range(150):
        _, reward, dones, extras = env.step(torch.zeros(12, 6))
        assert torch.equal(reward < -25.0, dones & ~extras["time_outs"])
        falls += int(dones.sum())
    assert falls > 0


def test_episode_reward_is_the_sum_of_its_steps():
    env = walker(1)
    total = 0.0
    for _ in range(400):
        _, reward, done, extras = env.step(torch.zeros(1, 6))
        total += reward.item()
        if done:
            break
    assert extras["episodes"]["reward"].item() == pytest.approx(total, rel=1e-4)


def test_a_traversed_course_promotes_and_a_fall_demotes():
    env = walker(4)
    assert env.curriculum is not None
    env.curriculum.level[:] = 2
    env.step(torch.zeros(4, 6))
    env.episode.spawn[0, 0] -= 100.0  # as if it had come from far away
    env.episode.commanded_distance[:] = 0.0
    env.engine._state[1, 1 + 2] = 1.5  # pitched over
    _, _, dones, extras = env.step(torch.zeros(4, 6))
    assert dones.tolist() == [True, True, False, False]
    assert extras["time_outs"].tolist() == [True, False, False, False]
    assert env.curriculum.level.tolist() == [3, 1, 2, 2]
    env.curriculum.level[3] = 4
    assert env.step(torch.zeros(4, 6))[3]["log"]["curriculum/level"] == 2.5  # for any runner, rsl_rl's included
    tiles_of = [(int(t) // env.task.config.tile_variants) % env.task.config.num_levels for t in env.engine.tile_of]
    assert tiles_of[:2] == [3, 1]


def test_a_robot_that_stood_still_all_the_time_is_demoted():
    env = walker(2)
    assert env.curriculum is not None
    env.curriculum.level[:] = 2
    env.episode_length_buf = torch.full((2,), env.max_episode_length - 1)
    env.episode.commanded_distance[:] = torch.tensor([8.0, -1.0])
    env.step(torch.zeros(2, 6))
    assert env.curriculum.level.tolist() == [1, 2]


def test_fixed_level_ignores_the_curriculum():
    env = walker(6, level=4)
    config = env.task.config
    for _ in range(3):
        env.episode_length_buf = torch.full((6,), env.max_episode_length)
        env.step(torch.zeros(6, 6))
        assert {(int(t) // config.tile_variants) % config.num_levels for t in env.engine.tile_of} == {4}


def test_tiles_are_types_by_levels_by_variants():
    task = make_task("g1-parkour")
    tiles = make_tiles(task, seed=0)
    assert len(tiles) == 7 * 6 * 2
    assert [tile.name for tile in tiles[:: 6 * 2]] == list(task.config.terrains)
    assert [tile.difficulty for tile in tiles[:12:2]] == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])


def test_pushes_come_and_commands_change():
    config = TASKS["g1-flat"]
    quick = replace(config, dynamics=replace(config.dynamics, push_interval=(0.04, 0.04)), command_seconds=(0.1, 0.1))
    env = LocomotionEnv(LocomotionTask(quick), 3, num_threads=0)
    pushed = []
    original = env.engine.push
    env.engine.push = lambda ids, velocity: (pushed.append((ids, velocity)), original(ids, velocity))
    before = env.episode.command.clone()
    for _ in range(8):
        env.step(torch.zeros(3, 29))
    assert len(pushed) == 4
    assert all(velocity.abs().max() <= 0.5 for _, velocity in pushed)
    assert not torch.equal(before, env.episode.command)


def test_a_broken_simulation_costs_its_environment_alone():
    env, twin = walker(4), walker(4)
    for each in (env, twin):
        each.step(torch.zeros(4, 6))
    env.engine._state[1, 3] = float("nan")
    observations, reward, dones, extras = env.step(torch.zeros(4, 6))
    expected, expected_reward, _, _ = twin.step(torch.zeros(4, 6))
    assert extras["broken"].tolist() == [False, True, False, False]
    assert dones[1]
    assert not extras["time_outs"][1]
    assert reward[1] == 0
    rest = [0, 2, 3]
    assert torch.equal(reward[rest], expected_reward[rest])
    assert torch.equal(observations["critic"][rest], expected["critic"][rest])
    for value in (*observations.values(), *extras["final_observations"].values()):
        assert value.isfinite().all()


@pytest.mark.parametrize("name", ["walker-parkour", "g1-flat", "g1-parkour"])
def test_a_saved_environment_continues_exactly(name):
    task = make_task(name)
    env = LocomotionEnv(task, 4, seed=3, num_threads=0)
    generator = torch.Generator().manual_seed(0)
    actions = 0.5 * torch.randn(60, 4, env.num_actions, generator=generator)
    for action in actions[:30]:
        env.step(action)
    other = LocomotionEnv(task, 4, seed=3, num_threads=0)
    other.load_state_dict(env.state_dict())
    resets = 0
    for action in actions[30:]:
        ours, our_reward, our_dones, _ = env.step(action)
        theirs, their_reward, their_dones, _ = other.step(action)
        assert torch.equal(our_reward, their_reward)
        assert torch.equal(our_dones, their_dones)
        resets += int(our_dones.sum())
        for group in ours.keys():  # noqa: SIM118
            assert torch.equal(ours[group], theirs[group]), group
    assert name == "g1-parkour" or resets > 0


def test_one_seed_one_run_and_another_seed_another():
    runs = []
    for seed in (5, 5, 6):
        env = walker(3, seed=seed)
        for _ in range(10):
            observations, *_ = env.step(torch.zeros(3, 6))
        runs.append(observations["critic"])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_wrong_level_is_named():
    with pytest.raises(ValueError, match="level: expected 0 to 5, got 6"):
        walker(level=6)
