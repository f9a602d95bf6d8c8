"""The ground as the robots see it: height maps of the terrain tiles, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.tasks.rotation import yaw_of
from trainer.tasks.scan import scan_points
from trainer.tasks.terrains import PIT_FLOOR, Terrain, height_map

MAP_RESOLUTION = 0.05


class Ground:
    """Heights of terrain tiles; 0 everywhere on an endless plane.

    Args:
        tiles: The tiles; empty for the plane.
        device: Where points are and heights go.
    """

    def __init__(self, tiles: Sequence[Terrain], device: torch.device | str = "cpu") -> None:
        self._flat = not tiles
        self._points = scan_points().to(device)
        if not tiles:
            return
        half_extent = (max(t.size[0] for t in tiles) / 2, max(t.size[1] for t in tiles) / 2)
        maps = [height_map(tile, half_extent, MAP_RESOLUTION) for tile in tiles]
        # A border of one cell, which is pit.
        padded = np.pad(np.stack(maps), ((0, 0), (1, 1), (1, 1)), constant_values=PIT_FLOOR)
        self._maps = torch.from_numpy(padded).to(device)
        self._middle = (torch.tensor(half_extent) / MAP_RESOLUTION + 1.0).to(device)

    def height(self, tile: Tensor, points: Tensor) -> Tensor:
        """[K, M]: height of the tiles [K] at points [K, M, 2]; the pit's floor outside them."""
        if self._flat:
            return torch.zeros(points.shape[:-1], device=points.device)
        _, rows, columns = self._maps.shape
        # Whatever lies outside is clamped into the border.
        cell = points * (1.0 / MAP_RESOLUTION) + self._middle
        x, y = cell[..., 0].clamp(0, rows - 1).long(), cell[..., 1].clamp(0, columns - 1).long()
        return self._maps.flatten().take(tile[:, None] * (rows * columns) + x * columns + y)

    def scan(self, tile: Tensor, root_pos: Tensor, root_quat: Tensor) -> Tensor:
        """[K, S]: height at the scan points around roots [K, 3], [K, 4] on the tiles [K]."""
        yaw = yaw_of(root_quat)
        turn = torch.stack([yaw.cos(), -yaw.sin(), yaw.sin(), yaw.cos()], -1).view(len(yaw), 2, 2)
        return self.height(tile, root_pos[:, None, :2] + self._points @ turn.mT)
