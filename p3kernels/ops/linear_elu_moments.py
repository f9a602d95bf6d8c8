"""`linear_elu_moments`: moments through a linear layer and an ELU in one pass."""

from __future__ import annotations

from torch import Tensor

from p3kernels import checks, reference
from p3kernels.activations import ELU, Activation, check_parameter
from p3kernels.backends import choose_backend
from p3kernels.ops.linear_moments import check_linear
from p3kernels.ops.mlp_moments import run_mlp_moments


@checks.full_precision
def linear_elu_moments(
    mean: Tensor,
    var: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    alpha: float = 1.0,
    *,
    precision: str | None = None,
    backend: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ELU(W x + b) for independent x ~ N(mean, var), keeping only the pre-activation moments.

    Args:
        mean: [B, I], float32 or float64 (triton, cuda: float32 or bfloat16, computed in float32).
        var: [B, J], J ≤ I: the last J inputs are stochastic, the first I − J are not.
        weight: [O, I].
        bias: [O] or None.
        alpha: ELU's α, > 0.
        precision: How Triton's products round: "ieee", "tf32x3", "tf32", "bf16" (`triton_kernels/kernels/dot.py` has
            the error of each); None follows `torch.set_float32_matmul_precision`.
        backend: None to choose, or "reference", "cpu", "triton", "cuda".

    Returns:
        Mean and variance [B, O], differentiable in every tensor, twice on the reference backend.
    """
    chosen = choose_backend(backend, mean, var, weight, bias)
    check_linear(mean, var, chosen)
    checks.check_layer(("weight", "bias"), mean.shape[1], "mean", mean, weight, bias, chosen)
    check_parameter("alpha", alpha, positive=True)
    dots = checks.dot_precision(precision, chosen)
    if chosen == "reference":
        return reference.linear_elu_moments(mean, var, weight, bias, alpha)
    behind = Activation(ELU, float(alpha))
    return run_mlp_moments(chosen, mean, var, [weight], [bias], behind, activate_last=True, precision=dots)
