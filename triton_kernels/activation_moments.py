"""Moments of ELU and LeakyReLU (ReLU: slope 0) of Gaussians, elementwise, forward and backward."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from triton_kernels import launch
from triton_kernels.activation_codes import NAMES
from triton_kernels.kernels.activation_moments import _activation_moments_bwd_kernel, _activation_moments_fwd_kernel

# 4 elements a thread: ELU's forward then needs 104 registers, its backward 118.
CONFIG: launch.Config = {"BLOCK": 512, "num_warps": 4, "num_stages": 1}
INTERPRETER_CONFIG: launch.Config = {**CONFIG, "BLOCK": 16384}  # there every step costs the same, however long


def _default() -> launch.Config:
    return INTERPRETER_CONFIG if launch.interpreted() else CONFIG


@launch.fitting
def forward(mean: Tensor, var: Tensor, activation_code: int, activation_parameter: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of the activation, float32, contiguous, of the shape of `mean`."""
    mean, var = mean.contiguous(), var.contiguous()
    out_mean = torch.empty(mean.shape, dtype=torch.float32, device=mean.device)
    out_var = torch.empty_like(out_mean)
    if mean.numel() > 0:
        config = launch.tuned("activation_moments_fwd_kernel", (NAMES[activation_code],), _default())
        grid = triton.cdiv(mean.numel(), config["BLOCK"])
        arguments = (mean, var, out_mean, out_var, mean.numel(), activation_parameter)
        launch.start(_activation_moments_fwd_kernel, grid, *arguments, ACTIVATION=activation_code, **config)
    return out_mean, out_var


@launch.fitting
def backward(
    d_out_mean: Tensor, d_out_var: Tensor, mean: Tensor, var: Tensor, activation_code: int, activation_parameter: float
) -> tuple[Tensor, Tensor]:
    """d_mean, d_var, contiguous, each in the dtype of its input."""
    d_out_mean, d_out_var = d_out_mean.contiguous(), d_out_var.contiguous()
    mean, var = mean.contiguous(), var.contiguous()
    d_mean, d_var = torch.empty_like(mean), torch.empty_like(var)
    if mean.numel() > 0:
        config = launch.tuned("activation_moments_bwd_kernel", (NAMES[activation_code],), _default())
        grid = triton.cdiv(mean.numel(), config["BLOCK"])
        arguments = (d_out_mean, d_out_var, mean, var, d_mean, d_var, mean.numel(), activation_parameter)
        launch.start(_activation_moments_bwd_kernel, grid, *arguments, ACTIVATION=activation_code, **config)
    return d_mean, d_var
