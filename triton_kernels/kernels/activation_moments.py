"""Moments of an activation, elementwise, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.kernels.moments_math import activation_gradients, activation_moments


@triton.jit
def _activation_moments_fwd_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    out_mean_ptr: tl.tensor,
    out_var_ptr: tl.tensor,
    size: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + at, mask=inside, other=0.0).to(tl.float32)
    out_mean, out_var = activation_moments(mean, var, parameter, ACTIVATION)
    tl.store(out_mean_ptr + at, out_mean, mask=inside)
    tl.store(out_var_ptr + at, out_var, mask=inside)


@triton.jit
def _activation_moments_bwd_kernel(
    d_out_mean_ptr: tl.tensor,
    d_out_var_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    size: tl.tensor,
    parameter: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    mean = tl.load(mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    var = tl.load(var_ptr + at, mask=inside, other=0.0).to(tl.float32)
    d_out_mean = tl.load(d_out_mean_ptr + at, mask=inside, other=0.0).to(tl.float32)
    d_out_var = tl.load(d_out_var_ptr + at, mask=inside, other=0.0).to(tl.float32)
    _m, _v, mean_mean, mean_var, var_mean, var_var = activation_gradients(mean, var, parameter, ACTIVATION)
    tl.store(d_mean_ptr + at, d_out_mean * mean_mean + d_out_var * var_mean, mask=inside)
    tl.store(d_var_ptr + at, d_out_mean * mean_var + d_out_var * var_var, mask=inside)
