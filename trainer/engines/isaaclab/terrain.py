"""Our terrain tiles in Isaac Lab's terrain generator: rows are difficulties, columns are kinds in their variants.

A cell is a tile with a trench of pit around it, wider than the height scan reaches beyond the point at which a robot
has left its tile: no robot sees the neighbouring tile.
"""

from __future__ import annotations

import numpy as np
import trimesh
from isaaclab.terrains import SubTerrainBaseCfg, TerrainGeneratorCfg
from isaaclab.utils import configclass

from trainer.tasks.locomotion import TaskConfig
from trainer.tasks.terrains import HALF_EXTENT, PIT_FLOOR, Terrain
from trainer.tasks.tiles import TileGrid

TRENCH = 1.0
"""Metres of pit between the edge of the largest tile and the edge of its cell."""
CELL = (2 * (HALF_EXTENT[0] + TRENCH), 2 * (HALF_EXTENT[1] + TRENCH))
_FLOOR_THICKNESS = 0.5


def tile_of_cell(difficulty: float, cfg: TileCfg) -> Terrain:
    """The tile that the generator means: it draws `difficulty` uniformly from the row's part of [0, 1)."""
    rows = len(cfg.difficulties)
    grid = TileGrid(tuple(cfg.terrains), tuple(cfg.difficulties), cfg.variants, cfg.soft)
    return grid.tile(min(int(difficulty * rows), rows - 1), cfg.column, cfg.seed)


def tile_meshes(difficulty: float, cfg: SubTerrainBaseCfg) -> tuple[list[trimesh.Trimesh], np.ndarray]:
    """Isaac Lab's sub-terrain function: the tile's boxes, the pit's floor, and where robots start.

    Args:
        difficulty: Difficulty that the generator asks for; see `tile_of_cell`.
        cfg: A `TileCfg`: which tile. Its cell reaches from (0, 0) to `cfg.size`.
    """
    assert isinstance(cfg, TileCfg)
    tile = tile_of_cell(difficulty, cfg)
    middle = np.array([cfg.size[0] / 2, cfg.size[1] / 2, 0.0])
    meshes = [_box(2 * box[3:], middle + box[:3]) for box in tile.solid]
    floor = np.array([0.0, 0.0, PIT_FLOOR - _FLOOR_THICKNESS / 2])
    meshes.append(_box(np.array([*cfg.size, _FLOOR_THICKNESS]), middle + floor))
    return meshes, middle + np.array(tile.spawn)


def _box(extents: np.ndarray, centre: np.ndarray) -> trimesh.Trimesh:
    return trimesh.creation.box(extents, trimesh.transformations.translation_matrix(centre))


@configclass
class TileCfg(SubTerrainBaseCfg):
    """A column of a task's tiles (`trainer/tasks/tiles.py`), at all difficulties."""

    function = tile_meshes
    terrains: tuple[str, ...] = ("flat",)
    """Terrains of the task."""
    difficulties: tuple[float, ...] = (0.0,)
    """Difficulty of each row."""
    variants: int = 1
    soft: bool = False
    """Whether the grid has columns with filled pits."""
    column: int = 0
    """Which column of the grid."""
    seed: int = 0
    """The generator's own overwrites it."""


def generator_cfg(config: TaskConfig, difficulty: float | None = None) -> TerrainGeneratorCfg:
    """All tiles of a task, or those of one difficulty; rows and columns are those of `TileGrid`."""
    grid = TileGrid.of(config, difficulty)
    columns: dict[str, SubTerrainBaseCfg] = {
        f"{column}_{grid.name(column)}": TileCfg(**vars(grid), column=column) for column in range(grid.num_columns)
    }
    return TerrainGeneratorCfg(
        seed=0,
        curriculum=True,
        size=CELL,
        border_width=0.0,
        num_rows=grid.num_rows,
        num_cols=grid.num_columns,
        sub_terrains=columns,
        difficulty_range=(0.0, 1.0),
    )
