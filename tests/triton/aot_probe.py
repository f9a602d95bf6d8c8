"""A kernel to prove the ahead-of-time tool with: a product that fits, and one that is made to spill."""

from __future__ import annotations

import triton
import triton.language as tl

from triton_kernels.launch import AotCase, tuned

SIZE = 256


@triton.jit
def _product_kernel(
    left_ptr,
    right_ptr,
    out_ptr,
    size,
    PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, size, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        left = tl.load(left_ptr + rows[:, None] * size + inner[None, :])
        right = tl.load(right_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total)


@triton.jit
def _sum_kernel(out_ptr, in_ptrs, sizes, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for index in tl.static_range(2):
        total += tl.load(in_ptrs[index] + at, mask=at < sizes[index], other=0.0)
    tl.store(out_ptr + at, total)


def sum_case() -> AotCase:
    """Arguments that are tuples."""
    config = {"BLOCK": 128, "num_warps": 1, "num_stages": 1}
    signature = {"out_ptr": "*fp32", "in_ptrs": ("*fp32", "*bf16"), "sizes": ("i32", "i32")}
    return AotCase(
        kernel="sum_kernel",
        function=_sum_kernel,
        signature=signature,
        constexprs={"BLOCK": 128},
        config=config,
        shape="128",
        bytes_moved=1280,
        compulsory_bytes=1280,
        flops=256,
        tensor_core=False,
        default=True,
        grid=1,
        divisible_by_16=("sizes",),
    )


def _case(precision: str, config: dict, default: bool) -> AotCase:
    blocks = {name: value for name, value in config.items() if name.startswith("BLOCK")}
    return AotCase(
        kernel="product_kernel",
        function=_product_kernel,
        signature={"left_ptr": "*fp32", "right_ptr": "*fp32", "out_ptr": "*fp32", "size": "i32"},
        constexprs={"PRECISION": precision, **blocks},
        config=config,
        shape=f"M=N=K={SIZE}",
        bytes_moved=4 * 4 * SIZE**2,
        compulsory_bytes=3 * 4 * SIZE**2,
        flops=2 * SIZE**3,
        tensor_core=precision != "ieee",
        default=default,
        grid=(SIZE // config["BLOCK_M"]) * (SIZE // config["BLOCK_N"]),
        precision=precision,
        divisible_by_16=("size",),
    )


def aot_cases() -> list[AotCase]:
    small = tuned("product_kernel", (SIZE,), dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, num_warps=4, num_stages=3))
    greedy = dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=16, num_warps=1, num_stages=1)
    huge = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=4, num_stages=5)
    return [
        _case("tf32", small, default=True),
        _case("ieee", small, default=True),
        _case("ieee", greedy, default=False),
        _case("tf32", huge, default=False),
        _case("no such precision", small, default=False),
        sum_case(),
    ]
