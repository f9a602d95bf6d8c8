"""Log-likelihood, entropy and KL divergence of a diagonal Gaussian policy: one launch forward, one backward.

The kernels are in `kernels/gaussian_head.py`. Inputs may be columns of a wider matrix, as a minibatch's are.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from triton_kernels.kernels.gaussian_head import _gaussian_head_bwd_kernel, _gaussian_head_fwd_kernel
from triton_kernels.launch import Config, fitting, row_bucket, start, tuned


def with_rows(tensor: Tensor) -> Tensor:
    """The tensor itself where the columns of a row are neighbours, else a copy."""
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _config(kernel: str, rows: int, actions: int) -> Config:
    block = triton.next_power_of_2(actions)
    default = {"BLOCK_B": max(1, 512 // block), "BLOCK_A": block, "num_warps": 4, "num_stages": 1}
    return tuned(kernel, (actions, row_bucket(rows)), default)


def _strides(*tensors: Tensor) -> list[int]:
    return [tensor.stride(0) if tensor.dim() == 2 else 0 for tensor in tensors]


@fitting
def forward(
    action: Tensor, mean: Tensor, var: Tensor, std: Tensor, old_mean: Tensor, old_std: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[B, A] each, std also [A] → log-likelihood, entropy and KL divergence [B], float32."""
    rows, actions = action.shape
    given = [with_rows(tensor) for tensor in (action, mean, var, std, old_mean, old_std)]
    log_prob, entropy, kl = (torch.empty(rows, dtype=torch.float32, device=action.device) for _ in range(3))
    if rows > 0:
        config = _config("gaussian_head_fwd_kernel", rows, actions)
        grid = triton.cdiv(rows, config["BLOCK_B"])
        outputs = (log_prob, entropy, kl)
        start(_gaussian_head_fwd_kernel, grid, *given, *outputs, rows, actions, *_strides(*given), **config)
    return log_prob, entropy, kl


@fitting
def backward(
    d_log_prob: Tensor,
    d_entropy: Tensor,
    d_kl: Tensor,
    action: Tensor,
    mean: Tensor,
    var: Tensor,
    std: Tensor,
    old_mean: Tensor,
    old_std: Tensor,
    *,
    wants_d_action: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """d_action, d_mean, d_var [B, A] and d_std of the shape of std.

    Args:
        d_log_prob: [B], contiguous; empty where no gradient came, as the next two.
        d_entropy: [B].
        d_kl: [B].
        action: [B, A], as the others in the forward pass.
        mean: [B, A].
        var: [B, A].
        std: [A] or [B, A].
        old_mean: [B, A].
        old_std: [B, A].
        wants_d_action: Whether d_action is written.
    """
    rows, actions = action.shape
    given = [with_rows(tensor) for tensor in (action, mean, var, std, old_mean, old_std)]
    d_action, d_mean, d_var = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (action, mean, var))
    if rows == 0:
        return d_action, d_mean, d_var, torch.zeros_like(std, memory_format=torch.contiguous_format)
    config = _config("gaussian_head_bwd_kernel", rows, actions)
    grid, by_row = triton.cdiv(rows, config["BLOCK_B"]), std.dim() == 2
    shape, dtype = (std.shape, std.dtype) if by_row else ((grid, actions), torch.float32)
    d_std = torch.empty(shape, dtype=dtype, device=std.device)
    came = [gradient.numel() > 0 for gradient in (d_log_prob, d_entropy, d_kl)]
    start(
        _gaussian_head_bwd_kernel,
        grid,
        *given,
        *(gradient if there else action for gradient, there in zip((d_log_prob, d_entropy, d_kl), came, strict=True)),
        d_action,
        d_mean,
        d_var,
        d_std,
        rows,
        actions,
        *_strides(*given),
        *came,
        wants_d_action,
        by_row,
        **config,
    )
    return d_action, d_mean, d_var, d_std if by_row else d_std.sum(0).to(std.dtype)
