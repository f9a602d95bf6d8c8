"""Log-likelihood of an equal-weight mixture of diagonal Gaussians with one standard deviation."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixture_log_prob(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """log (1/N) Σ_i N(action | means_i, std²): [B, A], [N, B, A], [A] | [B, A] → [B]."""
    z = (action - means) / std
    constant = 0.5 * math.log(2 * math.pi) * action.shape[-1] + math.log(means.shape[0])
    log_probs = -0.5 * z.square().sum(-1) - std.log().sum(-1)  # [N, B]
    # A row in which every sample has likelihood 0 is -inf with gradient 0, not NaN.
    dead = (log_probs == -math.inf).all(0)
    total = torch.logsumexp(log_probs.masked_fill(dead, 0.0), 0)
    return torch.where(dead, -math.inf, total - constant)
