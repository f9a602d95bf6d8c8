"""Mean and full covariance of an MLP's output, by statistical linearisation. Derivation: docs/derivation.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.activations import resolve_activation
from p3kernels.reference.linearised_activation import linearised_activation

SMALLEST_VAR = 1e-30
"""Under a square root: at variance 0 the gradients are then those of the limit."""


def mlp_covariance(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "elu",
    activation_parameter: float | None = None,
    directions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean [B, A] and covariance [B, A, A]; arguments as for `p3kernels.mlp_covariance`.

    Forward: means and variances of every layer's units, the variances with the correlation between units. A unit's
    deviation is `tangents` [B, K, H] · standard normals, plus a rest of variance `rest` [B, H], taken as independent.
    Backward from the actions: rows ∂a/∂unit [B, A, H], to which every layer adds what its linearisation leaves over.
    """
    kind, parameter = resolve_activation(activation, activation_parameter)
    hidden = len(weights) - 1
    stochastic = [weights[0][:, weights[0].shape[1] - var.shape[1] :], *weights[1:]]
    gains, residuals = [], []
    tangents, rest = var[:, None], var  # neither is used before the first layer has set it
    for layer in range(hidden):
        pre_mean = torch.nn.functional.linear(mean, weights[layer], biases[layer])
        pre_rest = rest @ stochastic[layer].square().t()
        if layer > 0:
            tangents = tangents @ weights[layer].t()
            pre_var = pre_rest + tangents.square().sum(1)
        else:
            pre_var = pre_rest  # independent inputs: exact without any tangent
            if hidden > 1:  # what of it is carried on with its correlation
                tangents = _first_tangents(var, directions) @ stochastic[0].t()
                pre_rest = (pre_var - tangents.square().sum(1)).clamp_min(0) if directions is not None else 0 * pre_var
        mean, gain, residual = linearised_activation(pre_mean, pre_var, kind, parameter)
        tangents = tangents * gain[:, None] if hidden > 1 else tangents
        rest = pre_rest * gain.square() + residual
        gains.append(gain)
        residuals.append(residual)

    rows = weights[-1].expand(mean.shape[0], *weights[-1].shape)
    covariance = mean.new_zeros(mean.shape[0], rows.shape[1], rows.shape[1])
    for layer in reversed(range(hidden)):
        covariance = covariance + (rows * residuals[layer][:, None]) @ rows.mT
        rows = (rows * gains[layer][:, None]) @ stochastic[layer]
    if hidden == 0:
        rows = rows[:, :, rows.shape[2] - var.shape[1] :]
    covariance = covariance + (rows * var[:, None]) @ rows.mT
    return torch.nn.functional.linear(mean, weights[-1], biases[-1]), covariance


def _first_tangents(var: Tensor, directions: Tensor | None) -> Tensor:
    """[B, K, J]: the inputs' deviation along every direction, or along every input."""
    std = (var + SMALLEST_VAR).sqrt()
    return torch.diag_embed(std) if directions is None else std[:, None] * directions.t()


def latent_directions(weights: Sequence[Tensor], stochastic: int, rank: int) -> Tensor | None:
    """[J, K]: orthonormal directions of the last J inputs that reach the second hidden layer most strongly.

    The right singular vectors of its weights' product with the first layer's; without gradient. None where K ≥ J, or
    where there are no two hidden layers: then every direction is to be kept, or none is needed.
    """
    if rank >= stochastic or len(weights) < 3:
        return None
    with torch.no_grad():
        product = weights[1] @ weights[0][:, weights[0].shape[1] - stochastic :]
        _, vectors = torch.linalg.eigh((product.t() @ product).double())
        return vectors[:, stochastic - rank :].to(product.dtype)
