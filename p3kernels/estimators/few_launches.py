"""Two small functions of a latent whose gradients torch computes in more launches than they need on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from p3kernels.backends import on_gpu
from p3kernels.transforms import transformed


def squared(x: Tensor) -> Tensor:
    """x², of any shape; torch's own gradient takes three launches."""
    return _Square.apply(x) if on_gpu(x) and not transformed(x) else x.square()


def drawn(mean: Tensor, std: Tensor) -> Tensor:
    """A sample of N(mean, std²), differentiable in both, of any shape."""
    noise = torch.randn_like(mean)
    return _Moved.apply(mean, std, noise) if on_gpu(mean) and not transformed(mean, std) else mean + std * noise


class _Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2.0 * (d_outputs[0] * x)


class _Moved(torch.autograd.Function):
    """mean + std · noise."""

    @staticmethod
    def forward(ctx: Any, mean: Tensor, std: Tensor, noise: Tensor) -> Tensor:
        ctx.save_for_backward(noise)
        return torch.addcmul(mean, std, noise)

    @staticmethod
    def backward(ctx: Any, *d_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (noise,) = ctx.saved_tensors
        return d_outputs[0], d_outputs[0] * noise, None
