"""The ground as the robots see it: height maps of the terrain tiles, on any device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from p3kernels.backends import available_backends
from p3kernels.cpu import native
from trainer.tasks.scan import scan_points
from trainer.tasks.state import CONTACT_FORCE, ON_AN_EDGE
from trainer.tasks.terrains import PIT_FLOOR, Terrain, height_map

MAP_RESOLUTION = 0.05


class Ground:
    """Heights of terrain tiles; 0 everywhere on an endless plane.

    Attributes:
        native: Whether it is looked up by the C++ kernels, on a CPU that has them.

    Args:
        tiles: The tiles; empty for the plane.
        device: Where points are and heights go.
    """

    def __init__(self, tiles: Sequence[Terrain], device: torch.device | str = "cpu") -> None:
        self._flat = not tiles
        self._offsets = (scan_points() * (1.0 / MAP_RESOLUTION)).T.contiguous().to(device)
        # A look-up is a dozen small passes in torch, and one in C++: a quarter of what a task costs around the physics.
        self.native = torch.device(device).type == "cpu" and available_backends()["cpu"].startswith("available")
        if not tiles:
            self._maps, self._middle = torch.zeros(1, 1, 1), torch.zeros(2)  # one cell, which is everywhere
            return
        half_extent = (max(t.size[0] for t in tiles) / 2, max(t.size[1] for t in tiles) / 2)
        maps = [height_map(tile, half_extent, MAP_RESOLUTION) for tile in tiles]
        # A border of one cell, which is pit.
        padded = np.pad(np.stack(maps), ((0, 0), (1, 1), (1, 1)), constant_values=PIT_FLOOR)
        self._maps = torch.from_numpy(padded).to(device)
        if self._maps.numel() > torch.iinfo(torch.int32).max:
            raise ValueError(f"tiles: {len(tiles)} are too many for cells that are counted in 32 bits")
        self._middle = (torch.tensor(half_extent) / MAP_RESOLUTION + 1.0).to(device)

    def height(self, tile: Tensor, points: Tensor) -> Tensor:
        """[K, M]: height of the tiles [K] at points [K, M, 2]; the pit's floor outside them."""
        if self._flat:
            return torch.zeros(points.shape[:-1], device=points.device)
        if self.native:
            return native.heights_at_points(self._maps, tile, points.contiguous(), 1.0 / MAP_RESOLUTION, self._middle)
        cell = points * (1.0 / MAP_RESOLUTION) + self._middle
        return self._look_up(tile, cell[..., 0], cell[..., 1])

    def _look_up(self, tile: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """[K, M]: height of the tiles [K] in the cells x and y [K, M], which are numbers with a fraction."""
        _, rows, columns = self._maps.shape
        # Whatever lies outside is clamped into the border. 32 bits: conversion and look-up take a third of the time.
        cell = x.clamp(0, rows - 1).int().mul_(columns).add_(y.clamp(0, columns - 1).int())
        cell.add_((tile * (rows * columns)).int()[:, None])
        return self._maps.view(-1).index_select(0, cell.reshape(-1)).view(cell.shape)

    def below_feet(self, tile: Tensor, foot_pos: Tensor, sole_points: Tensor) -> tuple[Tensor, Tensor]:
        """`RobotState.foot_ground` [K, F] and `sole_drop` [K, F, P] of foot_pos [K, F, 3], sole_points [K, F, P, 3]."""
        # One look-up for both: what it costs is its number of operations, not its number of points.
        points = torch.cat([foot_pos[:, :, None], sole_points], 2)
        height = self.height(tile, points[..., :2].flatten(1, 2)).view(points.shape[:-1])
        return height[..., 0], sole_points[..., 2].amin(-1, keepdim=True) - height[..., 1:]

    def feet(self, tile: Tensor, position: Tensor, sole_points: Tensor, velocity: Tensor, force: Tensor) -> native.Feet:
        """What follows from feet, as `RobotState` has them, on the tiles [K]: in one pass, where `native`."""
        maps = (self._maps, tile, 1.0 / MAP_RESOLUTION, self._middle)
        return native.feet(maps, position, sole_points, velocity, force, CONTACT_FORCE, ON_AN_EDGE)

    def scan(self, tile: Tensor, root_pos: Tensor, facing: tuple[Tensor, Tensor]) -> Tensor:
        """[K, S]: height at the scan points around roots [K, 3] with cosine and sine [K] of the yaw, on tiles [K]."""
        if self._flat:
            return torch.zeros(len(tile), len(self._offsets[0]), device=root_pos.device)
        scale = 1.0 / MAP_RESOLUTION
        if self.native:
            return native.height_scan(self._maps, tile, root_pos, scale, self._middle, *facing, self._offsets)
        middle = root_pos[:, :2] * scale + self._middle
        cos, sin = (part[:, None] for part in facing)
        # The points' grid in units of cells, turned and moved: x and y apart, which are contiguous then.
        along, across = self._offsets
        x = torch.addcmul(middle[:, :1], cos, along).addcmul_(sin, across, value=-1)
        y = torch.addcmul(middle[:, 1:], sin, along).addcmul_(cos, across)
        return self._look_up(tile, x, y)
