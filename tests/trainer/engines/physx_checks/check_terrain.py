"""The parkour tiles, all of them one mesh in PhysX, against the height maps that every engine shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from robots import PHYSICS_DT, physics_step

from trainer.engines.ground import MAP_RESOLUTION
from trainer.engines.registry import make_env
from trainer.tasks import make_task
from trainer.tasks.terrains import PIT_FLOOR

Measured = Callable[..., None]
ROBOTS = 8


@pytest.fixture(scope="module")
def env() -> Any:
    return make_env("physx", make_task("g1-parkour").config, ROBOTS, seed=2, auto_reset=False)


def _middles(env: Any) -> torch.Tensor:
    """[T, 3]: of all tiles in the world."""
    simulation = env.simulation
    tiles = torch.arange(len(simulation.managed.running.tiles))
    return simulation._spawn_origin(tiles) - simulation._spawns


def test_rays_hit_the_height_maps(env: Any, measured: Measured) -> None:
    """PhysX's own rays, on every tile, find the height of the tile's map, but where an edge is within a cell."""
    ground, tiles = env.simulation.managed.ground, env.simulation.managed.running.tiles
    middles, view = _middles(env), env.simulation.scene.view
    rng = np.random.default_rng(0)
    errors, edges, pits = [], 0, 0
    for index, tile in enumerate(tiles):
        half = np.array(tile.size) / 2 - 0.05
        points = rng.uniform(-half, half, (12, 2))
        around = points[:, None] + MAP_RESOLUTION * np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])
        heights = ground.height(torch.full((12,), index), torch.from_numpy(around).float()).numpy()
        for point, (expected, *neighbours) in zip(points, heights, strict=True):
            if np.ptp([expected, *neighbours]) > 1e-6:
                edges += 1
                continue
            pits += expected == PIT_FLOOR
            found = view.height(middles[index, :2].numpy() + point) - float(middles[index, 2])
            errors.append(abs(found - expected))
    assert len(tiles) >= 100
    assert len(errors) > 5 * len(tiles)
    assert pits > 20
    assert max(errors) < 1e-3
    measured(tiles=len(tiles), rays=len(errors), at_edges=edges, in_pits=int(pits), largest_error_m=max(errors))


def test_dropped_feet_come_to_rest_on_the_maps(env: Any, measured: Measured) -> None:
    """Robots begin above their tiles, and their feet come to rest where the map says that the ground is."""
    feet, ground = [], []
    with torch.no_grad():
        for _ in range(16):
            env.step(torch.zeros(ROBOTS, 29))
            loaded = env.state.foot_contact
            feet.append(torch.where(loaded, env.state.foot_pos[..., 2], torch.nan))
            ground.append(torch.where(loaded, env.state.foot_ground, torch.nan))
    above = (torch.stack(feet) - torch.stack(ground))[8:]
    stood = ~above.isnan()
    assert stood.float().mean() > 0.7
    error = above[stood].abs()
    # The sole's point is 2 mm below the capsules that touch, and a foot that is tilted has it higher.
    assert error.quantile(0.9) < 0.015
    running = env.simulation.managed.running
    assert len({running.tiles[int(tile)].name for tile in running.tile_of}) > 3
    measured(feet=int(stood.sum()), median_error_m=float(error.median()), tenth_m=float(error.quantile(0.9)))


def test_the_scan_sees_the_maps(env: Any, measured: Measured) -> None:
    """The ray-caster's scan, turned with the robots, is what the maps have at its points, but for edges."""
    running, ground = env.simulation.managed.running, env.simulation.managed.ground
    seen = env.state.scan
    expected = ground.scan(running.tile_of, env.state.root_pos, env.state.yaw)
    same = (seen - expected).abs() < 2e-3
    assert same.float().mean() > 0.95
    assert seen.std() > 0.02
    measured(share_equal=float(same.float().mean()), points=seen.numel())


def test_a_robot_falls_into_the_pit_and_lies_on_its_floor(env: Any, measured: Measured) -> None:
    """Robots put beside their tile fall to the pit's floor and are carried there."""
    simulation = env.simulation
    robot, middles = simulation.reader.robot, _middles(env)[simulation.managed.running.tile_of]
    pose = robot.data.root_link_pose_w.clone()
    half = torch.tensor([simulation.managed.running.tiles[int(t)].size for t in simulation.managed.running.tile_of]) / 2
    pose[:, :3] = middles
    pose[:, 1] += half[:, 1] + 0.5
    robot.write_root_link_pose_to_sim(pose)
    robot.write_root_link_velocity_to_sim(torch.zeros(ROBOTS, 6))
    for _ in range(round(2.0 / PHYSICS_DT)):
        physics_step(env)
    lowest = robot.data.body_link_pos_w[..., 2].min(-1).values - middles[:, 2]
    assert ((lowest > PIT_FLOOR) & (lowest < PIT_FLOOR + 0.5)).all()
    measured(lowest_body_above_the_floor_m=float((lowest - PIT_FLOOR).min()), floor_m=PIT_FLOOR)
