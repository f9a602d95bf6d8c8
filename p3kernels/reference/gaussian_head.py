"""What PPO asks of a diagonal Gaussian policy: log-likelihood, entropy and KL divergence from the policy of before."""

from __future__ import annotations

import math

from torch import Tensor


def gaussian_head(
    action: Tensor, mean: Tensor, var: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log N(action), H and KL(old ‖ new) of N(mean, var + std²), [B] each; the old policy is taken as constant."""
    total = var + std.square()
    logs = 0.5 * total.log().sum(-1) + 0.5 * math.log(2 * math.pi) * action.shape[-1]
    log_prob = -0.5 * ((action - mean).square() / total).sum(-1) - logs
    excess = (old_std.detach().square() - total) / total
    shift = (old_mean.detach() - mean).square() / total
    return log_prob, logs + 0.5 * action.shape[-1], 0.5 * (excess - excess.log1p() + shift).sum(-1)
