"""`mlp_moments`: moments through a whole MLP; its operators also serve `linear_elu_moments`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend, in_one_launch
from p3kernels.cuda import mlp_moments as cuda_kernel
from p3kernels.layered import mlp_moments as cpu_kernel
from p3kernels.ops.activation_moments import result_dtype, triton_launcher
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.second_derivatives import refuse_second_derivatives


def define_operators(
    backend: str, device_types: str | None, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Any:
    """Registers p3kernels::mlp_moments_<backend> and its backward, with shapes and autograd; returns the first.

    Args:
        backend: The last part of the names.
        device_types: What the kernels run on, None for any device.
        forward: The operator's arguments → out_mean, out_var, saved.
        backward: Its backward's arguments, need_mean and need_var as a pair → d_mean, d_var, d_weights, d_biases.
    """

    @torch.library.custom_op(f"p3kernels::mlp_moments_{backend}", mutates_args=(), device_types=device_types)
    def operator(
        mean: Tensor,
        var: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        kind: int,
        parameter: float,
        activate_last: bool,
        save: bool,
        precision: str = "ieee",
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output moments [B, O] and the pre-activation moments that the backward pass needs, in one buffer."""
        return forward(mean, var, weights, biases, kind, parameter, activate_last, save, precision)

    @operator.register_fake
    def _(
        mean: Tensor,
        var: Tensor,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor],
        kind: int,
        parameter: float,
        activate_last: bool,
        save: bool,
        precision: str = "ieee",
    ) -> tuple[Tensor, Tensor, Tensor]:
        rows, dtype = mean.shape[0], result_dtype(mean)
        hidden = sum(weight.shape[0] for weight in (weights if activate_last else weights[:-1]))
        out = mean.new_empty(rows, weights[-1].shape[0], dtype=dtype)
        return out, torch.empty_like(out), mean.new_empty(2 * rows * hidden if save else 0, dtype=dtype)

    @torch.library.custom_op(f"p3kernels::mlp_moments_backward_{backend}", mutates_args=(), device_types=device_types)
    def operator_backward(
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
        precision: str = "ieee",
    ) -> list[Tensor]:
        """[d_mean, d_var, *d_weights, *d_biases]; inputs not needed are empty tensors, parameters are left out."""
        d_mean, d_var, d_weights, d_biases = backward(
            d_out_mean,
            d_out_var,
            mean,
            var,
            weights,
            biases,
            saved,
            kind,
            parameter,
            activate_last,
            (need_mean, need_var),
            need_parameters,
            precision,
        )
        return [d_mean, d_var, *d_weights, *d_biases]

    @operator_backward.register_fake
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
        precision: str = "ieee",
    ) -> list[Tensor]:
        def gradient(like: Tensor, needed: bool) -> Tensor:
            return like.new_empty(like.shape) if needed else like.new_empty(0)

        parameters = [gradient(parameter, True) for parameter in (*weights, *biases)] if need_parameters else []
        return [gradient(mean, need_mean), gradient(var, need_var), *parameters]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        mean, var, weights, biases, ctx.kind, ctx.parameter, ctx.activate_last, _, ctx.precision = inputs
        ctx.layers = len(weights)
        ctx.set_materialize_grads(False)  # the saved buffer has no gradient; zeros of its size would cost a fifth
        ctx.save_for_backward(mean, var, *weights, *biases, output[2])

    def differentiate(
        ctx: Any, d_out_mean: Tensor | None, d_out_var: Tensor | None, _: Tensor | None
    ) -> tuple[Any, ...]:
        mean, var, *parameters, saved = ctx.saved_tensors
        weights, biases = parameters[: ctx.layers], parameters[ctx.layers :]
        zero = saved.new_zeros(mean.shape[0], weights[-1].shape[0]) if d_out_mean is None or d_out_var is None else None
        need_mean, need_var, need_weights, need_biases = ctx.needs_input_grad[:4]
        need_parameters = any(need_weights) or any(need_biases)
        d_mean, d_var, *d_parameters = operator_backward(
            zero if d_out_mean is None else d_out_mean,
            zero if d_out_var is None else d_out_var,
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
            ctx.precision,
        )
        d_weights = d_parameters[: ctx.layers] if need_parameters else [None] * ctx.layers
        d_biases = d_parameters[ctx.layers :] if need_parameters else [None] * ctx.layers
        rest = [None] * (len(ctx.needs_input_grad) - 4)  # torch leaves out an argument that has its default
        return d_mean if need_mean else None, d_var if need_var else None, d_weights, d_biases, *rest

    operator.register_autograd(differentiate, setup_context=setup_context)
    refuse_second_derivatives(operator_backward, backend)
    return operator


def _cpu_forward(mean: Tensor, var: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor], *rest: Any) -> Any:
    return cpu_kernel.forward(mean, var, weights, [bias.contiguous() for bias in biases], *rest[:-1])


def _cpu_backward(
    d_out_mean: Tensor,
    d_out_var: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    *rest: Any,
) -> Any:
    biases = [bias.contiguous() for bias in biases]
    return cpu_kernel.backward(d_out_mean.contiguous(), d_out_var.contiguous(), mean, var, weights, biases, *rest[:-1])


_OPERATORS = {
    "cpu": define_operators("cpu", "cpu", _cpu_forward, _cpu_backward),
    "cuda": define_operators("cuda", None, cuda_kernel.forward, cuda_kernel.backward),
    "triton": define_operators(
        "triton", None, triton_launcher("mlp_moments", "forward"), triton_launcher("mlp_moments", "backward")
    ),
}


def wants_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient of any of these can be asked for."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def run_mlp_moments(
    backend: str,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    kind: int,
    parameter: float,
    activate_last: bool,
    precision: str,
) -> tuple[Tensor, Tensor]:
    """The operator of a backend on checked arguments, saving for backward only where a gradient can be asked for."""
    # The kernels for GPUs take a bias of no elements for none; filling zeros would be a launch a layer.
    absent = 0 if backend in checks.ON_DEVICE else 1
    present = [
        weight.new_zeros(absent * weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    save = wants_gradient(mean, var, *weights, *present)
    out_mean, out_var, _ = _OPERATORS[backend](
        mean, var, list(weights), present, kind, float(parameter), activate_last, save, precision
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
    precision: str | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of an MLP's output for independent inputs x ~ N(mean, var); the last layer is linear.

    Between layers the units are taken as independent Gaussians with the moments computed so far (moment matching).

    Args:
        mean: [B, I], float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weights: One [O, I] a layer.
        biases: One [O] or None a layer.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        precision: Of the triton backend's products: "ieee", "tf32x3", "tf32" or "bf16" (`triton_kernels/dot.py` has the
            error of each); None follows `torch.set_float32_matmul_precision`.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable in every tensor, twice on the reference backend.
    """
    chosen = choose_backend(backend, mean, var, weights, biases)
    check_linear(mean, var, chosen)
    checks.check_layers(mean.shape[1], "mean", mean, weights, biases, chosen)
    kind, parameter = resolve_activation(activation, activation_parameter)
    dots = checks.dot_precision(precision, chosen)
    if chosen == "reference":
        return reference.mlp_moments(mean, var, weights, biases, activation, activation_parameter)

    def one_launch() -> bool:
        exact = dots == "ieee" and not wants_gradient(mean, var, *weights, *biases)
        return exact and cuda_kernel.in_one_launch(mean, weights)

    chosen = in_one_launch(chosen, backend, one_launch)
    return run_mlp_moments(chosen, mean, var, weights, biases, kind, parameter, False, dots)
