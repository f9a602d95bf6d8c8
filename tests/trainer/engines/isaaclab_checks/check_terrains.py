"""Our tiles through Isaac Lab's own terrain generator, its meshes by its own ray-caster."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from isaaclab.terrains import TerrainGenerator
from isaaclab.utils.warp import convert_to_warp_mesh, raycast_mesh

from trainer.engines.isaaclab.terrain import CELL, TRENCH, TileCfg, generator_cfg, tile_meshes, tile_of_cell
from trainer.tasks.g1 import G1_PARKOUR
from trainer.tasks.terrains import HALF_EXTENT, PIT_FLOOR, Terrain, height_map
from trainer.tasks.tiles import TileGrid

SEED = 7
GRID = TileGrid.of(G1_PARKOUR)


@pytest.fixture(scope="module")
def generated() -> TerrainGenerator:
    cfg = generator_cfg(G1_PARKOUR)
    cfg.seed = SEED
    return TerrainGenerator(cfg)


def _heights(meshes: object, points: np.ndarray) -> np.ndarray:
    """Tops of a mesh at points [N, 2], by rays from above."""
    mesh = convert_to_warp_mesh(meshes.vertices, meshes.faces, device="cpu")
    starts = torch.tensor(np.column_stack([points, np.full(len(points), 20.0)]), dtype=torch.float32)
    down = torch.tensor([0.0, 0.0, -1.0]).expand_as(starts)
    return raycast_mesh(starts, down, mesh=mesh)[0][:, 2].numpy()


def _cells(tile: Terrain) -> tuple[np.ndarray, np.ndarray]:
    """Centres [N, 2] and heights [N] of the description's height map, but for cells that an edge runs through."""
    half, side = (HALF_EXTENT[0] + TRENCH, HALF_EXTENT[1] + TRENCH), 0.1
    heights = height_map(tile, half, side)
    x, y = (-h + side * (np.arange(n) + 0.5) for h, n in zip(half, heights.shape, strict=True))
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    low, high = tile.boxes[:, :2] - tile.boxes[:, 3:5], tile.boxes[:, :2] + tile.boxes[:, 3:5]
    edges = np.concatenate([low, high])[None]
    clear = (np.abs(points[:, None] - edges) > 1e-3).all((1, 2))
    return points[clear], heights.reshape(-1)[clear]


@pytest.mark.parametrize("level", [0, 3, 7, 10])
@pytest.mark.parametrize("kind", range(len(G1_PARKOUR.terrains)), ids=G1_PARKOUR.terrains)
def test_meshes_have_the_description_s_heights(generated: TerrainGenerator, kind: int, level: int) -> None:
    for variant in range(G1_PARKOUR.tile_variants):
        column = kind * G1_PARKOUR.tile_variants + variant
        tile = GRID.tile(level, column, SEED)
        points, expected = _cells(tile)
        spawn = generated.terrain_origins[level, column]
        middle = spawn - np.array(tile.spawn)
        # The generator's own place for the cell, whose mesh is one of the list.
        mesh = generated.terrain_meshes[column * G1_PARKOUR.num_levels + level]
        offset = -np.array(CELL) * np.array([G1_PARKOUR.num_levels, len(generated.cfg.sub_terrains)]) / 2
        np.testing.assert_allclose(_heights(mesh, points + middle[:2] - offset), expected, atol=1e-4)
        # Float32 vertices a hundred metres from the origin: the whole mesh is exact to some 1e-5.
        assert len(expected) > 5000
        assert expected.min() == pytest.approx(PIT_FLOOR)


def test_the_whole_mesh_is_where_the_origins_say(generated: TerrainGenerator) -> None:
    tiles = [(kind, level) for kind in range(7) for level in (0, 6, 10)]
    for kind, level in tiles:
        tile = GRID.tile(level, 2 * kind + 1, SEED)
        middle = generated.terrain_origins[level, 2 * kind + 1] - np.array(tile.spawn)
        points, expected = _cells(tile)
        chosen = np.random.default_rng(0).choice(len(points), 200, replace=False)
        found = _heights(generated.terrain_mesh, points[chosen] + middle[:2])
        np.testing.assert_allclose(found, expected[chosen], atol=1e-4)


def test_the_generator_s_difficulty_is_a_level() -> None:
    cfg = TileCfg(**vars(GRID), column=7, seed=2)
    for level in range(11):
        for within in (0.001, 0.5, 0.999):
            assert tile_of_cell((level + within) / 11, cfg).difficulty == level / 10


def test_function_keeps_isaac_lab_s_contract() -> None:
    cfg = TileCfg(**vars(GRID), column=4, size=CELL)
    meshes, origin = tile_meshes(0.5, cfg)
    low, high = np.min([mesh.bounds[0] for mesh in meshes], 0), np.max([mesh.bounds[1] for mesh in meshes], 0)
    np.testing.assert_allclose([*low[:2], *high[:2]], [0.0, 0.0, *CELL], atol=1e-6)
    assert origin.shape == (3,)
    assert all(mesh.is_watertight for mesh in meshes)


def test_no_scan_reaches_the_next_tile() -> None:
    reach = np.hypot(0.8, 0.5)
    assert reach - 0.3 < TRENCH  # a robot 0.3 m before its tile's edge has left it
