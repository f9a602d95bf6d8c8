"""`mlp_moments`: moments through a whole MLP; its operator also serves `linear_elu_moments`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend
from p3kernels.cpu import mlp_moments as kernel
from p3kernels.ops.linear_moments import check_linear


@torch.library.custom_op("p3kernels::mlp_moments_cpu", mutates_args=(), device_types="cpu")
def mlp_moments_cpu(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
    activate_last: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output moments [B, O] and the pre-activation moments that the backward pass needs, in one buffer."""
    biases = [bias.contiguous() for bias in biases]
    return kernel.forward(mean, var, weights, biases, kind, parameter, activate_last, save)


@mlp_moments_cpu.register_fake
def _(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
    activate_last: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = mean.shape[0]
    hidden = sum(weight.shape[0] for weight in (weights if activate_last else weights[:-1]))
    out = mean.new_empty(rows, weights[-1].shape[0])
    return out, torch.empty_like(out), mean.new_empty(2 * rows * hidden if save else 0)


@torch.library.custom_op("p3kernels::mlp_moments_backward_cpu", mutates_args=(), device_types="cpu")
def mlp_moments_backward_cpu(
    d_out_mean: Tensor,
    d_out_var: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    saved: Tensor,
    kind: int,
    parameter: float,
    activate_last: bool,
    need_mean: bool,
    need_var: bool,
    need_parameters: bool,
) -> list[Tensor]:
    """[d_mean, d_var, *d_weights, *d_biases]; inputs not needed are empty tensors, parameters are left out."""
    d_mean, d_var, d_weights, d_biases = kernel.backward(
        d_out_mean.contiguous(),
        d_out_var.contiguous(),
        mean,
        var,
        weights,
        [bias.contiguous() for bias in biases],
        saved,
        kind,
        parameter,
        activate_last,
        (need_mean, need_var),
        need_parameters,
    )
    return [d_mean, d_var, *d_weights, *d_biases]


@mlp_moments_backward_cpu.register_fake
def _(
    d_out_mean: Tensor,
    d_out_var: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    saved: Tensor,
    kind: int,
    parameter: float,
    activate_last: bool,
    need_mean: bool,
    need_var: bool,
    need_parameters: bool,
) -> list[Tensor]:
    def gradient(like: Tensor, needed: bool) -> Tensor:
        return like.new_empty(like.shape) if needed else like.new_empty(0)

    parameters = [gradient(parameter, True) for parameter in (*weights, *biases)] if need_parameters else []
    return [gradient(mean, need_mean), gradient(var, need_var), *parameters]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    mean, var, weights, biases, ctx.kind, ctx.parameter, ctx.activate_last, _ = inputs
    ctx.layers = len(weights)
    ctx.set_materialize_grads(False)  # the saved buffer has no gradient; zeros of its size would cost a fifth
    ctx.save_for_backward(mean, var, *weights, *biases, output[2])


def _backward(ctx: Any, d_out_mean: Tensor | None, d_out_var: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    mean, var, *parameters, saved = ctx.saved_tensors
    rows, columns = mean.shape[0], parameters[ctx.layers - 1].shape[0]
    d_out_mean = mean.new_zeros(rows, columns) if d_out_mean is None else d_out_mean
    d_out_var = mean.new_zeros(rows, columns) if d_out_var is None else d_out_var
    weights, biases = parameters[: ctx.layers], parameters[ctx.layers :]
    need_mean, need_var, need_weights, need_biases = ctx.needs_input_grad[:4]
    need_parameters = any(need_weights) or any(need_biases)
    d_mean, d_var, *d_parameters = torch.ops.p3kernels.mlp_moments_backward_cpu(
        d_out_mean,
        d_out_var,
        mean,
        var,
        weights,
        biases,
        saved,
        ctx.kind,
        ctx.parameter,
        ctx.activate_last,
        need_mean,
        need_var,
        need_parameters,
    )
    d_weights = d_parameters[: ctx.layers] if need_parameters else [None] * ctx.layers
    d_biases = d_parameters[ctx.layers :] if need_parameters else [None] * ctx.layers
    return d_mean if need_mean else None, d_var if need_var else None, d_weights, d_biases, None, None, None, None


mlp_moments_cpu.register_autograd(_backward, setup_context=_setup_context)


def run_mlp_moments_cpu(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    kind: int,
    parameter: float,
    activate_last: bool,
) -> tuple[Tensor, Tensor]:
    """The operator on checked arguments, saving for backward only where a gradient can be asked for."""
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    differentiable = (mean, var, *weights, *present)
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in differentiable)
    out_mean, out_var, _ = torch.ops.p3kernels.mlp_moments_cpu(
        mean, var, list(weights), present, kind, parameter, activate_last, save
    )
    return out_mean, out_var


@checks.full_precision
def mlp_moments(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    activation: str = "elu",
    activation_parameter: float | None = None,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of an MLP's output for independent inputs x ~ N(mean, var); the last layer is linear.

    Between layers the units are taken as independent Gaussians with the moments computed so far (moment matching).

    Args:
        mean: [B, I], float32 or float64.
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable once in every tensor.
    """
    check_linear(mean, var)
    checks.check_layers(mean.shape[1], "mean", mean, weights, biases)
    kind, parameter = resolve_activation(activation, activation_parameter)
    if choose_backend(backend, mean) == "reference":
        return reference.mlp_moments(mean, var, weights, biases, activation, activation_parameter)
    return run_mlp_moments_cpu(mean, var, weights, biases, kind, parameter, activate_last=False)
