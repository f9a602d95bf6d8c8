"""The tiles of a task: every terrain at every difficulty that is trained on, in several variants.

Tiles are a grid. A row is a difficulty, a column is a terrain in one of its variants; where training begins on soft
terrain, a second set of columns has the same tiles with their pits filled. A tile's index is column · rows + row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from trainer.tasks.terrains import Terrain, make_terrain, softened

if TYPE_CHECKING:
    from trainer.tasks.locomotion import TaskConfig


@dataclass(frozen=True)
class TileGrid:
    """Which tile is where; empty on an endless plane."""

    terrains: tuple[str, ...]
    """Names; an environment's type is an index into it."""
    difficulties: tuple[float, ...]
    """Difficulty of each row."""
    variants: int
    """Tiles of one terrain and difficulty, with different random stones."""
    soft: bool
    """Whether the second set of columns is there."""

    @staticmethod
    def of(config: TaskConfig, difficulty: float | Sequence[float] | None = None) -> TileGrid:
        """The tiles that a task trains on; with `difficulty`, hard ones of that difficulty, or of those, alone.

        Raises:
            ValueError: `difficulty` is not in [0, 1], or given for a task without terrains.
        """
        if difficulty is None:
            levels = range(config.num_levels)
            return TileGrid(
                config.terrains,
                tuple(config.last_difficulty * level / (config.num_levels - 1) for level in levels),
                config.tile_variants,
                config.soft_until > 0,
            )
        rows = tuple(map(float, difficulty)) if isinstance(difficulty, Sequence) else (float(difficulty),)
        if not rows:
            raise ValueError("difficulty: expected at least one, got none")
        for row in rows:
            if not config.terrains:
                raise ValueError(f"difficulty: {config.name} has no terrains, got {row:g}")
            if not 0 <= row <= 1:
                raise ValueError(f"difficulty: expected a number in [0, 1], got {row:g}")
        return TileGrid(config.terrains, rows, config.tile_variants, soft=False)

    @property
    def num_rows(self) -> int:
        """The number of difficulties."""
        return len(self.difficulties)

    @property
    def num_columns(self) -> int:
        """Terrains in their variants, the soft ones included."""
        return len(self.terrains) * self.variants * (2 if self.soft else 1)

    def index(self, kind: Tensor, row: Tensor, variant: Tensor, soft: bool) -> Tensor:
        """[K] int64: the tiles of terrains [K] at the difficulties of rows [K] in variants [K]."""
        if soft:
            kind = kind + len(self.terrains)
        return (kind * self.variants + variant) * self.num_rows + row

    def name(self, column: int) -> str:
        """The column in words: terrain, variant, and whether it is soft."""
        kind, variant = divmod(column, self.variants)
        soft, kind = divmod(kind, len(self.terrains))
        return f"{self.terrains[kind]}_{variant}{'_soft' if soft else ''}"

    def tile(self, row: int, column: int, seed: int) -> Terrain:
        """One tile; the same for the same seed, terrain, difficulty and variant, whatever else the grid has."""
        kind, variant = divmod(column, self.variants)
        soft, kind = divmod(kind, len(self.terrains))
        difficulty = self.difficulties[row]
        rng = np.random.default_rng([seed, kind, round(1e6 * difficulty), variant])
        tile = make_terrain(self.terrains[kind], difficulty, rng)
        return softened(tile) if soft else tile

    def tiles(self, seed: int) -> list[Terrain]:
        """All of them, by index."""
        return [self.tile(row, column, seed) for column in range(self.num_columns) for row in range(self.num_rows)]
