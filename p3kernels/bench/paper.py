"""`p3 bench --device cuda --roofline`: ours against eager torch on paper, bytes and launches counted the same way."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from typing import Any

from p3kernels.bench import rival
from p3kernels.bench.traffic import eager_actor
from triton_kernels.proof.model import TABLE

BATCH = 24576
"""Rows of the G1 training minibatch that the bars are stated for."""
PAPER_PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")
LEAST_SHARE = 4
"""Eager moves at least this many times what we move."""


def unavailable() -> str | None:
    """Why nothing can be counted here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install 'p3kernels[triton]' (Linux)"
    return None


def our_steps() -> dict[str, Sequence[Any]]:
    """The launches of one MM forward and backward, by dot precision, as the kernels' own tilings count them."""
    from triton_kernels.proof import roofline  # noqa: PLC0415  # imports triton
    from triton_kernels.proof.cases import collect  # noqa: PLC0415

    cases = collect("sm_90")
    found = {precision: roofline.steps(cases, precision) for precision in PAPER_PRECISIONS}
    return {precision: steps for precision, steps in found.items() if steps}


def modelled_us(workload: str, precision: str) -> float | None:
    """Least microseconds by every limit in the committed model; None for what it does not have."""
    found = json.loads(TABLE.read_text()).get(workload, {}).get(precision)
    return None if found is None else found["least_us"]


def ours_on_paper() -> dict[str, float]:
    """Least microseconds by dot precision: by every limit where the model has it, else by DRAM and products alone.

    It is empty without triton.
    """
    if unavailable() is not None:
        return {}
    counted = {precision: sum(step.least_us for step in steps) for precision, steps in our_steps().items()}
    return {precision: modelled_us("mm_train", precision) or least for precision, least in counted.items()}


def report() -> tuple[str, bool]:
    """The table with its bars, and whether every one is met."""
    from triton_kernels.proof import roofline  # noqa: PLC0415  # only here is it known that triton is installed

    eager = eager_actor(BATCH)
    least = roofline.layer_by_layer_bytes()
    lines = [
        f"One MM forward and backward of the actor, B = {BATCH}, on an H100 SXM: on paper, not measured.",
        "3.35 TB/s; fp32 67, TF32 495, BF16 989 TFLOP/s dense (tf32x3: a third of TF32). Least time: for each launch",
        "the greater of bytes and operations over their rates, no overhead. Eager torch: the printed formulas, every",
        'aten op reads its inputs and writes its outputs once. Rival: backend="cuda", cuBLAS products with one kernel',
        "between two of them.",
        "",
        f"{'':<13} {'launches':>8} {'MB moved':>9} {'GFLOP':>7} {'least us':>9} {'/ layer by layer':>16} "
        f"{'eager / it':>10}",
    ]

    def line(name: str, launches: int, moved: float, flops: float, least_us: float) -> str:
        return (
            f"{name:<13} {launches:>8} {moved / 1e6:>9.1f} {flops / 1e9:>7.2f} {least_us:>9.1f} "
            f"{moved / least:>16.2f} {eager.bytes_moved / moved:>10.1f}"
        )

    for precision in ("ieee", "tf32"):
        least_us = 1e6 * sum(max(roofline.least_seconds(*launch, precision)) for launch in eager.each)
        lines.append(line(f"eager, {precision}", eager.launches, eager.bytes_moved, eager.flops, least_us))
    layered = rival.moments(BATCH)
    for precision in ("ieee", "tf32"):
        least_us = 1e6 * sum(max(roofline.least_seconds(*launch, precision)) for launch in layered.each)
        lines.append(line(f"rival, {precision}", layered.launches, layered.bytes_moved, layered.flops, least_us))
    bars: list[tuple[bool, str]] = []
    records: dict[str, str] = {}
    for precision, steps in our_steps().items():
        moved = sum(step.bytes_moved for step in steps)
        launches, flops = sum(step.launches for step in steps), sum(step.flops for step in steps)
        lines.append(line(f"ours, {precision}", launches, moved, flops, sum(step.least_us for step in steps)))
        bars += [(met, f"{precision}: {text}") for met, text in roofline.bars(steps)]
        share = eager.bytes_moved / moved
        records[precision] = roofline.stricter(moved)
        bars.append((share >= LEAST_SHARE, f"{precision}: traffic 1/{share:.1f} of eager's (at most 1/{LEAST_SHARE})"))
    lines += ["", f"layer by layer, every tensor once a pass: {least / 1e6:.1f} MB"]
    lines += [roofline.verdict(met, text) for met, text in bars]
    lines += [f"         {precision}: {text}" for precision, text in records.items()]
    return "\n".join(lines), bool(bars) and all(met for met, _ in bars)
