"""`square_moments` as Triton kernels: `TRITON_INTERPRET=1` runs them on CPU tensors."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import launch

BLOCK = 512


@triton.jit
def _square_moments_fwd_kernel(mean_ptr, var_ptr, out_mean_ptr, out_var_ptr, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_mean_ptr + at, mean * mean + var, mask=inside)
    tl.store(out_var_ptr + at, 2.0 * var * (var + 2.0 * mean * mean), mask=inside)


@triton.jit
def _square_moments_bwd_kernel(
    d_out_mean_ptr, d_out_var_ptr, mean_ptr, var_ptr, d_mean_ptr, d_var_ptr, size, BLOCK: tl.constexpr
):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + at, mask=inside, other=0.0).to(tl.float32)
    d_out_mean = tl.load(d_out_mean_ptr + at, mask=inside, other=0.0)
    d_out_var = tl.load(d_out_var_ptr + at, mask=inside, other=0.0)
    tl.store(d_mean_ptr + at, 2.0 * mean * d_out_mean + 8.0 * mean * var * d_out_var, mask=inside)
    tl.store(d_var_ptr + at, d_out_mean + 4.0 * (var + mean * mean) * d_out_var, mask=inside)


def forward(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance, float32, contiguous, of the shape of `mean`."""
    mean, var = mean.contiguous(), var.contiguous()
    out_mean = torch.empty(mean.shape, dtype=torch.float32, device=mean.device)
    out_var = torch.empty_like(out_mean)
    if mean.numel() > 0:
        grid = triton.cdiv(mean.numel(), BLOCK)
        launch.start(_square_moments_fwd_kernel, grid, mean, var, out_mean, out_var, mean.numel(), BLOCK=BLOCK)
    return out_mean, out_var


def backward(d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """d_mean and d_var, contiguous, each in the dtype of its input."""
    mean, var = mean.contiguous(), var.contiguous()
    d_mean, d_var = torch.empty_like(mean), torch.empty_like(var)
    if mean.numel() > 0:
        grid = triton.cdiv(mean.numel(), BLOCK)
        arguments = (d_out_mean.contiguous(), d_out_var.contiguous(), mean, var, d_mean, d_var, mean.numel())
        launch.start(_square_moments_bwd_kernel, grid, *arguments, BLOCK=BLOCK)
    return d_mean, d_var
