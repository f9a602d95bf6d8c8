"""The environment, stepped by Isaac Lab's own `step` and managers on the fakes, against the task itself.

What the task should see is worked out here a second time, robot by robot and by name, from PhysX's tensors; a twin of
the task gets it in the order of the native environment.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fake_physx import BODIES, JOINTS, make_env
from scipy.spatial.transform import Rotation
from torch import Tensor

from trainer.engines.ground import Ground
from trainer.tasks import make_task
from trainer.tasks.robots import G1
from trainer.tasks.running import RunningTask
from trainer.tasks.scan import scan_points
from trainer.tasks.state import RobotState
from trainer.tasks.terrains import PIT_FLOOR, Terrain

ENVS = 40
TASK_IDS = {"P3-Parkour-G1-v0": "g1-parkour", "P3-Flat-G1-v0": "g1-flat"}
FEET, TRUNK = [BODIES.index(foot) for foot in G1.feet], [BODIES.index(body) for body in ("pelvis", "torso_link")]
ORDER = [JOINTS.index(name) for name in G1.joint_names]


def _heights(tile: Terrain | None, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The ground at points [S, 2] of a tile by its description, and how far from there a box has an edge."""
    if tile is None:
        return np.zeros(len(points)), np.full(len(points), np.inf)
    beyond = np.abs(points[:, None] - tile.boxes[:, :2]) - tile.boxes[:, 3:5]
    tops = np.where((beyond <= 0).all(-1), tile.boxes[:, 2] + tile.boxes[:, 5], PIT_FLOOR)
    return tops.max(-1), np.abs(beyond).min((1, 2))


class Seen:
    """The state of every robot from PhysX's tensors, by hand."""

    def __init__(self, env: Any, ground: Ground) -> None:
        self.env, self.ground = env, ground

    def middle(self, robot: int) -> np.ndarray:
        running, terrain = self.env.managed.running, self.env.scene.terrain
        if not running.tiles:
            return terrain.env_origins[robot].numpy()
        index = int(running.tile_of[robot])
        column, row = divmod(index, running.grid.num_rows)
        return terrain.terrain_origins[row, column].numpy() - running.tiles[index].spawn

    def scan(self, robot: int, root: np.ndarray, yaw: float, seen: Tensor) -> Tensor:
        """By the description; where a ray is at an edge, what was seen is taken as it is."""
        tiles = self.env.managed.running.tiles
        tile = tiles[int(self.env.managed.running.tile_of[robot])] if tiles else None
        turn = np.array([[np.cos(yaw), -np.sin(yaw)], [np.sin(yaw), np.cos(yaw)]])
        heights, clearance = _heights(tile, root[:2] + scan_points().numpy() @ turn.T)
        return torch.where(torch.from_numpy(clearance) < 1e-3, seen, torch.from_numpy(heights))

    def sole_drop(self, robot: int, links: Tensor, middle: np.ndarray) -> Tensor:
        """[F, P]: point by point."""
        rows = []
        for foot in FEET:
            turn = Rotation.from_quat(links[foot, 3:].double().numpy())
            points = [links[foot, :3].double().numpy() + turn.apply(point) - middle for point in G1.sole_points]
            tile = self.env.managed.running.tile_of[robot, None]
            below = self.ground.height(tile, torch.tensor(np.array(points)[None, :, :2], dtype=torch.float32))[0]
            rows.append(min(point[2] for point in points) - below)
        return torch.stack(rows)

    def state(self, measured: RobotState) -> RobotState:
        tensors, rows = self.env.scene.view.tensors, []
        for robot in range(ENVS):
            middle = self.middle(robot)
            root = tensors["root_transforms"][robot].double().numpy()
            rotation = Rotation.from_quat(root[3:])
            velocity = tensors["root_velocities"][robot].double().numpy()
            com = tensors["coms"][robot, 0, :3].double().numpy()
            links, spins = tensors["link_transforms"][robot], tensors["link_velocities"][robot].double().numpy()
            coms = tensors["coms"][robot, :, :3].double().numpy()
            soles, speeds = [], []
            for foot in FEET:
                turn = Rotation.from_quat(links[foot, 3:].double().numpy())
                soles.append(links[foot, :3].double().numpy() + turn.apply(G1.sole) - middle)
                to_sole = turn.apply(np.array(G1.sole) - coms[foot])  # PhysX's velocity is that of the centre of mass
                speeds.append(spins[foot, :3] + np.cross(spins[foot, 3:], to_sole))
            forces = self.env.scene.view.forces[robot]
            yaw = rotation.as_euler("ZYX")[0]
            soles_2d = torch.tensor(np.array(soles)[None, :, :2], dtype=torch.float32)
            rows.append(
                {
                    "root_pos": root[:3] - middle,
                    "root_quat": np.roll(rotation.as_quat(), 1),
                    "root_lin_vel": velocity[:3] + np.cross(velocity[3:], rotation.apply(-com)),
                    "root_ang_vel": rotation.inv().apply(velocity[3:]),
                    "joint_pos": tensors["dof_positions"][robot, ORDER],
                    "joint_vel": tensors["dof_velocities"][robot, ORDER],
                    "joint_torque": self.env.reader.robot.data.applied_torque[robot, ORDER],
                    "foot_pos": np.array(soles),
                    "foot_vel": np.array(speeds),
                    "foot_force": forces[FEET],
                    "body_contact": bool((forces[TRUNK].norm(dim=-1) > 1.0).any()),
                    "scan": self.scan(robot, root[:3] - middle, yaw, measured.scan[robot]),
                    "foot_ground": self.ground.height(self.env.managed.running.tile_of[robot, None], soles_2d)[0],
                    "sole_drop": self.sole_drop(robot, links, middle),
                    "dynamics": self.env.reader.dynamics[robot],
                }
            )
        columns = {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}
        return RobotState(**{n: v if v.dtype == torch.bool else v.float() for n, v in columns.items()})


