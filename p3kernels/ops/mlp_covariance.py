"""`mlp_covariance`: mean and full covariance through a whole MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend
from p3kernels.layered import mlp_covariance as cpu_kernel
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.mlp_unscented import run_mlp_unscented
from p3kernels.ops.second_derivatives import refuse_second_derivatives

TRANSFORMS = ("linear", "unscented")


@torch.library.custom_op("p3kernels::mlp_covariance_cpu", mutates_args=(), device_types="cpu")
def _operator(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    directions: Tensor,
    kind: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    """Mean [B, A] and covariance [B, A, A]; `directions` [J, K] has no gradient."""
    contiguous = [bias.contiguous() for bias in biases]
    return cpu_kernel.forward(mean, var, weights, contiguous, directions, kind, parameter)


@_operator.register_fake
def _(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    directions: Tensor,
    kind: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    rows, actions = mean.shape[0], weights[-1].shape[0]
    return mean.new_empty(rows, actions), mean.new_empty(rows, actions, actions)


@torch.library.custom_op("p3kernels::mlp_covariance_backward_cpu", mutates_args=(), device_types="cpu")
def _operator_backward(
    d_out_mean: Tensor,
    d_covariance: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    directions: Tensor,
    kind: int,
    parameter: float,
) -> list[Tensor]:
    """[d_mean, d_var, *d_weights, *d_biases]."""
    contiguous = [bias.contiguous() for bias in biases]
    d_mean, d_var, d_weights, d_biases = cpu_kernel.backward(
        d_out_mean, d_covariance, mean, var, weights, contiguous, directions, kind, parameter
    )
    return [d_mean, d_var, *d_weights, *d_biases]


@_operator_backward.register_fake
def _(
    d_out_mean: Tensor,
    d_covariance: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    directions: Tensor,
    kind: int,
    parameter: float,
) -> list[Tensor]:
    return [tensor.new_empty(tensor.shape) for tensor in (mean, var, *weights, *biases)]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    mean, var, weights, biases, directions, ctx.kind, ctx.parameter = inputs
    ctx.layers = len(weights)
    ctx.save_for_backward(mean, var, directions, *weights, *biases)


def _differentiate(ctx: Any, d_out_mean: Tensor, d_covariance: Tensor) -> tuple[Any, ...]:
    mean, var, directions, *parameters = ctx.saved_tensors
    layers = ctx.layers
    d_mean, d_var, *d_parameters = _operator_backward(
        d_out_mean,
        d_covariance,
        mean,
        var,
        parameters[:layers],
        parameters[layers:],
        directions,
        ctx.kind,
        ctx.parameter,
    )
    return d_mean, d_var, d_parameters[:layers], d_parameters[layers:], None, None, None


_operator.register_autograd(_differentiate, setup_context=_setup_context)
refuse_second_derivatives(_operator_backward, "cpu", reference_has_them=False)


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
    kind, parameter = resolve_activation(activation, activation_parameter)
    if transform not in TRANSFORMS:
        raise ValueError(f"transform: expected one of {', '.join(TRANSFORMS)}, got {transform!r}")
    _check_directions(directions, var, transform)
    layers = (weights, biases, activation, activation_parameter)
    if transform == "unscented" and (chosen == "reference" or var.shape[1] == 0):
        return reference.mlp_unscented(mean, var, *layers)
    if chosen == "reference":
        return reference.mlp_covariance(mean, var, *layers, directions)
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    if transform == "unscented":
        return run_mlp_unscented(mean, var, list(weights), present, kind, parameter)
    every = torch.eye(var.shape[1], dtype=var.dtype) if directions is None else directions.detach()
    return _operator(mean, var, list(weights), present, every, kind, parameter)
