"""`mlp_mixture_log_prob`: the Monte Carlo likelihood of a latent-conditioned MLP policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend
from p3kernels.cpu import mlp_mixture_log_prob as kernel
from p3kernels.ops.mixture_log_prob import check_action
from p3kernels.reference.latent_noise import SAMPLING, latent_noise


def _problem(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    std: Tensor,
    noise: Tensor | None,
    seed: Tensor,
    num_samples: int,
    sampling: str,
    kind: int,
    parameter: float,
) -> kernel.Problem:
    return kernel.Problem(
        action.contiguous(),
        context,
        latent_mean,
        latent_std,
        weights,
        [bias.contiguous() for bias in biases],
        std.contiguous(),
        noise,
        int(seed),
        num_samples,
        sampling,
        kind,
        parameter,
    )


@torch.library.custom_op("p3kernels::mlp_mixture_log_prob_cpu", mutates_args=(), device_types="cpu")
def mlp_mixture_log_prob_cpu(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    std: Tensor,
    noise: Tensor | None,
    seed: Tensor,
    num_samples: int,
    sampling: str,
    kind: int,
    parameter: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    """[B] and activations for the backward pass; `seed` is a tensor so that drawing one does not break a graph."""
    return kernel.forward(
        _problem(
            action,
            context,
            latent_mean,
            latent_std,
            weights,
            biases,
            std,
            noise,
            seed,
            num_samples,
            sampling,
            kind,
            parameter,
        ),
        save,
    )


@mlp_mixture_log_prob_cpu.register_fake
def _(
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    std: Tensor,
    noise: Tensor | None,
    seed: Tensor,
    num_samples: int,
    sampling: str,
    kind: int,
    parameter: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    kept = kernel.kept_size(action.shape[0], num_samples, weights) if save else 0
    return action.new_empty(action.shape[0]), action.new_empty(kept)


@torch.library.custom_op("p3kernels::mlp_mixture_log_prob_backward_cpu", mutates_args=(), device_types="cpu")
def mlp_mixture_log_prob_backward_cpu(
    d_log_prob: Tensor,
    log_prob: Tensor,
    kept: Tensor,
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    std: Tensor,
    noise: Tensor | None,
    seed: Tensor,
    num_samples: int,
    sampling: str,
    kind: int,
    parameter: float,
    need_noise: bool,
) -> list[Tensor]:
    """[d_action, d_context, d_latent_mean, d_latent_std, d_std, d_noise or empty, *d_weights, *d_biases]."""
    problem = _problem(
        action,
        context,
        latent_mean,
        latent_std,
        weights,
        biases,
        std,
        noise,
        seed,
        num_samples,
        sampling,
        kind,
        parameter,
    )
    d = kernel.backward(problem, log_prob, kept, d_log_prob.contiguous(), need_noise)
    d_noise = action.new_empty(0) if d.noise is None else d.noise
    return [d.action, d.context, d.latent_mean, d.latent_std, d.std, d_noise, *d.weights, *d.biases]


@mlp_mixture_log_prob_backward_cpu.register_fake
def _(
    d_log_prob: Tensor,
    log_prob: Tensor,
    kept: Tensor,
    action: Tensor,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    std: Tensor,
    noise: Tensor | None,
    seed: Tensor,
    num_samples: int,
    sampling: str,
    kind: int,
    parameter: float,
    need_noise: bool,
) -> list[Tensor]:
    d_noise = noise.new_empty(noise.shape) if need_noise and noise is not None else action.new_empty(0)
    inputs = [tensor.new_empty(tensor.shape) for tensor in (action, context, latent_mean, latent_std, std)]
    return [*inputs, d_noise, *(parameter.new_empty(parameter.shape) for parameter in (*weights, *biases))]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    action, context, latent_mean, latent_std, weights, biases, std, noise, seed, *ctx.options, _ = inputs
    ctx.layers = len(weights)
    ctx.has_noise = noise is not None
    ctx.set_materialize_grads(False)  # the kept activations have no gradient
    saved = [*output, action, context, latent_mean, latent_std, std, seed, *weights, *biases]
    ctx.save_for_backward(*saved, *([noise] if noise is not None else []))


def _backward(ctx: Any, d_log_prob: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if d_log_prob is None:
        return (*[None] * 4, [None] * ctx.layers, [None] * ctx.layers, *[None] * 8)
    log_prob, kept, action, context, latent_mean, latent_std, std, seed, *rest = ctx.saved_tensors
    weights, biases = rest[: ctx.layers], rest[ctx.layers : 2 * ctx.layers]
    noise = rest[-1] if ctx.has_noise else None
    need_noise = ctx.has_noise and ctx.needs_input_grad[7]
    d_action, d_context, d_latent_mean, d_latent_std, d_std, d_noise, *d_parameters = (
        torch.ops.p3kernels.mlp_mixture_log_prob_backward_cpu(
            d_log_prob,
            log_prob,
            kept,
            action,
            context,
            latent_mean,
            latent_std,
            weights,
            biases,
            std,
            noise,
            seed,
            *ctx.options,
            need_noise,
        )
    )
    d_weights, d_biases = d_parameters[: ctx.layers], d_parameters[ctx.layers :]
    inputs = (d_action, d_context, d_latent_mean, d_latent_std, d_weights, d_biases, d_std)
    return *inputs, d_noise if need_noise else None, *[None] * 6


mlp_mixture_log_prob_cpu.register_autograd(_backward, setup_context=_setup_context)


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
) -> None:
    check_action(action, std)
    rows = action.shape[0]
    for name, tensor in (("context", context), ("latent_mean", latent_mean), ("latent_std", latent_std)):
        checks.check_tensor(name, tensor, 2)
        checks.check_like(name, tensor, "action", action)
        if tensor.shape[0] != rows:
            raise ValueError(f"{name}: expected {rows} rows, as action has, got {checks.shape_text(tensor.shape)}")
    checks.check_shape("latent_std", latent_std, latent_mean.shape)
    checks.check_values("latent_std", latent_std)
    checks.check_layers(context.shape[1] + latent_mean.shape[1], "action", action, weights, biases)
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
        checks.check_tensor("noise", noise, 3)
        checks.check_like("noise", noise, "action", action)
        checks.check_shape("noise", noise, (num_samples, rows, latent_mean.shape[1]))


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
    activation: str = "elu",
    activation_parameter: float | None = None,
    backend: str | None = None,
) -> Tensor:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²) with z_i ~ N(latent_mean, latent_std²).

    Memory does not grow with N: samples go through the actor in tiles, and the backward pass draws the same samples
    again from the seed. The part of the first layer that sees the context is computed once a row.

    Args:
        action: [B, A], float32 or float64.
        context: [B, C], the actor's deterministic inputs; they come first.
        latent_mean: [B, Z].
        latent_std: [B, Z], ≥ 0.
        weights: The actor's, one [O, I] a layer, I = C + Z in the first.
        biases: One [O] or None a layer.
        std: [A] or [B, A], > 0: the exploration noise.
        num_samples: N ≥ 1.
        seed: Makes the draw repeatable: a Python integer or an int64 tensor of one element. None takes one from
            torch's generator.
        noise: [N, B, Z] to use instead of a draw; then `seed` and `sampling` have no effect.
        sampling: "iid", "antithetic" (second half mirrors the first) or "sobol" (randomised quasi-Monte Carlo).
        activation: "elu", "relu" or "leaky_relu", between layers.
        activation_parameter: ELU's alpha or LeakyReLU's slope; None for torch's default.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Log-likelihood [B], differentiable in every floating-point tensor, the latent distribution included.
    """
    _check(action, context, latent_mean, latent_std, weights, biases, std, num_samples, noise, sampling)
    kind, parameter = resolve_activation(activation, activation_parameter)
    seed_tensor = _seed_tensor(seed, noise)
    if choose_backend(backend, action) == "reference":
        if noise is None:
            rows, columns = latent_mean.shape
            noise = latent_noise(seed_tensor, num_samples, rows, columns, sampling, action.dtype, action.device)
        return reference.mlp_mixture_log_prob(
            action, context, latent_mean, latent_std, weights, biases, std, noise, activation, activation_parameter
        )
    present = [
        weight.new_zeros(weight.shape[0]) if bias is None else bias
        for weight, bias in zip(weights, biases, strict=True)
    ]
    tensors = (action, context, latent_mean, latent_std, std, noise, *weights, *present)
    save = torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)
    log_prob, _ = torch.ops.p3kernels.mlp_mixture_log_prob_cpu(
        action,
        context,
        latent_mean,
        latent_std,
        list(weights),
        present,
        std,
        noise,
        seed_tensor,
        num_samples,
        sampling,
        kind,
        parameter,
        save,
    )
    return log_prob


def _seed_tensor(seed: int | Tensor | None, noise: Tensor | None) -> Tensor:
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.numel() != 1:
            raise TypeError(f"seed: expected one int64, got {seed.numel()} of {seed.dtype}")
        if seed.device.type != "cpu":
            raise ValueError(f"seed: expected a tensor on the cpu, got one on {seed.device}")
        if not torch.compiler.is_compiling() and seed.item() < 0:
            raise ValueError(f"seed: expected 0 <= seed < 2**63, got {seed.item()}")
        return seed
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int | torch.SymInt):
            raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed: expected 0 <= seed < 2**63, got {seed}")
        return torch.full((1,), seed, dtype=torch.int64)
    if noise is not None:
        return torch.zeros(1, dtype=torch.int64)
    return torch.randint(2**62, (1,))
