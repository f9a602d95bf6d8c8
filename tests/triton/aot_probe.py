"""A kernel to prove the ahead-of-time tool with: a product that fits, and one that is made to spill."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from triton_kernels.launch import start, tuned
from triton_kernels.proof.cases import Case
from triton_kernels.proof.costs import Cost
from triton_kernels.proof.record import Launch, recording

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
    for begin in range(0, size, BLOCK_K):
        inner = begin + tl.arange(0, BLOCK_K)
        left = tl.load(left_ptr + rows[:, None] * size + inner[None, :])
        right = tl.load(right_ptr + inner[:, None] * size + columns[None, :])
        total = tl.dot(left, right, total, input_precision=PRECISION)
    tl.store(out_ptr + rows[:, None] * size + columns[None, :], total)


@triton.jit
def _sum_kernel(out_ptr, in_ptrs, sizes, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for index in tl.static_range(2):
        total += tl.load(in_ptrs[index] + at).to(tl.float32) * sizes[index]
    tl.store(out_ptr + at, total)


def _case(launches: list[Launch], precision: str, default: bool = True) -> Case:
    (launch,) = launches
    cost = Cost(
        4 * 4 * SIZE**2,
        3 * 4 * SIZE**2,
        8 * 4 * SIZE**2,
        2 * SIZE**3,
        "PRECISION" in launch.arguments,
        0,
        (SIZE // 32,),
    )
    return Case(launch, precision, f"M=N=K={SIZE}", cost, {"probe": 1}, default)


def _product(precision: str, config: dict, default: bool) -> Case:
    with recording() as launches, torch.device("meta"):
        matrices = [torch.empty(SIZE, SIZE) for _ in range(3)]
        grid = (SIZE // config["BLOCK_M"]) * (SIZE // config["BLOCK_N"])
        start(_product_kernel, grid, *matrices, SIZE, precision, **config)
    return _case(launches, precision, default)


def _sum(offset: int) -> Case:
    """Arguments that are tuples; the second of them begins `offset` elements into its allocation."""
    with recording() as launches, torch.device("meta"):
        parts = torch.empty(256), torch.empty(256 + offset, dtype=torch.bfloat16)[offset:]
        start(_sum_kernel, 1, torch.empty(128), parts, (128, 100), BLOCK=128, num_warps=1, num_stages=1)
    return _case(launches, "ieee")


def collect(arch: str) -> list[Case]:
    small = tuned("product_kernel", (SIZE,), dict(BLOCK_M=64, BLOCK_N=64, BLOCK_K=32, num_warps=4, num_stages=3))
    greedy = dict(BLOCK_M=128, BLOCK_N=64, BLOCK_K=16, num_warps=1, num_stages=1)
    huge = dict(BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=4, num_stages=5)
    return [
        _product("tf32", small, default=True),
        _product("ieee", small, default=True),
        _product("ieee", greedy, default=False),
        _product("tf32", huge, default=False),
        _product("no such precision", small, default=False),
        _sum(0),
        _sum(3),
    ]
