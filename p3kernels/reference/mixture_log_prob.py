"""Log-likelihood of an equal-weight mixture of diagonal Gaussians with one standard deviation."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixture_log_prob(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """log (1/N) Σ_i N(action | means_i, std²): [B, A], [N, B, A], [A] | [B, A] → [B]."""
    difference = action - means  # [N, B, A]
    with torch.no_grad():
        # A row in which every sample has likelihood 0 is -inf with gradient 0, not NaN.
        dead = ((difference / std).square().sum(-1) == math.inf).all(0)
    z = difference.masked_fill(dead[:, None], 0.0) / std
    constant = 0.5 * math.log(2 * math.pi) * action.shape[-1] + math.log(means.shape[0])
    total = torch.logsumexp(-0.5 * z.square().sum(-1), 0) - std.log().sum(-1)
    return torch.where(dead, -math.inf, total - constant)
