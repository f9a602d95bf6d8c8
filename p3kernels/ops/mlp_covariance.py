"""`mlp_covariance`: mean and full covariance through a whole MLP."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend
from p3kernels.layered import mlp_covariance as linear
from p3kernels.layered import mlp_unscented as unscented
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.register import Kernels, Operators
from p3kernels.records import MlpCovarianceInputs, MlpCovarianceOutputs

TRANSFORMS = ("linear", "unscented")


def _fake(inputs: MlpCovarianceInputs) -> MlpCovarianceOutputs:
    rows, actions = inputs.mean.shape[0], inputs.weights[-1].shape[0]
    covariance = inputs.mean.new_empty(rows, actions, actions)
    return MlpCovarianceOutputs(inputs.mean.new_empty(rows, actions), covariance)


def _operators(name: str, kernels: ModuleType, *, twice: bool) -> Operators[MlpCovarianceInputs, MlpCovarianceOutputs]:
    return Operators(
        name,
        MlpCovarianceInputs,
        MlpCovarianceOutputs,
        fake=_fake,
        kernels={"cpu": Kernels(kernels.forward, kernels.backward)},
        differentiable=("mean", "var", "weights", "biases"),
        twice=twice,
    )


_OPERATORS = {
    "linear": _operators("mlp_covariance", linear, twice=False),
    "unscented": _operators("mlp_unscented", unscented, twice=True),
}


def _check_directions(directions: Tensor | None, var: Tensor, transform: str) -> None:
    if directions is None:
        return
    if transform != "linear":
        raise ValueError(f"directions: only for transform 'linear', got transform {transform!r}")
    checks.check_tensor("directions", directions, 2)
    checks.check_like("directions", directions, "mean", var)
    if directions.shape[0] != var.shape[1] or directions.shape[1] > var.shape[1]:
        raise ValueError(
            f"directions: expected shape [{var.shape[1]}, K] with K <= {var.shape[1]},"
            f" got {checks.shape_text(directions.shape)}"
        )


@checks.full_precision
def mlp_covariance(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "elu",
    activation_parameter: float | None = None,
    *,
    transform: str = "linear",
    directions: Tensor | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and covariance of an MLP's output for independent inputs x ~ N(mean, var); the last layer is linear.

    "linear": every unit is f = E[f] + E[f′] (x − mean) + a residual, with exact gain and residual variance for a
    Gaussian pre-activation; the covariance is Σ over layers of R diag(residual) Rᵀ, and R diag(var) Rᵀ at the inputs,
    where R [A, H] are the action's rows pushed back through the gains. Means and gains come from variances that keep
    the correlation between units, along `directions` of the inputs.

    "unscented": the network at the 2 J points mean ± √J std ∘ h_j, h_j the rows of an orthogonal matrix. It costs as
    much as a Monte Carlo estimate with 2 J samples: for small J.

    Args:
        mean: [B, I], float32 or float64.
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        transform: "linear" or "unscented".
        directions: [J, K], orthonormal columns, taken as constant; None for all K = J of them, the most exact and for
            many inputs the most expensive.
        backend: None to choose, or "reference", "cpu".

    Returns:
        Mean [B, A] and covariance [B, A, A], differentiable once in every tensor but `directions`.
    """
    chosen = choose_backend(backend, mean, var, weights, biases)
    if chosen in checks.ON_DEVICE:
        if backend is not None:
            raise RuntimeError(
                f"backend={chosen!r} cannot run: mlp_covariance has no kernels for GPUs; use 'reference'"
            )
        chosen = "reference"
    check_linear(mean, var, chosen)
    checks.check_layers(mean.shape[1], "mean", mean, weights, biases, chosen)
    between = resolve_activation(activation, activation_parameter)
    if transform not in TRANSFORMS:
        raise ValueError(f"transform: expected one of {', '.join(TRANSFORMS)}, got {transform!r}")
    _check_directions(directions, var, transform)
    if transform == "unscented" and (chosen == "reference" or var.shape[1] == 0):
        return reference.mlp_unscented(mean, var, weights, biases, between)
    if chosen == "reference":
        return reference.mlp_covariance(mean, var, weights, biases, activation=between, directions=directions)
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    if transform == "linear":
        directions = torch.eye(var.shape[1], dtype=var.dtype) if directions is None else directions.detach()
    inputs = MlpCovarianceInputs(
        mean=mean,
        var=var,
        weights=list(weights),
        biases=present,
        directions=directions,
        activation_code=between.code,
        activation_parameter=between.parameter,
    )
    out = _OPERATORS[transform](chosen, inputs)
    return out.mean, out.covariance
