"""The environment: episodes begin, end and are told apart; a saved one continues exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from trainer.engines.mujoco.env import MujocoEnv
from trainer.tasks import TASKS, LocomotionTask, make_task
from trainer.tasks.terrains import PIT_FLOOR
from trainer.tasks.tiles import TileGrid


def walker(num_envs=6, **options):
    return MujocoEnv(make_task("walker-parkour"), num_envs, num_threads=0, **options)


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
    # before the clock comes the action: 0.3 before the reset, 0 after it
    assert final["proprio"][2, -8:-2].tolist() == pytest.approx([0.3] * 6)
    assert observations["proprio"][2, -8:-2].tolist() == [0.0] * 6
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
    env = MujocoEnv(LocomotionTask(config), 12, num_threads=0)
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


def difficulties_of(env):
    return [env.running.tiles[int(tile)].difficulty for tile in env.engine.tile_of]


def test_a_traversed_course_promotes_and_an_early_fall_demotes():
    env = walker(4)
    assert env.curriculum is not None
    env.curriculum.position[:] = 2
    env.curriculum.terrain_type[:] = torch.tensor([0, 1, 2, 3])
    env.step(torch.zeros(4, 6))
    env.episode.spawn[0, 0] -= 100.0  # as if it had come from far away
    env.engine._state[1, 1 + 2] = 1.5  # pitched over
    _, _, dones, extras = env.step(torch.zeros(4, 6))
    assert dones.tolist() == [True, True, False, False]
    assert extras["time_outs"].tolist() == [True, False, False, False]
    assert env.curriculum.position.tolist() == [3, 1, 2, 2]
    assert difficulties_of(env)[:2] == pytest.approx([0.3, 0.1])
    log = env.step(torch.zeros(4, 6))[3]["log"]  # for any runner, rsl_rl's included
    assert log["curriculum/difficulty"] == pytest.approx(0.2)  # flat ground does not count
    assert log["curriculum/difficulty/stairs"] == pytest.approx(0.3)
    assert log["curriculum/difficulty/gaps"] == pytest.approx(0.1)
    assert "curriculum/difficulty/flat" not in log


@pytest.mark.parametrize(("on_fall", "expected"), [(False, [1, 2, 3]), (True, [1, 1, 3])])
def test_a_fall_demotes_by_how_far_the_robot_came(on_fall, expected):
    """A course of 7.5 m: 3.7 m is less than half of it; by the paper's rule every fall demotes."""
    config = replace(TASKS["walker-parkour"], demote_on_fall=on_fall)
    env = MujocoEnv(LocomotionTask(config), 3, num_threads=0)
    env.curriculum.position[:] = 2
    env.curriculum.terrain_type[:] = 1
    env.begin_anew()
    env.step(torch.zeros(3, 6))
    env.episode.spawn[:, 0] = env.state.root_pos[:, 0] - torch.tensor([3.7, 3.8, 7.6])
    env.engine._state[:, 1 + 2] = 1.5
    _, _, dones, extras = env.step(torch.zeros(3, 6))
    assert dones.all()
    assert env.curriculum.position.tolist() == expected
    assert extras["episodes"]["success"].tolist() == [0.0, 0.0, 0.0]
    assert extras["episodes"]["success/gaps"].tolist() == [0.0, 0.0, 0.0]


def test_a_robot_is_measured_by_what_it_was_asked_for_where_that_is_less_than_the_course():
    env = walker(2)
    assert env.curriculum is not None
    env.curriculum.position[:] = 2
    env.episode_length_buf = torch.full((2,), env.max_episode_length - 1)
    env.episode.commanded_distance[:] = torch.tensor([8.0, -1.0])
    env.step(torch.zeros(2, 6))
    assert env.curriculum.position.tolist() == [1, 2]


def test_success_by_terrain_is_told():
    env = walker(4)
    env.curriculum.terrain_type[:] = torch.tensor([0, 0, 1, 3])
    env.episode.spawn[[0, 3], 0] -= 100.0
    env.episode_length_buf = torch.full((4,), env.max_episode_length - 1)
    episodes = env.step(torch.zeros(4, 6))[3]["episodes"]
    assert episodes["success"].tolist() == [1.0, 0.0, 0.0, 1.0]
    assert episodes["success/stairs"].tolist() == [1.0, 0.0]
    assert episodes["success/gaps"].tolist() == [0.0]
    assert episodes["success/flat"].tolist() == [1.0]
    assert "success/single_row_stones" not in episodes


