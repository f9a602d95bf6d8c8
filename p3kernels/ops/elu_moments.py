"""`elu_moments`: mean and variance of ELU of a Gaussian."""

from __future__ import annotations

from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import ELU, Activation, check_parameter
from p3kernels.ops.activation_moments import activation_moments


@checks.full_precision
def elu_moments(mean: Tensor, var: Tensor, alpha: float = 1.0, *, backend: str | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU(x), x ~ N(mean, var), elementwise and exact to rounding.

    With y = max(x, 0) and u = 1 − e^min(x, 0): E = E[y] − α E[u], Var = Var[y] + α² Var[u] + 2 α E[y] E[u].

    Args:
        mean: Any shape, float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: The same shape, ≥ 0. 0 is the deterministic limit: mean ELU(mean), variance 0, finite gradients (at a
            kink that the mean sits on exactly, the mean of both sides). A
            negative or NaN variance gives NaN (with P3_CHECK_VALUES=1 an error).
        alpha: ELU's α, > 0.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance, of the shape of `mean`; differentiable in `mean` and `var`, twice on the reference backend.
    """
    check_parameter("alpha", alpha, positive=True)
    return activation_moments(mean, var, Activation(ELU, float(alpha)), reference.elu_moments, backend)
