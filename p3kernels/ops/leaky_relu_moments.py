"""`leaky_relu_moments`: mean and variance of LeakyReLU of a Gaussian."""

from __future__ import annotations

from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import LEAKY_RELU, Activation, check_parameter
from p3kernels.ops.activation_moments import activation_moments


@checks.full_precision
def leaky_relu_moments(
    mean: Tensor, var: Tensor, negative_slope: float = 0.01, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of LeakyReLU(x), x ~ N(mean, var), elementwise and exact to rounding.

    With y = max(x, 0) and n = max(−x, 0): E = E[y] − λ E[n], Var = Var[y] + λ² Var[n] + 2 λ E[y] E[n].

    Args:
        mean: Any shape, float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: The same shape, ≥ 0; 0 is the deterministic limit, negative or NaN gives NaN.
        negative_slope: λ ≥ 0.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance, of the shape of `mean`; differentiable in `mean` and `var`, twice on the reference backend.
    """
    check_parameter("negative_slope", negative_slope, positive=False)
    activation = Activation(LEAKY_RELU, float(negative_slope))
    return activation_moments(mean, var, activation, reference.leaky_relu_moments, backend)
