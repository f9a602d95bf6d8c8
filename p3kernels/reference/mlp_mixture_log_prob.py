"""The Monte Carlo likelihood of a latent-conditioned MLP policy: everything expanded over the samples."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.activations import ELU, Activation, activation_by_name
from p3kernels.reference.mixture_log_prob import mixture_log_prob


@activation_by_name
def mlp_mixture_log_prob(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    std: Tensor,
    noise: Tensor,
    *,
    activation: Activation,
) -> Tensor:
    """log (1/N) Σ_i N(action | actor([context, latent_mean + latent_std ∘ noise_i]), std²), noise [N, B, Z] → [B]."""
    code, parameter = activation
    latent = latent_mean + latent_std * noise
    hidden = torch.cat([context.expand(noise.shape[0], *context.shape), latent], -1)
    for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        if layer < len(weights) - 1:
            functional = torch.nn.functional
            hidden = functional.elu(hidden, parameter) if code == ELU else functional.leaky_relu(hidden, parameter)
    return mixture_log_prob(action, hidden, std)
