"""`gaussian_head`: log-likelihood, entropy and KL divergence of a diagonal Gaussian policy, at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels import checks, reference
from p3kernels.backends import choose_backend, in_one_launch
from p3kernels.cuda import native
from p3kernels.ops.mixture_log_prob import check_action
from p3kernels.ops.second_derivatives import refuse_second_derivatives


@torch.library.custom_op("p3kernels::gaussian_head_cuda", mutates_args=())
def _operator(
    action: Tensor, mean: Tensor, var: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log_prob, entropy and KL, [B] float32 each."""
    outputs = [torch.empty(action.shape[0], dtype=torch.float32, device=action.device) for _ in range(3)]
    tensors = [tensor.contiguous() for tensor in (action, mean, var, std, old_mean, old_std)]
    native.gaussian_head_forward(tensors, outputs)
    return outputs[0], outputs[1], outputs[2]


@_operator.register_fake
def _(
    action: Tensor, mean: Tensor, var: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    out = action.new_empty(action.shape[0], dtype=torch.float32)
    return out, torch.empty_like(out), torch.empty_like(out)


@torch.library.custom_op("p3kernels::gaussian_head_backward_cuda", mutates_args=())
def _operator_backward(
    d_log_prob: Tensor,
    d_entropy: Tensor,
    d_kl: Tensor,
    action: Tensor,
    mean: Tensor,
    var: Tensor,
    std: Tensor,
    old_mean: Tensor,
    old_std: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d_action, d_mean, d_var [B, A] and d_std of the shape of std, each in its tensor's dtype."""
    tensors = [tensor.contiguous() for tensor in (action, mean, var, std, old_mean, old_std)]
    d_action, d_mean, d_var = (torch.empty_like(tensor) for tensor in tensors[:3])
    d_std = torch.empty(action.shape, dtype=torch.float32, device=action.device)
    incoming = [gradient.contiguous() for gradient in (d_log_prob, d_entropy, d_kl)]
    native.gaussian_head_backward(tensors, incoming, d_action, d_mean, d_var, d_std)
    return d_action, d_mean, d_var, (d_std if std.dim() == 2 else d_std.sum(0)).to(std.dtype)


@_operator_backward.register_fake
def _(
    d_log_prob: Tensor,
    d_entropy: Tensor,
    d_kl: Tensor,
    action: Tensor,
    mean: Tensor,
    var: Tensor,
    std: Tensor,
    old_mean: Tensor,
    old_std: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    like = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in (action, mean, var, std)]
    return like[0], like[1], like[2], like[3]


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor | None, ...]:
    return *_operator_backward(*d_outputs, *ctx.saved_tensors), None, None


_operator.register_autograd(_differentiate, setup_context=_setup_context)
refuse_second_derivatives(_operator_backward, "cuda")


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

    One launch forward and one backward on the CUDA backend; on the others plain torch.

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
    if in_one_launch(chosen, backend, lambda: True) == "cuda":
        return _operator(action, mean, var, std, old_mean, old_std)
    tensors = (action, mean, var, std, old_mean, old_std)
    if chosen == "triton":
        tensors = tuple(tensor.float() for tensor in tensors)  # type: ignore[assignment]
    return reference.gaussian_head(*tensors)
