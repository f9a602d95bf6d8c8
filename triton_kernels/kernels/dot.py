"""One matrix product of a kernel, in the precision that the caller asks for.

- "ieee": float32 multiply-adds, no tensor cores: relative error of a product of length K about √K · 2⁻²⁴.
- "tf32x3": three tf32 products on tensor cores; operands keep 21 bits: about 2⁻²² beside the summation's rounding.
- "tf32": one; operands of 11 bits: each term within 2⁻¹¹, a sum of K terms of random sign about 2⁻¹² · |x||w|/√K.
- "bf16": operands rounded to bfloat16, 8 bits: each term within 2⁻⁸. Sums are float32 in all of them.

Tensor cores cut a TF32 operand off: they read its upper 19 bits and ignore the others. `rounded` rounds it to nearest;
whoever writes an operand of a product calls it. `marked` leaves in the ignored bits what the rounding took, for those
who want the number itself: a weight is squared before it is rounded.
The interpreter multiplies what a GPU would: tf32 operands cut off, bf16 ones rounded; tf32x3 is full float32 there.

Operands may be kept in 16 bits: as bfloat16 for "bf16", as float16, whose 11 bits are those of TF32, for "tf32".
Products of float16 run twice as fast, take operands in either order, and move half of the bytes. What float16 has
less is range: beyond 65,504 it saturates, below 6e-5 it loses bits, so a gradient is scaled first (`scale_of`).
"""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels import launch

_INTERPRETED = tl.constexpr(launch.interpreted())
_LARGEST_HALF = tl.constexpr(65504.0)


@triton.jit
def rounded(a: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """`a`, float32, to the nearest operand of a product in this precision, ties away from zero in TF32; NaN stays."""
    if PRECISION == "tf32":
        if _INTERPRETED:
            return _cut(_with_rest(a))
        else:
            return tl.inline_asm_elementwise("cvt.rna.tf32.f32 $0, $1;", "=r,f", [a], tl.float32, is_pure=True, pack=1)
    elif PRECISION == "bf16":
        if _INTERPRETED:
            return _rounded(a)
        else:
            return a.to(tl.bfloat16).to(tl.float32)
    else:
        return a


@triton.jit
def marked(a: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """What a tensor core takes for `rounded(a)`, but nothing is cut off: `magnitude` gives |a| back."""
    if PRECISION == "tf32":
        return _with_rest(a)
    else:
        return rounded(a, PRECISION)


@triton.jit
def _with_rest(a: tl.tensor) -> tl.tensor:
    """`a` plus half of what its ignored bits can hold: cut off, it is rounded. NaN and infinities stay."""
    bits = a.to(tl.int32, bitcast=True)
    return tl.where((bits & 0x7FFFFFFF) < 0x7F800000, bits + 4096, bits).to(tl.float32, bitcast=True)


@triton.jit
def magnitude(a: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """The absolute value of what `marked` was given, 0 of an unmarked 0; the largest ones' squares stay infinite."""
    if PRECISION == "tf32":
        return tl.maximum((a.to(tl.int32, bitcast=True) & 0x7FFFFFFF) - 4096, 0).to(tl.float32, bitcast=True)
    else:
        return a


@triton.jit
def weight_operand(weight: tl.tensor, MARKED: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """A weight as products take it, from the weight itself or from what `marked` made of it."""
    return weight if MARKED else rounded(weight, PRECISION)


@triton.jit
def square_operand(weight: tl.tensor, MARKED: tl.constexpr, PRECISION: tl.constexpr) -> tl.tensor:
    """Its square as products take it.

    A square of a rounded weight, rounded again, is biased: by 1.5e-5 in TF32. "bf16" has no bits to keep the rest in.
    """
    if MARKED:
        weight = magnitude(weight, PRECISION)
    elif PRECISION == "bf16":
        weight = rounded(weight, PRECISION)
    return rounded(weight * weight, PRECISION)


@triton.jit
def _cut(a: tl.tensor) -> tl.tensor:
    """What a tensor core reads of a TF32 operand."""
    return (a.to(tl.int32, bitcast=True) & -8192).to(tl.float32, bitcast=True)


@triton.jit
def _rounded(a: tl.tensor) -> tl.tensor:
    """To the nearest bfloat16, as float32. The interpreter's own conversion truncates, and its dot multiplies bits."""
    bits = a.to(tl.int32, bitcast=True)
    bits += 32767 + ((bits >> 16) & 1)  # halfway goes to the even one
    return (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def half(a: tl.tensor) -> tl.tensor:
    """`a` as float16, saturated; NaN stays."""
    return tl.where(a > _LARGEST_HALF, _LARGEST_HALF, tl.where(a < -_LARGEST_HALF, -_LARGEST_HALF, a)).to(tl.float16)


@triton.jit
def operand(a: tl.tensor, ptr: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """`a`, float32, as it is to be written to `ptr`, where products read it."""
    if ptr.dtype.element_ty == tl.float16:
        return half(a)
    else:
        return rounded(a, PRECISION)


@triton.jit
def scale_of(largest_ptr: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """The power of two that brings a positive number to between 1 and 2, and its inverse; 1 for an infinity or NaN."""
    exponent = (tl.load(largest_ptr).to(tl.int32, bitcast=True) >> 23) & 255
    exponent = tl.where(exponent == 255, 127, tl.minimum(tl.maximum(exponent, 1), 253))
    scale = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale, (exponent << 23).to(tl.float32, bitcast=True)


@triton.jit
def halves(x: tl.tensor, HEIGHT: tl.constexpr, WIDTH: tl.constexpr) -> tuple[tl.tensor, tl.tensor]:
    """The first and the second half of the columns of x [HEIGHT, WIDTH]."""
    return tl.split(tl.permute(tl.reshape(x, [HEIGHT, 2, WIDTH // 2]), [0, 2, 1]))


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, total: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """total + a · b: [M, K], [K, N], [M, N], all float32, or a and b both of 16 bits."""
    if a.dtype.primitive_bitwidth == 16:
        if _INTERPRETED:
            return tl.dot(a.to(tl.float32), b.to(tl.float32), total)
        else:
            return tl.dot(a, b, total)
    elif PRECISION == "bf16":
        if _INTERPRETED:
            return tl.dot(_rounded(a), _rounded(b), total)
        else:
            return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    elif PRECISION == "tf32" and _INTERPRETED:
        return tl.dot(_cut(a), _cut(b), total)
    else:
        return tl.dot(a, b, total, input_precision=PRECISION)
