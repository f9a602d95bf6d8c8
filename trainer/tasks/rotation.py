"""Batched quaternions, w first."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


def rotate_inverse(quat: Tensor, vector: Tensor) -> Tensor:
    """World to body: vector [..., 3] turned by the inverse of quat [..., 4]."""
    w, xyz = quat[..., :1], quat[..., 1:]
    cross = torch.linalg.cross(xyz, vector)
    return torch.addcmul(vector, w, cross, value=-2).add_(torch.linalg.cross(xyz, cross), alpha=2)


def yaw_of(quat: Tensor) -> Tensor:
    """Heading [...] of quat [..., 4]."""
    w, x, y, z = quat.unbind(-1)
    # Both arguments halved, which is exact and leaves the angle as it is.
    return torch.atan2(torch.addcmul(w * z, x, y), torch.rsub(torch.addcmul(y * y, z, z), 0.5))


def gravity_in_body(quat: Tensor) -> Tensor:
    """Unit vector of gravity [..., 3] in the body frame; (0, 0, -1) when upright."""
    w, x, y, z = quat.unbind(-1)
    forward, left = torch.addcmul(w * y, x, z, value=-1), torch.addcmul(w * x, y, z)
    halves = torch.stack([forward, left, torch.addcmul(x * x, y, y)], -1)
    return torch.addcmul(*_up(quat.dtype, quat.device), halves)


@functools.cache
def _up(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """What the halves of gravity are moved by, and what they are scaled by."""
    with torch.inference_mode(False):  # kept beyond the rollout that asks first
        offset, scale = torch.tensor([0.0, 0.0, -1.0]), torch.tensor([2.0, -2.0, 2.0])
        return offset.to(device, dtype), scale.to(device, dtype)


def wrap_angle(angle: Tensor) -> Tensor:
    """To (-π, π]."""
    return torch.atan2(angle.sin(), angle.cos())
