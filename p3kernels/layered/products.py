"""Matrix products of the layered passes and of the trainer's networks on a CPU: our own where they are the faster ones.

torch's library, MKL, runs AVX2 on processors that are not Intel's, whatever they have. On those with AVX-512 that is
half of their speed, so products are our own there. `P3_CPU_PRODUCTS=p3|torch` decides otherwise.
"""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from p3kernels.backends import load_extension
from p3kernels.cpu import native

_STALE = "the native extension was built before there were products of our own; reinstall it"


@functools.cache
def own_products() -> bool:
    """Whether products on this machine's CPU are our own.

    Raises:
        ValueError: P3_CPU_PRODUCTS is neither p3 nor torch.
        RuntimeError: It is p3, and the extension is not there or older than its products.
    """
    extension, reason = load_extension()
    if extension is not None and hasattr(extension, "own_products"):
        return bool(extension.own_products())
    if os.environ.get("P3_CPU_PRODUCTS") == "p3":
        raise RuntimeError(f"P3_CPU_PRODUCTS=p3: {reason if extension is None else _STALE}")
    return False


def mm(a: Tensor, b: Tensor, *, bias: Tensor | None = None, out: Tensor | None = None, add: bool = False) -> Tensor:
    """a [M, K] b [K, N], plus `bias` [N] or, with `add`, plus what `out` [M, N] has.

    A product of our own sums every number in the same order, whatever M and the number of threads.

    Args:
        a: In any layout, as `b`.
        b: Of `a`'s dtype.
        bias: Contiguous.
        out: Overlaps neither `a` nor `b`; None for a new tensor.
        add: With an `out` and without a `bias`.

    Raises:
        RuntimeError: Shapes or dtypes that do not fit, in torch's words.
    """
    if not (own_products() and _fit(a, b, bias, out)):
        return _by_torch(a, b, bias, out, add)
    if out is None:
        out = a.new_empty(a.shape[0], b.shape[1])
    if out.stride(1) == 1 or out.shape[1] == 1:
        native.product(a, b, bias, out, add=add)
    elif out.stride(0) == 1 and bias is None:
        native.product(b.t(), a.t(), None, out.t(), add=add)
    else:
        return _by_torch(a, b, bias, out, add)
    return out


def _fit(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None) -> bool:
    """Whether the kernel may read and write these: CPU tensors of one dtype, of the shapes of one product."""
    if a.dtype not in (torch.float32, torch.float64) or a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        return False
    columns = b.shape[1]
    return (
        all(one is None or (one.dtype == a.dtype and one.device.type == "cpu") for one in (a, b, bias, out))
        and (bias is None or (bias.shape == (columns,) and bias.is_contiguous()))
        and (out is None or out.shape == (a.shape[0], columns))
    )


def _by_torch(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor | None, add: bool) -> Tensor:
    if add:
        assert out is not None
        return out.addmm_(a, b)
    return torch.mm(a, b, out=out) if bias is None else torch.addmm(bias, a, b, out=out)
