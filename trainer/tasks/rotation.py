"""Batched quaternions, w first."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_inverse(quat: Tensor, vector: Tensor) -> Tensor:
    """World to body: vector [..., 3] turned by the inverse of quat [..., 4]."""
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vector)
    return vector - 2 * w * cross + 2 * torch.linalg.cross(xyz, cross)


def yaw_of(quat: Tensor) -> Tensor:
    """Heading [...] of quat [..., 4]."""
    w, x, y, z = quat.unbind(-1)
    # Both arguments halved, which is exact and leaves the angle as it is.
    return torch.atan2(torch.addcmul(w * z, x, y), torch.rsub(torch.addcmul(y * y, z, z), 0.5))


def gravity_in_body(quat: Tensor) -> Tensor:
    """Unit vector of gravity [..., 3] in the body frame; (0, 0, -1) when upright."""
    w, x, y, z = quat.unbind(-1)
    forward, left = torch.addcmul(w * y, x, z, value=-1), torch.addcmul(w * x, y, z)
    return torch.stack([2 * forward, -2 * left, 2 * torch.addcmul(x * x, y, y) - 1], -1)


def wrap_angle(angle: Tensor) -> Tensor:
    """To (-π, π]."""
    return torch.atan2(angle.sin(), angle.cos())
