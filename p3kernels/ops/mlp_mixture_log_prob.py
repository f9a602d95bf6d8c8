"""`mlp_mixture_log_prob`: the Monte Carlo likelihood of a latent-conditioned MLP policy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend, in_one_launch
from p3kernels.cuda import mlp_mixture_log_prob as cuda
from p3kernels.layered import mlp_mixture_log_prob as cpu
from p3kernels.ops.latent_noise import check_rows, seed_tensor
from p3kernels.ops.mixture_log_prob import check_action
from p3kernels.ops.mlp_moments import wants_gradient
from p3kernels.ops.second_derivatives import refuse_second_derivatives
from p3kernels.reference.latent_noise import (
    SAMPLING,
    SHIFT_STREAM,
    latent_noise,
    normal,
    shifted_normals,
    sobol_points,
)


class Arguments(NamedTuple):
    """What every operator takes, in the order of `_SCHEMA`; `seed` is a tensor so that drawing one breaks no graph."""

    action: Tensor
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    std: Tensor
    noise: Tensor | None
    seed: Tensor
    rows: Tensor | None
    num_samples: int
    sampling: str
    kind: int
    parameter: float


_SCHEMA = (
    "Tensor action, Tensor context, Tensor latent_mean, Tensor latent_std, Tensor[] weights, Tensor[] biases, "
    "Tensor std, Tensor? noise, Tensor seed, Tensor? rows, SymInt num_samples, str sampling, SymInt kind, "
    "float parameter"
)


class Gradients(Protocol):
    """The gradient of every differentiable input, as the kernels return them."""

    action: Tensor
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    std: Tensor
    noise: Tensor | None


def _cpu_problem(a: Arguments) -> cpu.Problem:
    return cpu.Problem(
        a.action.contiguous(),
        *a[1:5],
        [bias.contiguous() for bias in a.biases],
        a.std.contiguous(),
        a.noise,
        a.seed,
        a.rows,
        *a[10:],
    )


def _cpu_forward(a: Arguments, save: bool) -> tuple[Tensor, Tensor]:
    return cpu.forward(_cpu_problem(a), save)


def _cpu_backward(a: Arguments, log_prob: Tensor, kept: Tensor, d_log_prob: Tensor, need_noise: bool) -> Gradients:
    return cpu.backward(_cpu_problem(a), log_prob, kept, d_log_prob, need_noise)


def _cpu_kept(a: Arguments) -> int:
    return cpu.kept_size(a.action.shape[0], a.num_samples, a.weights)


def _triton_problem(a: Arguments, precision: str) -> Any:
    from triton_kernels import mlp_mixture_log_prob as kernel  # noqa: PLC0415  triton is not imported with the package

    device = a.action.device
    # Filled on the device: no copy from the host that a CUDA graph could not capture.
    seed = a.seed if a.seed.device == device else torch.full((1,), int(a.seed), device=device)
    drawn_outside = a.noise is None and a.sampling == "sobol" and a.latent_mean.shape[1] > 0
    return kernel.Problem(
        a.action.contiguous(),
        a.context,
        a.latent_mean.contiguous(),
        a.latent_std.contiguous(),
        a.weights,
        [bias.contiguous() for bias in a.biases],
        a.std.contiguous(),
        a.noise,
        _sobol_noise(a) if drawn_outside else None,
        seed,
        a.rows,
        a.num_samples,
        a.sampling == "antithetic",
        a.kind,
        a.parameter,
        precision,
    )


def _sobol_noise(a: Arguments) -> Callable[[int, int, int, int], Tensor]:
    """Noise [n, R, Z] of a tile (first sample, end, first row, end), by torch: its tails need float64."""
    batch, columns = a.latent_mean.shape
    device = a.action.device
    points = sobol_points(a.seed, a.num_samples, columns).to(device)[:, None]
    shift = normal(a.seed.to(device), SHIFT_STREAM, 1, batch if a.rows is None else a.rows, columns, device)

    def tile(first: int, last: int, begin: int, end: int) -> Tensor:
        return shifted_normals(points[first:last], shift[:, begin:end]).float()

    return tile


def _triton_forward(a: Arguments, save: bool, precision: str) -> tuple[Tensor, Tensor]:
    from triton_kernels import mlp_mixture_log_prob as kernel  # noqa: PLC0415

    log_prob = kernel.forward(_triton_problem(a, precision))
    return log_prob, torch.empty_like(log_prob[:0])


def _triton_backward(
    a: Arguments, log_prob: Tensor, kept: Tensor, d_log_prob: Tensor, need_noise: bool, precision: str
) -> Gradients:
    from triton_kernels import mlp_mixture_log_prob as kernel  # noqa: PLC0415

    return kernel.backward(_triton_problem(a, precision), log_prob, d_log_prob, need_noise)


def _cuda_forward(a: Arguments, save: bool) -> tuple[Tensor, Tensor]:
    log_prob = cuda.forward(a)
    return log_prob, torch.empty_like(log_prob[:0])


def _cuda_backward(a: Arguments, log_prob: Tensor, kept: Tensor, d_log_prob: Tensor, need_noise: bool) -> Gradients:
    return cuda.backward(a, log_prob, d_log_prob, need_noise)


def _register(
    backend: str,
    forward: Callable[..., tuple[Tensor, Tensor]],
    backward: Callable[..., Gradients],
    kept_size: Callable[[Arguments], int],
    options: str = "",
) -> None:
    """The two operators of a backend: schema, fake tensors and autograd are the same for all.

    The forward one returns [B] and what it keeps for the backward pass, the backward one [d_action, d_context,
    d_latent_mean, d_latent_std, d_std, d_noise or empty, *d_weights, *d_biases]. `options` are in the schema what only
    this backend takes, last.
    """
    operator = functools.partial(
        torch.library.custom_op, mutates_args=(), device_types="cpu" if backend == "cpu" else None
    )
    count = len(Arguments._fields)

    def forward_op(*inputs: Any) -> tuple[Tensor, Tensor]:
        return forward(Arguments(*inputs[:count]), *inputs[count:])

    def forward_fake(*inputs: Any) -> tuple[Tensor, Tensor]:
        a = Arguments(*inputs[:count])
        out = a.action.new_empty(a.action.shape[0], dtype=torch.promote_types(a.action.dtype, torch.float32))
        return out, out.new_empty(kept_size(a) if inputs[count] else 0)

    def backward_op(d_log_prob: Tensor, log_prob: Tensor, kept: Tensor, *inputs: Any) -> list[Tensor]:
        a = Arguments(*inputs[:count])
        d = backward(a, log_prob, kept, d_log_prob.contiguous(), *inputs[count:])
        d_noise = a.action.new_empty(0) if d.noise is None else d.noise
        return [d.action, d.context, d.latent_mean, d.latent_std, d.std, d_noise, *d.weights, *d.biases]

    def backward_fake(d_log_prob: Tensor, log_prob: Tensor, kept: Tensor, *inputs: Any) -> list[Tensor]:
        a = Arguments(*inputs[:count])
        d_noise = a.noise.new_empty(a.noise.shape) if inputs[count] and a.noise is not None else a.action.new_empty(0)
        like = [tensor.new_empty(tensor.shape) for tensor in (a.action, a.context, a.latent_mean, a.latent_std, a.std)]
        return [*like, d_noise, *(parameter.new_empty(parameter.shape) for parameter in (*a.weights, *a.biases))]

    forward_def = operator(
        f"p3kernels::mlp_mixture_log_prob_{backend}",
        schema=f"({_SCHEMA}, bool save{options}) -> (Tensor, Tensor)",
    )(forward_op)
    forward_def.register_fake(forward_fake)
    backward_def = operator(
        f"p3kernels::mlp_mixture_log_prob_backward_{backend}",
        schema=f"(Tensor d_log_prob, Tensor log_prob, Tensor kept, {_SCHEMA}, bool need_noise{options}) -> Tensor[]",
    )(backward_op)
    backward_def.register_fake(backward_fake)

    def differentiate(ctx: Any, d_log_prob: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
        if d_log_prob is None:
            return (*[None] * 4, [None] * ctx.layers, [None] * ctx.layers, *[None] * (4 + len(ctx.options)))
        log_prob, kept, action, context, latent_mean, latent_std, std, noise, seed, rows, *rest = ctx.saved_tensors
        weights, biases = rest[: ctx.layers], rest[ctx.layers :]
        need_noise = noise is not None and ctx.needs_input_grad[7]
        numbers, own = ctx.options[:4], ctx.options[5:]  # `save` is between them
        inputs = Arguments(action, context, latent_mean, latent_std, weights, biases, std, noise, seed, rows, *numbers)
        d_action, d_context, d_latent_mean, d_latent_std, d_std, d_noise, *d_parameters = backward_def(
            d_log_prob, log_prob, kept, *inputs, need_noise, *own
        )
        d_weights, d_biases = d_parameters[: ctx.layers], d_parameters[ctx.layers :]
        gradients = (d_action, d_context, d_latent_mean, d_latent_std, d_weights, d_biases, d_std)
        return *gradients, d_noise if need_noise else None, *[None] * (2 + len(ctx.options))

    forward_def.register_autograd(differentiate, setup_context=_setup_context)
    refuse_second_derivatives(backward_def, backend)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    action, context, latent_mean, latent_std, weights, biases, std, noise, seed, rows, *ctx.options = inputs
    ctx.layers = len(weights)
    ctx.set_materialize_grads(False)  # the kept activations have no gradient
    ctx.save_for_backward(*output, action, context, latent_mean, latent_std, std, noise, seed, rows, *weights, *biases)


_register("cpu", _cpu_forward, _cpu_backward, _cpu_kept)
_register("cuda", _cuda_forward, _cuda_backward, lambda a: 0)
_register("triton", _triton_forward, _triton_backward, lambda a: 0, options=", str precision")


def _check(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    std: Tensor,
    num_samples: int,
    noise: Tensor | None,
    sampling: str,
    rows: Tensor | None,
    backend: str,
) -> None:
    check_action(action, std, backend)
    batch = action.shape[0]
    for name, tensor in (("context", context), ("latent_mean", latent_mean), ("latent_std", latent_std)):
        checks.check_tensor(name, tensor, 2, backend)
        checks.check_like(name, tensor, "action", action, backend)
        if tensor.shape[0] != batch:
            raise ValueError(f"{name}: expected {batch} rows, as action has, got {checks.shape_text(tensor.shape)}")
    checks.check_shape("latent_std", latent_std, latent_mean.shape)
    checks.check_values("latent_std", latent_std)
    checks.check_layers(context.shape[1] + latent_mean.shape[1], "action", action, weights, biases, backend)
    if weights[-1].shape[0] != action.shape[1]:
        raise ValueError(
            f"weights[{len(weights) - 1}]: expected {action.shape[1]} rows, one an action, "
            f"got shape {checks.shape_text(weights[-1].shape)}"
        )
    if isinstance(num_samples, bool) or not isinstance(num_samples, int | torch.SymInt) or num_samples < 1:
        raise ValueError(f"num_samples: expected an integer >= 1, got {num_samples!r}")
    if sampling not in SAMPLING:
        raise ValueError(f"sampling: expected one of {', '.join(SAMPLING)}, got {sampling!r}")
    if noise is not None:
        checks.check_tensor("noise", noise, 3, backend)
        checks.check_like("noise", noise, "action", action, backend)
        checks.check_shape("noise", noise, (num_samples, batch, latent_mean.shape[1]))
    if rows is not None:
        check_rows(rows, "action", action)
        if noise is not None:
            raise ValueError("rows: expected None beside noise, which is given row by row; rows number those of a draw")


@checks.full_precision
def mlp_mixture_log_prob(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    std: Tensor,
    *,
    num_samples: int,
    seed: int | Tensor | None = None,
    noise: Tensor | None = None,
    sampling: str = "iid",
    rows: Tensor | None = None,
    activation: str = "elu",
    activation_parameter: float | None = None,
    precision: str | None = None,
    backend: str | None = None,
) -> Tensor:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²) with z_i ~ N(latent_mean, latent_std²).

    Memory does not grow with N: samples go through the actor in tiles, and the backward pass draws the same samples
    again from the seed. The part of the first layer that sees the context is computed once a row.

    Args:
        action: [B, A], float32 or float64; on the backends for GPUs float32 or bfloat16, also mixed.
        context: [B, C], the actor's deterministic inputs; they come first.
        latent_mean: [B, Z].
        latent_std: [B, Z], ≥ 0.
        weights: The actor's, one [O, I] a layer, I = C + Z in the first.
        biases: One [O] or None a layer.
        std: [A] or [B, A], > 0: the exploration noise.
        num_samples: N ≥ 1.
        seed: Makes the draw repeatable: a Python integer or an int64 tensor of one element, on the CPU; on the
            backends for GPUs also on the device ("sobol" apart), where a captured CUDA graph reads it anew at every
            replay. None takes one from torch's generator.
        noise: [N, B, Z] to use instead of a draw; then `seed` and `sampling` have no effect, and `rows` must be None.
        sampling: "iid", "antithetic" (second half mirrors the first) or "sobol" (randomised quasi-Monte Carlo).
        rows: int64 [B], ≥ 0: the number of each row's noise stream; None numbers the rows by their place in the batch.
            The noise of a row depends on the seed and its number alone, so rows that are shuffled, split or repeated
            draw again what they drew before. On a GPU only P3_CHECK_VALUES=1 looks for negative ones.
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        precision: Of the Triton backend's matrix products: "ieee", "tf32x3", "tf32" or "bf16"; None follows
            `torch.get_float32_matmul_precision()`.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Log-likelihood [B], differentiable in every floating-point tensor, the latent distribution included.
    """
    chosen = choose_backend(backend, action, context, latent_mean, latent_std, weights, biases, std, noise, rows, seed)
    precision = checks.dot_precision(precision, chosen)
    _check(action, context, latent_mean, latent_std, weights, biases, std, num_samples, noise, sampling, rows, chosen)
    kind, parameter = resolve_activation(activation, activation_parameter)
    on_device = chosen in checks.ON_DEVICE and sampling != "sobol"
    drawn_from = seed_tensor(seed, noise, action.device if on_device else torch.device("cpu"))
    if chosen == "reference":
        if noise is None:
            batch, columns = latent_mean.shape
            numbers = batch if rows is None else rows
            noise = latent_noise(drawn_from, num_samples, numbers, columns, sampling, action.dtype, action.device)
        return reference.mlp_mixture_log_prob(
            action, context, latent_mean, latent_std, weights, biases, std, noise, activation, activation_parameter
        )
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    tensors = (action, context, latent_mean, latent_std, std, noise, *weights, *present)
    save = wants_gradient(*tensors)
    arguments = Arguments(
        action,
        context,
        latent_mean,
        latent_std,
        list(weights),
        present,
        std,
        noise,
        drawn_from,
        None if rows is None else rows.contiguous(),
        num_samples,
        sampling,
        kind,
        parameter,
    )
    chosen = in_one_launch(chosen, backend, lambda: precision == "ieee" and not save and cuda.in_one_launch(arguments))
    if chosen == "triton":
        return torch.ops.p3kernels.mlp_mixture_log_prob_triton(*arguments, save, precision)[0]
    if chosen == "cuda":
        return torch.ops.p3kernels.mlp_mixture_log_prob_cuda(*arguments, save)[0]
    return torch.ops.p3kernels.mlp_mixture_log_prob_cpu(*arguments, save)[0]
