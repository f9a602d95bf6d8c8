"""The height scan's grid: 1.6 m × 1.0 m around the robot at 0.1 m, 11 rows (y) × 17 columns (x), heading frame."""

from __future__ import annotations

import torch
from torch import Tensor

SCAN_ROWS, SCAN_COLUMNS = 11, 17
SCAN_SHAPE = (SCAN_ROWS, SCAN_COLUMNS)


def scan_points() -> Tensor:
    """[187, 2]: x, y of the points; x runs fastest, from 0.8 m behind to 0.8 m ahead; y from right to left."""
    y, x = torch.meshgrid(torch.linspace(-0.5, 0.5, SCAN_ROWS), torch.linspace(-0.8, 0.8, SCAN_COLUMNS), indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], -1)
