"""The terms of PPO's loss, as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-mean min(r A, clip(r, 1 ± clip) A) of log r [B] and A [B]."""
    ratio = log_ratio.clamp(max=80.0).exp()
    return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value [B], the larger of it and of its move clipped to ± clip."""
    error = (value - returns).square()
    if clip is None:
        return error.mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.max(error, (clipped - returns).square()).mean()
