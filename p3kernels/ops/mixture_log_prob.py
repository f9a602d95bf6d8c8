"""`mixture_log_prob`: likelihood of an action under a mixture of Gaussians."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.library import CustomOpDef

from p3kernels import checks, reference
from p3kernels.backends import choose_backend
from p3kernels.cpu import native
from p3kernels.cuda import native as cuda_native
from p3kernels.ops.second_derivatives import refuse_second_derivatives


@torch.library.custom_op("p3kernels::mixture_log_prob_cpu", mutates_args=(), device_types="cpu")
def mixture_log_prob_cpu(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """[B, A], [N, B, A], [A] | [B, A] → [B]."""
    log_sum = action.new_empty(action.shape[0])
    native.mixture_forward(action.contiguous(), means.contiguous(), std.contiguous(), log_sum)
    return log_sum.sub_(math.log(means.shape[0]))


@torch.library.custom_op("p3kernels::mixture_log_prob_backward_cpu", mutates_args=(), device_types="cpu")
def mixture_log_prob_backward_cpu(
    d_log_prob: Tensor, log_prob: Tensor, action: Tensor, means: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d_action [B, A], d_means [N, B, A], d_std of the shape of std."""
    action, means, std = action.contiguous(), means.contiguous(), std.contiguous()
    d_action, d_std = torch.zeros_like(action), torch.zeros_like(action)
    d_means = torch.empty_like(means)
    log_sum = log_prob + math.log(means.shape[0])
    native.mixture_backward(action, means, std, log_sum, d_log_prob.contiguous(), d_means, d_action, d_std)
    return d_action, d_means, d_std if std.dim() == 2 else d_std.sum(0)


@torch.library.custom_op("p3kernels::mixture_log_prob_triton", mutates_args=())
def mixture_log_prob_triton(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """[B, A], [N, B, A], [A] | [B, A] → [B], float32."""
    from triton_kernels import mixture_log_prob as kernel  # noqa: PLC0415  triton is not imported with the package

    return kernel.forward(action, means, std)


@torch.library.custom_op("p3kernels::mixture_log_prob_backward_triton", mutates_args=())
def mixture_log_prob_backward_triton(
    d_log_prob: Tensor, log_prob: Tensor, action: Tensor, means: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d_action [B, A], d_means [N, B, A], d_std of the shape of std, each in its input's dtype."""
    from triton_kernels import mixture_log_prob as kernel  # noqa: PLC0415

    return kernel.backward(d_log_prob, log_prob, action, means, std)


@torch.library.custom_op("p3kernels::mixture_log_prob_cuda", mutates_args=())
def mixture_log_prob_cuda(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """[B, A], [N, B, A], [A] | [B, A] → [B], float32."""
    log_prob = torch.empty(action.shape[0], dtype=torch.float32, device=action.device)
    offset = math.log(means.shape[0])
    cuda_native.mixture_forward(action.contiguous(), means.contiguous(), std.contiguous(), log_prob, offset)
    return log_prob


@torch.library.custom_op("p3kernels::mixture_log_prob_backward_cuda", mutates_args=())
def mixture_log_prob_backward_cuda(
    d_log_prob: Tensor, log_prob: Tensor, action: Tensor, means: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """d_action [B, A], d_means [N, B, A], d_std of the shape of std, each in its input's dtype."""
    action, means, std = action.contiguous(), means.contiguous(), std.contiguous()
    d_action = torch.empty(action.shape, dtype=torch.float32, device=action.device)
    d_std, d_means = torch.empty_like(d_action), torch.empty_like(means)
    offset = math.log(means.shape[0])
    incoming = (log_prob, d_log_prob.contiguous())
    cuda_native.mixture_backward(action, means, std, *incoming, d_means, d_action, d_std, offset, add=False)
    d_std = d_std if std.dim() == 2 else d_std.sum(0)
    return d_action.to(action.dtype), d_means, d_std.to(std.dtype)


def _fake(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    return action.new_empty(action.shape[0], dtype=torch.promote_types(action.dtype, torch.float32))


def _fake_backward(
    d_log_prob: Tensor, log_prob: Tensor, action: Tensor, means: Tensor, std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    like = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in (action, means, std)]
    return like[0], like[1], like[2]


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs)


def _register(backend: str, forward: CustomOpDef, backward: CustomOpDef) -> None:
    """Fake tensors and autograd, the same for every backend."""

    def differentiate(ctx: Any, d_log_prob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return backward(d_log_prob, *ctx.saved_tensors)

    forward.register_fake(_fake)
    backward.register_fake(_fake_backward)
    forward.register_autograd(differentiate, setup_context=_setup_context)
    refuse_second_derivatives(backward, backend)


_register("cpu", mixture_log_prob_cpu, mixture_log_prob_backward_cpu)
_register("triton", mixture_log_prob_triton, mixture_log_prob_backward_triton)
_register("cuda", mixture_log_prob_cuda, mixture_log_prob_backward_cuda)


def check_action(action: Tensor, std: Tensor, backend: str = "reference") -> None:
    """action [B, A], std [A] or [B, A], A ≥ 1."""
    checks.check_tensor("action", action, 2, backend)
    checks.check_tensor("std", std, backend=backend)
    checks.check_like("std", std, "action", action, backend)
    if action.shape[1] == 0:
        raise ValueError(f"action: expected at least one column, got shape {checks.shape_text(action.shape)}")
    if tuple(std.shape) not in ((action.shape[1],), tuple(action.shape)):
        raise ValueError(
            f"std: expected shape [{action.shape[1]}] or {checks.shape_text(action.shape)}, "
            f"got {checks.shape_text(std.shape)}"
        )
    checks.check_values("std", std)


@checks.full_precision
def mixture_log_prob(action: Tensor, means: Tensor, std: Tensor, *, backend: str | None = None) -> Tensor:
    """log (1/N) Σ_i N(action | means_i, std²), with a running maximum; nothing of size [N, B, A] is allocated.

    A row in which every sample's likelihood is 0 gives −inf, with gradient 0.

    Args:
        action: [B, A], float32 or float64; on the backends for GPUs float32 or bfloat16, also mixed.
        means: [N, B, A], N ≥ 1.
        std: [A] or [B, A], > 0.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Log-likelihood [B], differentiable in every tensor (twice on the reference backend).
    """
    chosen = choose_backend(backend, action, means, std)
    check_action(action, std, chosen)
    checks.check_tensor("means", means, 3, chosen)
    checks.check_like("means", means, "action", action, chosen)
    if means.shape[0] == 0:
        raise ValueError(f"means: expected at least one sample, got shape {checks.shape_text(means.shape)}")
    checks.check_shape("means", means, (means.shape[0], *action.shape))
    if chosen == "reference":
        return reference.mixture_log_prob(action, means, std)
    operators = {"cpu": mixture_log_prob_cpu, "triton": mixture_log_prob_triton, "cuda": mixture_log_prob_cuda}
    return operators[chosen](action, means, std)
