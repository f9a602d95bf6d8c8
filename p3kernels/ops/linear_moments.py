"""`linear_moments`: moments through a linear layer."""

from __future__ import annotations

from torch import Tensor

from p3kernels import checks, reference
from p3kernels.backends import choose_backend


def check_linear(mean: Tensor, var: Tensor, backend: str) -> None:
    """mean [B, I], var [B, J], 0 ≤ J ≤ I."""
    checks.check_tensor("mean", mean, 2, backend)
    checks.check_tensor("var", var, 2, backend)
    checks.check_like("var", var, "mean", mean, backend)
    if var.shape[0] != mean.shape[0] or var.shape[1] > mean.shape[1]:
        raise ValueError(
            f"var: expected shape [{mean.shape[0]}, J] with J <= {mean.shape[1]}, got {checks.shape_text(var.shape)}"
        )
    checks.check_values("var", var)


@checks.full_precision
def linear_moments(
    mean: Tensor, var: Tensor, weight: Tensor, bias: Tensor | None = None, *, backend: str | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of W x + b for independent x ~ N(mean, var): mean Wᵀ + b and var (W ∘ W)ᵀ.

    Two matrix products, which torch does as well as can be on every device: all backends are the same code here.

    Args:
        mean: [B, I], float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weight: [O, I].
        bias: [O] or None.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable any number of times.
    """
    chosen = choose_backend(backend, mean, var, weight, bias)
    check_linear(mean, var, chosen)
    checks.check_layer(("weight", "bias"), mean.shape[1], "mean", mean, weight, bias, chosen)
    if chosen in checks.ON_DEVICE:
        mean, var, weight = mean.float(), var.float(), weight.float()
        bias = None if bias is None else bias.float()
    return reference.linear_moments(mean, var, weight, bias)
