"""Mean and full covariance of an MLP's output, by statistical linearisation. Derivation: docs/derivation.md."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.activations import Activation, activation_by_name
from p3kernels.reference.linearised_activation import linearised_activation

SMALLEST_VAR = 1e-30
"""Under a square root: at variance 0 the gradients are then those of the limit."""


@activation_by_name
def mlp_covariance(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    *,
    activation: Activation,
    directions: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean [B, A] and covariance [B, A, A]; arguments as for `p3kernels.mlp_covariance`.

    Forward: means and variances of every layer's units, the variances with the correlation between units. A unit's
    deviation is `tangents` [B, K, H] · standard normals, plus a rest of variance `rest` [B, H], taken as independent.
    Backward from the actions: rows ∂a/∂unit [B, A, H], to which every layer adds what its linearisation leaves over:
    variances, and of the last hidden layer also the curvature that its units share.
    """
    hidden = len(weights) - 1
    stochastic = [weights[0][:, weights[0].shape[1] - var.shape[1] :], *weights[1:]]
    layers = []
    tangents, rest = var[:, None], var  # the tangents are not used before the first layer has set them
    for layer in range(hidden):
        pre_mean = torch.nn.functional.linear(mean, weights[layer], biases[layer])
        pre_rest = rest @ stochastic[layer].square().t()
        if layer > 0:
            tangents = tangents @ weights[layer].t()
            pre_var = pre_rest + tangents.square().sum(1)
        else:
            pre_var = pre_rest  # independent inputs: exact without any tangent
            tangents = _first_tangents(var, directions) @ stochastic[0].t()  # what is carried on with its correlation
            pre_rest = (pre_var - tangents.square().sum(1)).clamp_min(0) if directions is not None else 0 * pre_var
        units = linearised_activation(pre_mean, pre_var, *activation)
        layers.append(units)
        mean = units.mean
        if layer < hidden - 1:
            tangents = tangents * units.gain[:, None]
            rest = pre_rest * units.gain.square() + units.residual

    rows = weights[-1].expand(mean.shape[0], *weights[-1].shape)
    covariance = mean.new_zeros(mean.shape[0], rows.shape[1], rows.shape[1])
    if hidden > 0:
        covariance = weights[-1] @ _shared_curvature(tangents, layers[-1].curvature) @ weights[-1].t()
    for layer in reversed(range(hidden)):
        covariance = covariance + (rows * layers[layer].residual[:, None]) @ rows.mT
        rows = (rows * layers[layer].gain[:, None]) @ stochastic[layer]
    if hidden == 0:
        rows = rows[:, :, rows.shape[2] - var.shape[1] :]
    covariance = covariance + (rows * var[:, None]) @ rows.mT
    return torch.nn.functional.linear(mean, weights[-1], biases[-1]), covariance


def _first_tangents(var: Tensor, directions: Tensor | None) -> Tensor:
    """[B, K, J]: the inputs' deviation along every direction, or along every input."""
    std = (var + SMALLEST_VAR).sqrt()
    return torch.diag_embed(std) if directions is None else std[:, None] * directions.t()


def _shared_curvature(tangents: Tensor, curvature: Tensor) -> Tensor:
    """[B, H, H]: ½ h_i h_j c_ij² of the units' curvature h [B, H], c from the tangents [B, K, H]; 0 on the diagonal.

    The residuals have the diagonal, with all higher orders.
    """
    bent = curvature[:, :, None] * (tangents.mT @ tangents)
    shared = 0.5 * bent * bent.mT
    return shared - torch.diag_embed(shared.diagonal(dim1=1, dim2=2))


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