def test_on_the_plane_success_is_to_follow_the_commands():
    """Three robots that outlast their time after having gone 0.4, 0.6 and 0.6 of what they were asked for."""
    config = replace(TASKS["g1-flat"], standing_fraction=0.0)
    env = MujocoEnv(LocomotionTask(config), 3, num_threads=0)
    env.step(torch.zeros(3, 29))
    assert (env.episode.commanded_distance > 0).all()
    env.episode.commanded_distance[:] = 10.0
    env.episode.followed_distance[:] = torch.tensor([4.0, 6.0, 6.0])
    env.episode_length_buf = torch.tensor([env.max_episode_length - 1] * 2 + [5])
    _, _, dones, extras = env.step(torch.zeros(3, 29))
    assert dones.tolist() == [True, True, False]
    assert extras["episodes"]["success"].tolist() == [0.0, 1.0]


def test_first_levels_reach_up_to_the_first_difficulty():
    env = walker(60)
    assert sorted(set(difficulties_of(env))) == pytest.approx([0.0, 0.1, 0.2])


def test_the_last_level_has_the_last_difficulty():
    config = replace(TASKS["walker-parkour"], first_difficulty=0.5, last_difficulty=0.5)
    env = MujocoEnv(LocomotionTask(config), 60, num_threads=0)
    assert sorted(set(difficulties_of(env))) == pytest.approx([0.05 * level for level in range(11)])
    assert env.running.curriculum.difficulty().max().item() == pytest.approx(0.5)


def test_fixed_difficulty_ignores_the_curriculum():
    env = walker(6, difficulty=0.37)
    for _ in range(3):
        env.episode_length_buf = torch.full((6,), env.max_episode_length)
        log = env.step(torch.zeros(6, 6))[3]["log"]
        assert set(difficulties_of(env)) == {0.37}
        assert "curriculum/difficulty" not in log
    env.restart(difficulty=1.0, terrain="gaps")
    assert set(difficulties_of(env)) == {1.0}
    assert {env.running.tiles[int(tile)].name for tile in env.engine.tile_of} == {"gaps"}
    env.step(torch.zeros(6, 6))


def test_tiles_are_columns_of_terrains_and_variants_by_rows_of_difficulty():
    config = TASKS["g1-parkour"]
    grid = TileGrid.of(config)
    tiles = grid.tiles(seed=0)
    assert (grid.num_rows, grid.num_columns, len(tiles)) == (11, 8 * 2, 8 * 2 * 11)
    assert [tile.name for tile in tiles[:: 2 * 11]] == list(config.terrains)
    assert [tile.difficulty for tile in tiles[:11]] == pytest.approx([row / 10 for row in range(11)])
    kind, row, variant = torch.tensor([3]), torch.tensor([7]), torch.tensor([1])
    index = int(grid.index(kind, row, variant, soft=False))
    assert (tiles[index].name, tiles[index].difficulty) == ("gaps", 0.7)
    other = TileGrid.of(config, 0.7).tiles(seed=0)  # the same tile, whatever else there is
    assert any(np.array_equal(tile.boxes, tiles[index].boxes) for tile in other)


@pytest.mark.parametrize("name", ["walker-parkour", "g1-parkour"])
def test_soft_terrain_is_filled_for_the_simulator_alone_and_ends_after_its_steps(name):
    env = MujocoEnv(LocomotionTask(replace(TASKS[name], soft_until=3)), 4, seed=1, num_threads=0)
    running = env.running
    gaps = running.task.config.terrains.index("gaps")
    env.curriculum.terrain_type[:] = gaps
    env.curriculum.position[:] = 10
    env.begin_anew()
    soft = [running.tiles[int(tile)] for tile in env.engine.tile_of]
    assert all(len(tile.fill) == 1 for tile in soft)
    middle = torch.tensor([-2.8, 0.0])  # in the first gap, which begins at -3 and is 0.7 m wide
    height = env.engine.ground.height(env.engine.tile_of, middle.expand(4, 1, 2))
    assert (height == PIT_FLOOR).all()
    model = env.engine.model_of(0)
    fill = model.geom(f"box{len(soft[0].boxes)}")
    assert fill.pos[2] + fill.size[2] == pytest.approx(-0.003)
    logged = []
    for _ in range(4):
        env.episode_length_buf = torch.full((4,), env.max_episode_length)
        logged.append(env.step(torch.zeros(4, env.num_actions))[3]["log"]["curriculum/soft"])
    assert logged == [1.0, 1.0, 0.0, 0.0]
    assert all(len(running.tiles[int(tile)].fill) == 0 for tile in env.engine.tile_of)


