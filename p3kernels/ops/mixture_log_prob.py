"""`mixture_log_prob`: likelihood of an action under a mixture of Gaussians."""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.backends import choose_backend
from p3kernels.cpu import native as cpu
from p3kernels.cuda import native as cuda
from p3kernels.ops.register import Kernels, Operators
from p3kernels.records import Backward, Gradients, map_tensors, result_dtype


class Inputs(NamedTuple):
    """What `mixture_log_prob` takes, checked."""

    action: Tensor
    """[B, A]."""
    means: Tensor
    """[N, B, A]."""
    std: Tensor
    """[A] or [B, A]."""


class Outputs(NamedTuple):
    """What `mixture_log_prob` gives."""

    log_prob: Tensor
    """[B]."""


def _contiguous(inputs: Inputs) -> Inputs:
    return map_tensors(inputs, Tensor.contiguous)


def _fake(inputs: Inputs) -> Outputs:
    return Outputs(inputs.action.new_empty(inputs.action.shape[0], dtype=result_dtype(inputs.action)))


def _cpu_forward(inputs: Inputs) -> Outputs:
    log_sum = inputs.action.new_empty(inputs.action.shape[0])
    cpu.mixture_forward(*_contiguous(inputs), log_sum)
    return Outputs(log_sum.sub_(math.log(inputs.means.shape[0])))


def _cpu_backward(request: Backward[Inputs, Outputs]) -> Gradients:
    inputs = _contiguous(request.inputs)
    d_action, d_std = torch.zeros_like(inputs.action), torch.zeros_like(inputs.action)
    d_means = torch.empty_like(inputs.means)
    log_sum = request.outputs.log_prob + math.log(inputs.means.shape[0])
    cpu.mixture_backward(*inputs, log_sum, request.d_outputs.log_prob, d_means, d_action, d_std)
    return {"action": d_action, "means": d_means, "std": d_std if inputs.std.dim() == 2 else d_std.sum(0)}


def _cuda_forward(inputs: Inputs) -> Outputs:
    log_prob = torch.empty(inputs.action.shape[0], dtype=torch.float32, device=inputs.action.device)
    cuda.mixture_forward(*_contiguous(inputs), log_prob, math.log(inputs.means.shape[0]))
    return Outputs(log_prob)


def _cuda_backward(request: Backward[Inputs, Outputs]) -> Gradients:
    inputs = _contiguous(request.inputs)
    d_action = torch.empty(inputs.action.shape, dtype=torch.float32, device=inputs.action.device)
    d_std, d_means = torch.empty_like(d_action), torch.empty_like(inputs.means)
    offset = math.log(inputs.means.shape[0])
    incoming = (request.outputs.log_prob, request.d_outputs.log_prob)
    cuda.mixture_backward(*inputs, *incoming, d_means, d_action, d_std, offset, add=False)
    return {"action": d_action, "means": d_means, "std": d_std if inputs.std.dim() == 2 else d_std.sum(0)}


def _triton() -> Any:
    return importlib.import_module("triton_kernels.mixture_log_prob")  # triton is not imported with the package


def _triton_forward(inputs: Inputs) -> Outputs:
    return Outputs(_triton().forward(**inputs._asdict()))


def _triton_backward(request: Backward[Inputs, Outputs]) -> Gradients:
    d_action, d_means, d_std = _triton().backward(
        request.d_outputs.log_prob, request.outputs.log_prob, **request.inputs._asdict()
    )
    return {"action": d_action, "means": d_means, "std": d_std}


_OPERATORS = Operators(
    "mixture_log_prob",
    Inputs,
    Outputs,
    fake=_fake,
    kernels={
        "cpu": Kernels(_cpu_forward, _cpu_backward),
        "cuda": Kernels(_cuda_forward, _cuda_backward),
        "triton": Kernels(_triton_forward, _triton_backward),
    },
    differentiable=("action", "means", "std"),
    saved=("log_prob",),
)


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
    return _OPERATORS(chosen, Inputs(action, means, std)).log_prob
