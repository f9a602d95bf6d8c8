"""What one launch moves and computes, counted from its arguments and its tiling.

DRAM: every input is read once and every output written once. Programs that share rows are neighbours in the grid and
run at the same time; what they share, and the weights, is in the 50 MB L2 meanwhile. What a program writes and itself
reads or overwrites again right away counts as one write. Partial sums that a later launch reads or adds to count.

L2: every tile that a program asks for counts, whoever asked for it before; elements outside of a tensor do not.

Trips: how often a program goes round each loop of its kernel, in the order in which the loops begin in the source; a
loop inside another has the product. Programs that differ give their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from triton_kernels.proof.record import Launch

FLOAT = 4
Arguments = dict[str, Any]


@dataclass(frozen=True)
class Cost:
    """Bytes by level, operations and loops of one launch."""

    bytes_moved: int
    """Read from and written to DRAM."""
    compulsory_bytes: int
    """The least that any launch of its own could move there."""
    l2_bytes: int
    """Asked of L2 and written to it by all programs."""
    flops: int
    """Operations of the products, two a multiply-add; of the arithmetic in kernels without products."""
    products: bool
    """Whether `flops` are matrix products, which tensor cores can do."""
    activations: int
    """Activations computed: what instructions an element are counted by."""
    trips: tuple[float, ...]
    """Trips of a program, loop by loop."""
    straight: float = 1.0
    """The part of the code outside of loops that a program goes through: one case of several, where there are cases."""


def cdiv(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def size_of(a: Arguments, name: str) -> int:
    """Bytes of an element of a tensor argument."""
    return a[name].element_size()


def cost(launch: Launch) -> Cost:
    """The cost of a launch of any kernel of the package."""
    return _table()[launch.name](launch.arguments, launch.grid)


def _table() -> dict[str, Callable[[Arguments, int], Cost]]:
    from triton_kernels.proof import likelihood_costs, moment_costs  # noqa: PLC0415  # both import this module

    return {**moment_costs.COSTS, **likelihood_costs.COSTS, **dict.fromkeys(_ONCE, _once)}


_ONCE = (
    "gaussian_head_fwd_kernel",
    "gaussian_head_bwd_kernel",
    "latent_heads_fwd_kernel",
    "latent_heads_bwd_kernel",
    "latent_kl_fwd_kernel",
    "latent_kl_bwd_kernel",
    "policy_terms_fwd_kernel",
    "policy_terms_bwd_kernel",
    "squared_errors_fwd_kernel",
    "squared_errors_bwd_kernel",
    "gradient_bounds_kernel",
)
"""Kernels without loops that read and write everything once, some twenty operations a number."""


def _once(a: Arguments, grid: int) -> Cost:
    given = [tensor for value in a.values() for tensor in (value if isinstance(value, tuple) else (value,))]
    tensors = {(id(t), t.shape): t for t in given if isinstance(t, Tensor)}.values()
    elements = sum(tensor.numel() for tensor in tensors)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return Cost(total, total, total, 20 * elements, False, 0, ())