def test_a_robot_in_a_gap_stands_on_the_fill():
    """Put down in the middle of a gap of difficulty 1, it falls without the fill and stands with it."""
    heights = {}
    for soft in (False, True):
        env = MujocoEnv(LocomotionTask(replace(TASKS["walker-parkour"], soft_until=10**6)), 1, num_threads=0)
        gaps = env.task.config.terrains.index("gaps")
        grid, one = env.running.grid, torch.zeros(1, dtype=torch.int64)
        tile = grid.index(one + gaps, one + 10, one, soft=soft)
        place = torch.tensor([[-2.65, 0.0, env.task.config.robot.standing_height + 0.02]])
        dynamics = torch.tensor([[0.8, 0.0, 0.0, 0.0, 0.0]])
        env.engine.reset(one, tile, place, torch.zeros(1), env.task.default_pos[None], dynamics)
        for _ in range(25):
            state, _ = env.engine.step(env.task.default_pos[None])
        heights[soft] = state.root_pos[0, 2].item()
        env.running.state = state
        if soft:
            assert state.foot_contact.any()
            assert (state.sole_drop[state.foot_contact] > 0.5).float().mean() > 0.5
    assert heights[True] > 0.6
    assert heights[False] < 0.2


def test_pushes_come_and_commands_change():
    config = TASKS["g1-flat"]
    quick = replace(config, dynamics=replace(config.dynamics, push_interval=(0.04, 0.04)), command_seconds=(0.1, 0.1))
    env = MujocoEnv(LocomotionTask(quick), 3, num_threads=0)
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


@pytest.mark.parametrize("name", ["walker-parkour", "g1-flat", "g1-parkour", "soft"])
def test_a_saved_environment_continues_exactly(name):
    task = make_task("walker-parkour" if name == "soft" else name)
    if name == "soft":  # its terrain turns hard after it was saved
        task = LocomotionTask(replace(task.config, soft_until=40))
    env = MujocoEnv(task, 4, seed=3, num_threads=0)
    generator = torch.Generator().manual_seed(0)
    actions = 0.5 * torch.randn(60, 4, env.num_actions, generator=generator)
    env.episode_length_buf = torch.tensor([0, 0, 0, env.max_episode_length - 45])  # which ends after it was saved
    for action in actions[:30]:
        env.step(action)
    other = MujocoEnv(task, 4, seed=3, num_threads=0)
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
    assert resets > 0


def test_one_seed_one_run_and_another_seed_another():
    runs = []
    for seed in (5, 5, 6):
        env = walker(3, seed=seed)
        for _ in range(10):
            observations, *_ = env.step(torch.zeros(3, 6))
        runs.append(observations["critic"])
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


def test_wrong_difficulty_is_named():
    with pytest.raises(ValueError, match=r"difficulty: expected a number in \[0, 1\], got 6"):
        walker(difficulty=6)
    with pytest.raises(ValueError, match="difficulty: g1-flat has no terrains"):
        MujocoEnv(make_task("g1-flat"), 1, num_threads=0, difficulty=0.5)


def test_a_state_of_an_earlier_version_is_refused_by_name():
    env = walker(2)
    state = env.state_dict()
    del state["steps"]
    with pytest.raises(ValueError, match="environment: steps is missing; a run of an earlier version"):
        env.load_state_dict(state)
    state = env.state_dict()
    state["engine"]["sensors"] = state["engine"]["sensors"][:, 1:]
    with pytest.raises(ValueError, match="engine sensors: expected shape"):
        env.load_state_dict(state)