def _assert_same(seen: RobotState, expected: RobotState) -> None:
    for name, value in vars(expected).items():
        found = getattr(seen, name)
        if name == "root_quat":  # the same rotation with the other sign
            found = found * (found * value).sum(-1, keepdim=True).sign()
        torch.testing.assert_close(found, value, atol=2e-5, rtol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_steps_as_the_native_environment_does(task_id: str) -> None:
    env = make_env(task_id, ENVS, seed=3)
    task = make_task(TASK_IDS[task_id])
    twin = RunningTask(task, ENVS, seed=3)
    ground = Ground(twin.tiles)
    seen = Seen(env, ground)
    everyone = torch.arange(ENVS)
    twin.draw_start(everyone)  # the environment's own, by which the managers find their sizes
    twin.begin(everyone, env.managed.running.state)
    observations, _ = env.reset()
    _begin(env, twin, everyone, seen)
    random = torch.Generator().manual_seed(0)
    ended, levels = 0, set()
    for _ in range(25):
        action = torch.randn(ENVS, 29, generator=random)
        clock = twin.episode.clock.clone()
        twin.act(action)
        twin.draw_pushes()
        judged: list[tuple[RobotState, RobotState]] = []
        after = env.managed.running.after_physics
        env.managed.running.after_physics = lambda state, broken, judged=judged, after=after: (
            judged.append((state.select(everyone), seen.state(state))) or after(state, broken)
        )
        observations, reward, terminated, timed_out, extras = env.step(action)
        env.managed.running.after_physics = after
        [(measured, expected)] = judged  # once a control step
        _assert_same(measured, expected)
        outcome = twin.after_physics(measured, torch.zeros(ENVS, dtype=torch.bool))
        torch.testing.assert_close(reward, outcome.reward, atol=1e-5, rtol=1e-5)
        assert (terminated == outcome.terminated).all()
        assert (timed_out == outcome.timed_out).all()
        assert (extras["time_outs"] == outcome.timed_out).all()
        for name, group in outcome.observations.items():
            torch.testing.assert_close(extras["final_observations"][name], group, atol=1e-5, rtol=1e-5)
        targets = env.scene.view.tensors["dof_position_targets"][:, ORDER]
        torch.testing.assert_close(targets, task.targets(twin.episode.action, clock))
        again = outcome.done.nonzero().squeeze(-1)
        ended += len(again)
        if len(again):
            twin.update_levels(again, outcome)
            _begin(env, twin, again, seen)
        for name, group in twin.observations.items():
            torch.testing.assert_close(observations[name], group, atol=1e-5, rtol=1e-5)
        if twin.curriculum is not None:
            assert (env.managed.running.curriculum.position == twin.curriculum.position).all()
            levels |= set(twin.tile_of.tolist())
    assert 0 < ended < 25 * ENVS
    assert not twin.tiles or len(levels) > 7


def _begin(env: Any, twin: RunningTask, env_ids: Tensor, seen: Seen) -> None:
    """The robots that begin are where the twin's task put its own, at rest, and are seen there."""
    running, view = env.managed.running, env.scene.view.tensors
    twin.draw_start(env_ids)
    assert (running.tile_of == twin.tile_of).all()
    begun, by_hand = running.state.select(env_ids), seen.state(running.state).select(env_ids)
    for name in ("root_pos", "root_quat", "joint_pos", "scan", "foot_pos", "foot_ground"):
        torch.testing.assert_close(getattr(begun, name), getattr(by_hand, name), atol=2e-5, rtol=1e-5)
    for name in ("root_lin_vel", "root_ang_vel", "joint_vel", "joint_torque", "foot_vel", "foot_force", "body_contact"):
        assert not getattr(begun, name).any(), name
    torch.testing.assert_close(begun.root_pos[:, :2], twin.episode.spawn[env_ids], atol=2e-5, rtol=0)
    assert (view["dof_velocities"][env_ids] == 0).all()
    assert (view["root_velocities"][env_ids] == 0).all()
    twin.begin(env_ids, begun)


def test_a_push_reaches_the_simulator() -> None:
    env = make_env("P3-Flat-G1-v0", 4)
    env.reset()
    env.managed.running.episode.push_left[:] = torch.tensor([1, 2, 1, 3])
    before = env.scene.view.tensors["root_velocities"].clone()
    env.action_manager.process_action(torch.zeros(4, 29))
    change = env.scene.view.tensors["root_velocities"] - before
    assert (change[[1, 3]] == 0).all()
    assert (change[[0, 2], :2].abs() > 0).all()
    assert (change[:, :2].abs() <= 0.5).all()
    assert (change[:, 2:] == 0).all()


def test_a_diverged_robot_begins_anew_alone() -> None:
    env = make_env("P3-Flat-G1-v0", 6)
    env.reset()
    advance = env.scene.view.advance

    def diverge() -> None:
        advance()
        env.scene.view.tensors["dof_positions"][2, ORDER[5]] = float("nan")
        env.scene.view.tensors["root_velocities"][4, 0] = 1e9

    env.scene.view.advance = diverge
    observations, reward, terminated, _, extras = env.step(torch.zeros(6, 29))
    assert extras["broken"].tolist() == [False, False, True, False, True, False]
    assert terminated[[2, 4]].all()
    assert (reward[[2, 4]] == 0).all()
    assert all(torch.isfinite(group).all() for group in observations.values())
    assert all(torch.isfinite(group).all() for group in extras["final_observations"].values())


def test_the_difficulty_can_be_fixed_and_the_episode_be_shorter() -> None:
    env = make_env("P3-Parkour-G1-v0", 7, difficulty=0.75, episode_length_s=0.06)
    env.reset()
    assert {tile.difficulty for tile in (env.managed.running.tiles[i] for i in env.managed.running.tile_of)} == {0.75}
    ended = torch.zeros(7, dtype=torch.bool)
    for step in range(3):
        _, _, terminated, timed_out, _ = env.step(torch.zeros(7, 29))
        assert timed_out.any() == (step == 2)
        ended |= terminated | timed_out
    assert ended.all()


def test_on_soft_terrain_the_scan_shows_the_pits_that_the_mesh_has_filled() -> None:
    env = make_env("P3-Parkour-G1-v0", 16, task_settings={"soft_until": 10**6}, seed=1)
    env.reset()
    running = env.managed.running
    tiles = [running.tiles[int(tile)] for tile in running.tile_of]
    assert any(len(tile.fill) for tile in tiles)
    seen = running.state.scan
    hits = env.reader._scanner.data.ray_hits_w[:, env.reader._rays, 2] - env.tile_origin()[:, 2:]
    expected = Ground(running.tiles).scan(running.tile_of, running.state.root_pos, running.state.facing)
    torch.testing.assert_close(seen, expected)
    pits = (seen < -0.5) & torch.tensor([len(tile.fill) > 0 for tile in tiles])[:, None]
    assert not pits.any() or (hits[pits] > -0.5).float().mean() > 0.9
    env.step(torch.zeros(16, 29))


def test_rsl_rl_may_set_the_episodes_lengths() -> None:
    """As `init_at_random_ep_len` does, through Isaac Lab's own wrapper."""
    from isaaclab_rl.rsl_rl import RslRlVecEnvWrapper

    env = RslRlVecEnvWrapper(make_env("P3-Flat-G1-v0", 4))
    env.episode_length_buf = torch.tensor([0, 998, 999, 500])
    _, _, dones, extras = env.step(torch.zeros(4, 29))
    assert extras["time_outs"].tolist() == [False, False, True, False]
    assert dones[2] == 1
