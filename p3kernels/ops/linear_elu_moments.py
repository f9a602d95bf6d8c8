"""`linear_elu_moments`: moments through a linear layer and an ELU in one pass."""

from __future__ import annotations

from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import ELU, check_parameter
from p3kernels.backends import choose_backend
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.mlp_moments import run_mlp_moments_cpu


@checks.full_precision
def linear_elu_moments(
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    *,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU(W x + b) for independent x ~ N(mean, var), keeping only the pre-activation moments.

    Args:
        mean: [B, I], float32 or float64.
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weight: [O, I].
        bias: [O] or None.
        alpha: ELU's α, > 0.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable once in every tensor.
    """
    check_linear(mean, var)
    checks.check_layer(("weight", "bias"), mean.shape[1], "mean", mean, weight, bias)
    check_parameter("alpha", alpha, positive=True)
    if choose_backend(backend, mean) == "reference":
        return reference.linear_elu_moments(mean, var, weight, bias, alpha)
    return run_mlp_moments_cpu(mean, var, [weight], [bias], ELU, alpha, activate_last=True)
