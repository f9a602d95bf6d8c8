"""The terms of PPO's loss, as functions of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float, dual_clip: float | None = None) -> Tensor:
    """-mean min(r A, clip(r, 1 ± clip) A) of log r [B] and A [B].

    The minimum bounds what a row gains and, where A < 0, not what it loses: r A has no lower bound. With `dual_clip`
    c > 1 such a row loses c |A| at most: max(min(r A, clip(r) A), c A) where A < 0.
    """
    ratio = log_ratio.clamp(max=80.0).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual_clip is not None:  # where A > 0 this is below the minimum already: c A > (1 + clip) A
        gain = torch.where(advantage < 0, torch.max(gain, dual_clip * advantage), gain)
    return -gain.mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value [B], the larger of it and of its move clipped to ± clip."""
    error = (value - returns).square()
    if clip is None:
        return error.mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.max(error, (clipped - returns).square()).mean()
