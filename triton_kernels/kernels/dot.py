"""One matrix product of a kernel, in the precision that the caller asks for.

- "ieee": float32 multiply-adds, no tensor cores: relative error of a product of length K about √K · 2⁻²⁴.
- "tf32x3": three tf32 products on tensor cores; operands keep 21 bits: about 2⁻²² beside the summation's rounding.
- "tf32": one; operands keep 11 bits: each term within 2⁻¹⁰, a sum of K terms of random sign about 2⁻¹¹ · |x||w|/√K.
- "bf16": operands rounded to bfloat16, 8 bits: each term within 2⁻⁷. Sums are float32 in all of them.

The interpreter computes tf32 and tf32x3 in full float32; bf16 it rounds as the device does.
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels import launch

_INTERPRETED = tl.constexpr(launch.interpreted())


@triton.jit
def _rounded(a: tl.tensor) -> tl.tensor:
    """To the nearest bfloat16, as float32. The interpreter's own conversion truncates, and its dot multiplies bits."""
    bits = a.to(tl.int32, bitcast=True)
    bits += 32767 + ((bits >> 16) & 1)  # halfway goes to the even one
    return (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + a · b: [M, K], [K, N], [M, N], all float32."""
    if PRECISION == "bf16":
        if _INTERPRETED:
            return tl.dot(_rounded(a), _rounded(b), total)
        else:
            return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)
