"""Moments of ELU and LeakyReLU (ReLU: slope 0) of Gaussians, elementwise, forward and backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from triton_kernels import launch
from triton_kernels.moments_math import activation_gradients, activation_moments

# 4 elements a thread: ELU's forward then needs 104 registers, its backward 118.
CONFIG: launch.Config = {"BLOCK": 512, "num_warps": 4, "num_stages": 1}
INTERPRETER_CONFIG: launch.Config = {**CONFIG, "BLOCK": 16384}  # there every step costs the same, however long
ACTIVATION_NAMES = ("elu", "leaky_relu")
"""By the number that stands for an activation here and in `moments_math`."""
OPERATIONS = {"elu": 330, "leaky_relu": 140}
"""Floating-point operations an element, about, divisions and square roots at eight each."""


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


def _default() -> launch.Config:
    return INTERPRETER_CONFIG if launch.interpreted() else CONFIG


@launch.fitting
def forward(mean: Tensor, var: Tensor, kind: int, parameter: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of the activation, float32, contiguous, of the shape of `mean`."""
    mean, var = mean.contiguous(), var.contiguous()
    out_mean = torch.empty(mean.shape, dtype=torch.float32, device=mean.device)
    out_var = torch.empty_like(out_mean)
    if mean.numel() > 0:
        config = launch.tuned("activation_moments_fwd_kernel", (ACTIVATION_NAMES[kind],), _default())
        with launch.on_device(mean):
            _activation_moments_fwd_kernel[(triton.cdiv(mean.numel(), config["BLOCK"]),)](
                mean, var, out_mean, out_var, mean.numel(), parameter, ACTIVATION=kind, **config
            )
    return out_mean, out_var


@launch.fitting
def backward(
    d_out_mean: Tensor,
    d_out_var: Tensor,
    mean: Tensor,
    var: Tensor,
    kind: int,
    parameter: float,
) -> tuple[Tensor, Tensor]:
    """d_mean, d_var, contiguous, each in the dtype of its input."""
    d_out_mean, d_out_var = d_out_mean.contiguous(), d_out_var.contiguous()
    mean, var = mean.contiguous(), var.contiguous()
    d_mean, d_var = torch.empty_like(mean), torch.empty_like(var)
    if mean.numel() > 0:
        config = launch.tuned("activation_moments_bwd_kernel", (ACTIVATION_NAMES[kind],), _default())
        with launch.on_device(mean):
            _activation_moments_bwd_kernel[(triton.cdiv(mean.numel(), config["BLOCK"]),)](
                d_out_mean,
                d_out_var,
                mean,
                var,
                d_mean,
                d_var,
                mean.numel(),
                parameter,
                ACTIVATION=kind,
                **config,
            )
    return d_mean, d_var


def aot_cases() -> list[launch.AotCase]:
    """The activations of the actor's widest layer, B = 24,576 by 512, as a launch of its own."""
    size, found = 24576 * 512, []
    for kernel, tensors in (
        (_activation_moments_fwd_kernel, ("mean", "var", "out_mean", "out_var")),
        (_activation_moments_bwd_kernel, ("d_out_mean", "d_out_var", "mean", "var", "d_mean", "d_var")),
    ):
        for kind, name in enumerate(ACTIVATION_NAMES):
            config = launch.tuned(kernel.__name__.lstrip("_"), (name,), _default())
            found.append(
                launch.AotCase(
                    kernel=kernel.__name__.lstrip("_"),
                    function=kernel,
                    signature={**{f"{tensor}_ptr": "*fp32" for tensor in tensors}, "size": "i32", "parameter": "fp32"},
                    constexprs={"ACTIVATION": kind, "BLOCK": config["BLOCK"]},
                    config=config,
                    shape=f"{name} size={size}",
                    bytes_moved=4 * len(tensors) * size,
                    compulsory_bytes=4 * len(tensors) * size,
                    flops=OPERATIONS[name] * size,
                    tensor_core=False,
                    default=True,
                    grid=triton.cdiv(size, config["BLOCK"]),
                    divisible_by_16=("size",),
                )
            )
    return found
