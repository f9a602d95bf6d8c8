"""`relu_moments`: mean and variance of ReLU of a Gaussian."""

from __future__ import annotations

from torch import Tensor

from p3kernels.ops.leaky_relu_moments import leaky_relu_moments


def relu_moments(mean: Tensor, var: Tensor, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of ReLU(x), x ~ N(mean, var): `leaky_relu_moments` with slope 0.

    Args:
        mean: Any shape, float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: The same shape, ≥ 0; 0 is the deterministic limit, negative or NaN gives NaN.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance, of the shape of `mean`; differentiable in `mean` and `var`, twice on the reference backend.
    """
    return leaky_relu_moments(mean, var, 0.0, backend=backend)
