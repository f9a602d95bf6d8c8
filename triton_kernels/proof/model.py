"""The least time of a workload on an H100, by each of its limits: memory, L2, tensor cores, instructions.

Every limit is the time that a launch would take if nothing else held it up: bytes over a rate, operations over a rate,
instructions at one a clock on each of 4 schedulers of 132 multiprocessors. No launch overhead, no latency, no tails,
no bank conflicts: lower bounds, not predictions and not measurements.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("model.json")
"""The limits of every workload as they were last accepted: `python -m triton_kernels.aot --table` writes them."""
SLACK = 1.02
"""What another patch level of the compiler may add."""

ARCH = "sm_90"
BYTES_PER_SECOND = 3.35e12
"""H100 SXM, HBM3."""
L2_BYTES_PER_SECOND = 5.5e12
"""Read hits as microbenchmarks of the H100 report them; writes are counted at the same rate."""
FLOPS_PER_SECOND = {"ieee": 67e12, "tf32x3": 495e12 / 3, "tf32": 495e12, "bf16": 989e12}
"""H100 SXM: fp32 multiply-adds; dense TF32, which tf32x3 needs three of; dense BF16, whose rate float16 has, too."""
SCHEDULERS, CLOCK = 4 * 132, 1.755e9
ISSUED_PER_SECOND = SCHEDULERS * CLOCK
"""Instructions of a warp."""
SPECIAL_PER_SECOND = ISSUED_PER_SECOND / 8
"""MUFU: 4 lanes a clock and scheduler."""
LIMITS = ("dram_us", "l2_us", "tensor_us", "issue_us", "special_us")

Record = dict[str, Any]


def least_seconds(bytes_moved: float, flops: float, precision: str) -> tuple[float, float]:
    """Seconds that the memory and the arithmetic need, each alone."""
    return bytes_moved / BYTES_PER_SECOND, flops / FLOPS_PER_SECOND[precision]


def limits(record: Record) -> dict[str, float | None]:
    """Microseconds of one launch by each limit, from a record of `aot`; None where the loops were not understood.

    In "ieee" products are instructions like others: `tensor_us` is then the rate of fp32 multiply-adds.
    """
    issued, special = record["instructions"], record["special"]
    rate = "bf16" if record["half"] else record["precision"]
    dram, math = least_seconds(record["bytes_moved"], record["flops"] if record["products"] else 0, rate)
    return {
        "dram_us": 1e6 * dram,
        "l2_us": 1e6 * record["l2_bytes"] / L2_BYTES_PER_SECOND,
        "tensor_us": 1e6 * math,
        "issue_us": None if issued is None else 1e6 * issued / ISSUED_PER_SECOND,
        "special_us": None if special is None else 1e6 * special / SPECIAL_PER_SECOND,
    }


def workload(records: Sequence[Record], name: str, precision: str) -> Record | None:
    """The sums over the launches of a workload; None where no record has it."""
    steps = []
    for record in records:
        count = record["launches"].get(name, 0)
        if count == 0 or record["precision"] != precision:
            continue
        by_limit = {key: count * (value or 0.0) for key, value in limits(record).items()}
        steps.append(
            {
                "kernel": record["kernel"],
                "shape": record["shape"],
                "config": record["config"],
                "registers": record["registers"],
                "launches": count,
                "dram_bytes": count * record["bytes_moved"],
                "l2_bytes": count * record["l2_bytes"],
                "flops": count * (record["flops"] if record["products"] else 0),
                "activations": count * record["activations"],
                "instructions": count * (record["instructions"] or 0.0),
                **by_limit,
                "least_us": max(by_limit.values()),
            }
        )
    if not steps:
        return None
    summed = ("launches", "dram_bytes", "l2_bytes", "flops", "activations", "instructions", *LIMITS, "least_us")
    total: Record = {key: sum(step[key] for step in steps) for key in summed}
    activations = total["activations"]
    total["instructions_per_activation"] = 32 * total["instructions"] / activations if activations else 0.0
    return {"workload": name, "precision": precision, **total, "steps": steps}


def workloads(records: Sequence[Record]) -> list[Record]:
    """Every workload and precision that the records have in full."""
    names = dict.fromkeys(name for record in records for name in record["launches"])
    precisions = dict.fromkeys(record["precision"] for record in records)
    found = (workload(records, name, precision) for name in names for precision in precisions)
    return [one for one in found if one is not None]


def write_table(found: Sequence[Record]) -> None:
    """Puts the workloads' limits into the committed table, beside those of other workloads and precisions."""
    known = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for one in found:
        kept = ("launches", "dram_bytes", "l2_bytes", "flops", "instructions_per_activation", *LIMITS, "least_us")
        known.setdefault(one["workload"], {})[one["precision"]] = {key: round(one[key], 1) for key in kept}
    TABLE.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def dearer(found: Sequence[Record]) -> list[str]:
    """What costs more than the committed table says, a line each."""
    known = json.loads(TABLE.read_text())
    lines = []
    for one in found:
        accepted = known.get(one["workload"], {}).get(one["precision"])
        name = f"{one['workload']}, {one['precision']}"
        if accepted is None:
            lines.append(f"{name}: not in {TABLE.name}")
            continue
        for key in ("launches", *LIMITS):
            if one[key] > SLACK * accepted[key] + 0.1:
                lines.append(f"{name}: {key} {one[key]:.1f}, accepted were {accepted[key]:.1f}")
    return lines


def table(found: Sequence[Record]) -> str:
    """One line a workload, aligned."""
    lines = [
        f"{'workload':<22} {'dots':<6} {'launches':>8} {'DRAM MB':>9} {'L2 MB':>9} {'GFLOP':>8} {'instr/act':>9} "
        f"{'DRAM us':>8} {'L2 us':>8} {'tensor':>8} {'issue':>8} {'special':>8} {'least us':>8}"
    ]
    for one in found:
        lines.append(
            f"{one['workload']:<22} {one['precision']:<6} {one['launches']:>8} {one['dram_bytes'] / 1e6:>9.0f} "
            f"{one['l2_bytes'] / 1e6:>9.0f} {one['flops'] / 1e9:>8.2f} {one['instructions_per_activation']:>9.0f} "
            f"{one['dram_us']:>8.0f} {one['l2_us']:>8.0f} {one['tensor_us']:>8.0f} {one['issue_us']:>8.0f} "
            f"{one['special_us']:>8.0f} {one['least_us']:>8.0f}"
        )
    return "\n".join(lines)


def steps_table(one: Record) -> str:
    """The launches of a workload, one line each."""
    lines = []
    for step in one["steps"]:
        blocks = "x".join(str(value) for key, value in step["config"].items() if key.startswith("BLOCK"))
        lines.append(
            f"{step['kernel']:<36} {step['shape']:<44} {blocks:<12} x{step['launches']:<3} regs {step['registers']:>3} "
            f"{step['dram_us']:>8.1f} {step['l2_us']:>8.1f} {step['tensor_us']:>8.1f} {step['issue_us']:>8.1f} "
            f"{step['special_us']:>8.1f} {step['least_us']:>8.1f}"
        )
    return "\n".join(lines)
