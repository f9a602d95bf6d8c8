"""What the latent adds to the action according to an estimator's policy."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.estimators.protocol import Policy


def latent_covariance(policy: Policy, action_std: Tensor) -> Tensor:
    """[B, A, A]: the covariance of the action, less that of the exploration; float64. Diagonal, if that is all."""
    found = getattr(policy, "latent_covariance", None)
    if isinstance(found, Tensor):  # as propagated, without a difference of two larger numbers
        return found.double()
    return torch.diag_embed(latent_var(policy, action_std))


def latent_var(policy: Policy, action_std: Tensor) -> Tensor:
    """[B, A]: the variance of the action, less that of the exploration; float64."""
    covariance, var = (getattr(policy, name, None) for name in ("latent_covariance", "latent_var"))
    if isinstance(covariance, Tensor):
        return covariance.double().diagonal(dim1=-2, dim2=-1)
    if isinstance(var, Tensor):
        return var.double()
    return (policy.stddev.double().square() - action_std.double().square()).clamp_min(0.0)


def correlation_of(covariance: Tensor) -> Tensor:
    """[B, A, A] of covariances [B, A, A]; 0 with an action that does not vary, and 1 on the diagonal."""
    std = covariance.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    scale = torch.where(std > 0, 1 / std.clamp_min(1e-300), 0.0)
    correlation = covariance * scale[:, :, None] * scale[:, None, :]
    eye = torch.eye(covariance.shape[-1], dtype=torch.bool, device=covariance.device)
    return torch.where(eye, 1.0, correlation)
