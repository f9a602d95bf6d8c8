"""`gaussian_head`: log-likelihood, entropy and KL divergence of a diagonal Gaussian policy, at once."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.backends import choose_backend
from p3kernels.cuda import native
from p3kernels.ops.mixture_log_prob import check_action
from p3kernels.ops.register import Kernels, Operators
from p3kernels.records import Backward, Gradients, map_tensors


class Inputs(NamedTuple):
    """What `gaussian_head` takes, checked."""

    action: Tensor
    mean: Tensor
    var: Tensor
    std: Tensor
    old_mean: Tensor
    old_std: Tensor


class Outputs(NamedTuple):
    """What `gaussian_head` gives, [B] each."""

    log_prob: Tensor
    entropy: Tensor
    kl: Tensor


def _fake(inputs: Inputs) -> Outputs:
    out = inputs.action.new_empty(inputs.action.shape[0], dtype=torch.float32)
    return Outputs(out, torch.empty_like(out), torch.empty_like(out))


def _forward(inputs: Inputs) -> Outputs:
    rows, device = inputs.action.shape[0], inputs.action.device
    outputs = Outputs(*(torch.empty(rows, dtype=torch.float32, device=device) for _ in range(3)))
    native.gaussian_head_forward(map_tensors(inputs, Tensor.contiguous), outputs)
    return outputs


def _backward(request: Backward[Inputs, Outputs]) -> Gradients:
    inputs = map_tensors(request.inputs, Tensor.contiguous)
    rows = inputs.action.shape[0]
    came = Outputs(*(given if given.numel() else given.new_zeros(rows) for given in request.d_outputs))
    d_action, d_mean, d_var = (torch.empty_like(tensor) for tensor in (inputs.action, inputs.mean, inputs.var))
    d_std = torch.empty(inputs.action.shape, dtype=torch.float32, device=inputs.action.device)
    native.gaussian_head_backward(inputs, came, d_action, d_mean, d_var, d_std)
    return {
        "action": d_action,
        "mean": d_mean,
        "var": d_var,
        "std": d_std if inputs.std.dim() == 2 else d_std.sum(0),
    }


def _triton() -> Any:
    return importlib.import_module("triton_kernels.gaussian_head")  # triton is not imported with the package


def _triton_forward(inputs: Inputs) -> Outputs:
    return Outputs(*_triton().forward(*inputs))


def _triton_backward(request: Backward[Inputs, Outputs]) -> Gradients:
    wants_d_action = "action" in request.wanted
    found = _triton().backward(*request.d_outputs, *request.inputs, wants_d_action=wants_d_action)
    return dict(zip(("action", "mean", "var", "std"), found, strict=True))


_OPERATORS = Operators(
    "gaussian_head",
    Inputs,
    Outputs,
    fake=_fake,
    kernels={"cuda": Kernels(_forward, _backward), "triton": Kernels(_triton_forward, _triton_backward)},
    differentiable=("action", "mean", "var", "std"),
    empty=True,
)


@checks.full_precision
def gaussian_head(
    action: Tensor,
    mean: Tensor,
    var: Tensor,
    std: Tensor,
    old_mean: Tensor,
    old_std: Tensor,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """log N(action | mean, var + std²), its entropy, and KL(N(old_mean, old_std²) ‖ it): what PPO asks of MM's policy.

    One launch forward and one backward on the GPU's backends; on the others plain torch.

    Args:
        action: [B, A], float32 or float64; on the backends for GPUs float32 or bfloat16, also mixed.
        mean: [B, A].
        var: [B, A], ≥ 0: what the latent adds to the action's variance.
        std: [A] or [B, A], > 0: the exploration noise.
        old_mean: [B, A], of the policy before; no gradient reaches it.
        old_std: [B, A], > 0, latent and exploration together; no gradient reaches it.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Log-likelihood, entropy and KL divergence, [B] each; differentiable in action, mean, var and std.
    """
    chosen = choose_backend(backend, action, mean, var, std, old_mean, old_std)
    check_action(action, std, chosen)
    rest = {"mean": mean, "var": var, "old_mean": old_mean, "old_std": old_std}
    for name, tensor in rest.items():
        checks.check_tensor(name, tensor, 2, chosen)
        checks.check_like(name, tensor, "action", action, chosen)
        checks.check_shape(name, tensor, action.shape)
    checks.check_values("var", var)
    inputs = Inputs(action, mean, var, std, old_mean, old_std)
    if chosen in ("triton", "cuda"):
        out = _OPERATORS(chosen, inputs)
        return out.log_prob, out.entropy, out.kl
    return reference.gaussian_head(*inputs)
