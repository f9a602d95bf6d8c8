"""Our terrain tiles as mjlab's sub-terrains: a column for each terrain and variant, a row for each level."""

from __future__ import annotations

from dataclasses import dataclass, field

import mujoco
import numpy as np
import torch
from mjlab.terrains import SubTerrainCfg, TerrainEntityCfg, TerrainGeneratorCfg
from mjlab.terrains.terrain_generator import TerrainGeometry, TerrainOutput
from torch import Tensor

from trainer.tasks.locomotion import TaskConfig
from trainer.tasks.terrains import HALF_EXTENT, TERRAINS, Terrain, make_terrain

_PIT = 0.5
"""Metres of pit around the largest tile, so that no robot reaches its neighbour before its episode ends."""
_SIZE = (2 * (HALF_EXTENT[0] + _PIT), 2 * (HALF_EXTENT[1] + _PIT))
_RGBA = (0.45, 0.48, 0.52, 1.0)


@dataclass
class TileCfg(SubTerrainCfg):
    """A terrain of `trainer/tasks/terrains.py`, as native MuJoCo has it for the same seed."""

    terrain: str = "flat"
    """Its name."""
    seed: tuple[int, ...] = field(default=(0,))
    """Of its random stones, before the level and after it."""
    num_levels: int = 2

    def __post_init__(self) -> None:
        if self.terrain not in TERRAINS:
            raise ValueError(f"terrain: expected one of {', '.join(TERRAINS)}, got {self.terrain!r}")

    def tile(self, level: int) -> Terrain:
        """The tile of a level."""
        *before, after = self.seed
        rng = np.random.default_rng([*before, level, after])
        return make_terrain(self.terrain, level / (self.num_levels - 1), rng)

    def function(self, difficulty: float, spec: mujoco.MjSpec, rng: np.random.Generator) -> TerrainOutput:
        """Adds the tile's boxes; the tile's middle is the middle of its place in the grid."""
        tile = self.tile(round(difficulty * (self.num_levels - 1)))
        middle = np.array([self.size[0] / 2, self.size[1] / 2, 0.0])
        geometries = []
        for box in tile.boxes:
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


def terrain_cfg(task: TaskConfig, seed: int) -> TerrainEntityCfg:
    """The ground of a task: its tiles as of `make_tiles(task, seed)`, or a plane."""
    if not task.terrains:
        return TerrainEntityCfg(terrain_type="plane")
    columns = {
        f"{name}_{variant}": TileCfg(terrain=name, seed=(seed, kind, variant), num_levels=task.num_levels)
        for kind, name in enumerate(task.terrains)
        for variant in range(task.tile_variants)
    }
    generator = TerrainGeneratorCfg(
        seed=seed,
        curriculum=True,
        size=_SIZE,
        num_rows=task.num_levels,
        num_cols=len(columns),
        color_scheme="none",
        sub_terrains=dict(columns),
    )
    return TerrainEntityCfg(terrain_type="generator", terrain_generator=generator)


def tiles_of(cfg: TerrainEntityCfg | None, task: TaskConfig, device: str) -> tuple[list[Terrain], Tensor]:
    """The tiles that the ground was made of, in the order of `make_tiles`, and where in the world each has its middle.

    Returns:
        T tiles, and their middles [T, 3]; no tile and one middle for a plane.

    Raises:
        ValueError: The ground is not one of `terrain_cfg` for this task.
    """
    generator = None if cfg is None else cfg.terrain_generator
    if not task.terrains or generator is None:
        if task.terrains:
            raise ValueError(f"terrain: {task.name} needs the tiles of terrain_cfg, got a plane")
        return [], torch.zeros(1, 3, device=device)
    columns = list(generator.sub_terrains.values())
    if len(columns) != len(task.terrains) * task.tile_variants or generator.num_rows != task.num_levels:
        raise ValueError(f"terrain: expected the {len(task.terrains)} × {task.tile_variants} columns of terrain_cfg")
    tiles, middles = [], []
    for kind in range(len(task.terrains)):
        for level in range(task.num_levels):
            for variant in range(task.tile_variants):
                column = kind * task.tile_variants + variant
                cfg_of_column = columns[column]
                assert isinstance(cfg_of_column, TileCfg)
                tiles.append(cfg_of_column.tile(level))
                x = (level + 0.5 - generator.num_rows / 2) * generator.size[0]
                y = (column + 0.5 - len(columns) / 2) * generator.size[1]
                middles.append((x, y, 0.0))
    return tiles, torch.tensor(middles, device=device)
