"""Our terrain tiles as mjlab's sub-terrains: a column for each terrain and variant, a row for each difficulty."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from mjlab.terrains import SubTerrainCfg, TerrainEntityCfg, TerrainGeneratorCfg
from mjlab.terrains.terrain_generator import TerrainGeometry, TerrainOutput
from torch import Tensor

from trainer.tasks.locomotion import TaskConfig
from trainer.tasks.terrains import HALF_EXTENT, TERRAINS
from trainer.tasks.tiles import TileGrid

_PIT = 0.5
"""Metres of pit around the largest tile, so that no robot reaches its neighbour before its episode ends."""
_SIZE = (2 * (HALF_EXTENT[0] + _PIT), 2 * (HALF_EXTENT[1] + _PIT))
_RGBA = (0.45, 0.48, 0.52, 1.0)


@dataclass
class TileCfg(SubTerrainCfg):
    """A column of a task's tiles (`trainer/tasks/tiles.py`), as native MuJoCo has it for the same seed."""

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
    """Seed of its random stones."""

    def __post_init__(self) -> None:
        for name in self.terrains:
            if name not in TERRAINS:
                raise ValueError(f"terrain: expected some of {', '.join(TERRAINS)}, got {name!r}")

    @property
    def grid(self) -> TileGrid:
        """The grid of all tiles."""
        return TileGrid(tuple(self.terrains), tuple(self.difficulties), self.variants, self.soft)

    def function(self, difficulty: float, spec: mujoco.MjSpec, rng: np.random.Generator) -> TerrainOutput:
        """Adds the tile's boxes; the tile's middle is the middle of its place in the grid."""
        # mjlab's difficulty runs from 0 in the first row to 1 in the last.
        tile = self.grid.tile(round(difficulty * (len(self.difficulties) - 1)), self.column, self.seed)
        middle = np.array([self.size[0] / 2, self.size[1] / 2, 0.0])
        geometries = []
        for box in tile.solid:
            geom = spec.body("terrain").add_geom(
                type=mujoco.mjtGeom.mjGEOM_BOX,
                pos=middle + box[:3],
                size=box[3:],
                contype=1,
                conaffinity=0,
                rgba=_RGBA,
            )
            geometries.append(TerrainGeometry(geom=geom, color=_RGBA))
        return TerrainOutput(origin=middle + np.array(tile.spawn), geometries=geometries)


def terrain_cfg(task: TaskConfig, seed: int, difficulty: float | None = None) -> TerrainEntityCfg:
    """The ground of a task: the tiles of `TileGrid.of(task, difficulty)` for the seed, or a plane."""
    if not task.terrains:
        return TerrainEntityCfg(terrain_type="plane")
    grid = TileGrid.of(task, difficulty)
    columns: dict[str, SubTerrainCfg] = {
        f"{column}_{grid.name(column)}": TileCfg(**vars(grid), column=column, seed=seed)
        for column in range(grid.num_columns)
    }
    generator = TerrainGeneratorCfg(
        seed=seed,
        curriculum=True,
        size=_SIZE,
        num_rows=grid.num_rows,
        num_cols=grid.num_columns,
        color_scheme="none",
        sub_terrains=columns,
    )
    return TerrainEntityCfg(terrain_type="generator", terrain_generator=generator)


def tile_seed(cfg: TerrainEntityCfg | None) -> int:
    """The seed that the ground's tiles were made from; 0 for a plane. mjlab's scripts seed the rest by another."""
    columns = [] if cfg is None or cfg.terrain_generator is None else list(cfg.terrain_generator.sub_terrains.values())
    return columns[0].seed if columns and isinstance(columns[0], TileCfg) else 0


def tile_middles(cfg: TerrainEntityCfg | None, grid: TileGrid, device: str) -> Tensor:
    """[T, 3]: where in the world each tile of the grid has its middle; one for a plane.

    Raises:
        ValueError: The ground is not one of `terrain_cfg` for the task.
    """
    generator = None if cfg is None else cfg.terrain_generator
    if not grid.terrains or generator is None:
        if grid.terrains:
            raise ValueError("terrain: the task needs the tiles of terrain_cfg, got a plane")
        return torch.zeros(1, 3, device=device)
    seed = tile_seed(cfg)
    found = [(c.grid, c.column, c.seed) for c in generator.sub_terrains.values() if isinstance(c, TileCfg)]
    expected = [(grid, column, seed) for column in range(grid.num_columns)]
    if found != expected or generator.num_rows != grid.num_rows:
        raise ValueError(f"terrain: expected the {grid.num_rows} × {grid.num_columns} tiles of terrain_cfg")
    x, y = generator.size
    middles = [
        ((row + 0.5 - grid.num_rows / 2) * x, (column + 0.5 - grid.num_columns / 2) * y, 0.0)
        for column in range(grid.num_columns)
        for row in range(grid.num_rows)
    ]
    return torch.tensor(middles, device=device)
