"""`python -m triton_kernels.proof.roofline`: DRAM traffic and products of one MM forward and backward, on paper.

For every launch, the greater of its bytes over the memory's rate and its operations over the arithmetic's rate, and the
sum over the launches that one pass through the actor makes. Compiles nothing, so it knows neither the activations'
instructions nor L2: `python -m triton_kernels.aot` has the limits that bind.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from triton_kernels.proof.actor import ACTOR, PRECISIONS, STOCHASTIC
from triton_kernels.proof.actor import TRAINING_ROWS as BATCH
from triton_kernels.proof.model import FLOPS_PER_SECOND, least_seconds

if TYPE_CHECKING:
    from triton_kernels.proof.cases import Case  # imports triton, which need not be installed

WORKLOAD = "mm_train"
MOST_TRAFFIC, MOST_LAUNCHES = 1.3, 12


@dataclass(frozen=True)
class Step:
    """One kernel of the pass, `launches` times."""

    kernel: str
    shape: str
    launches: int
    bytes_moved: int
    compulsory_bytes: int
    flops: int
    memory_us: float
    math_us: float

    @property
    def least_us(self) -> float:
        """Microseconds of what binds: memory or arithmetic."""
        return max(self.memory_us, self.math_us)


def steps(cases: Sequence[Case], precision: str) -> list[Step]:
    """The launches of one MM forward and backward with the dots at `precision`; empty where no case has it."""
    found = []
    for case in cases:
        count = case.launches.get(WORKLOAD, 0)
        if count == 0 or case.precision != precision:
            continue
        cost = case.cost
        memory, math = least_seconds(cost.bytes_moved, cost.flops, precision)
        found.append(
            Step(
                kernel=case.kernel,
                shape=case.shape,
                launches=count,
                bytes_moved=count * cost.bytes_moved,
                compulsory_bytes=count * cost.compulsory_bytes,
                flops=count * cost.flops,
                memory_us=1e6 * count * memory,
                math_us=1e6 * count * math,
            )
        )
    return found


def layer_by_layer_bytes(
    batch: int = BATCH,
    sizes: Sequence[int] = ACTOR,
    stochastic: int = STOCHASTIC,
    element: int = 4,
    activations_stored: bool = True,
) -> int:
    """What a schedule of one pass a layer must move, forward and backward, each tensor once a pass; no tiling in it.

    Forward, a layer reads its input moments and parameters and writes its pre-activation moments, which are saved, and
    its output moments (the last layer, which is linear, its output alone). Backward, it reads the gradients of its
    outputs, its pre-activation moments, its input moments and its weight, and writes the gradients of its inputs and
    parameters. Without `activations_stored` the outputs of hidden layers are not written: whoever reads them makes them
    again from the pre-activation moments, at some 300 operations an element.
    """
    total = 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        last = layer == len(sizes) - 2
        moments_in = batch * (inputs + (stochastic if layer == 0 else inputs))
        moments_out = 2 * batch * outputs
        weight, bias = outputs * inputs, outputs
        forward = moments_in + weight + bias + moments_out * (1 if last or not activations_stored else 2)
        backward = moments_out * (1 if last else 2) + moments_in + weight + moments_in + weight + bias
        total += forward + backward
    return element * total


def table(found: Sequence[Step], precision: str) -> str:
    """The steps and their sum, aligned."""
    width = max(len(step.kernel) for step in found)
    shape = max(len(step.shape) for step in found)
    head = f"{'kernel':<{width}}  {'shape':<{shape}}"
    lines = [
        f"{head} {'launches':>8} {'MB moved':>9} {'MB least':>9} {'GFLOP':>7} {'memory us':>9} "
        f"{precision + ' us':>9} {'least us':>8}"
    ]
    for step in found:
        lines.append(f"{step.kernel:<{width}}  {step.shape:<{shape}} {_numbers(step.launches, [step])}")
    launches = sum(step.launches for step in found)
    lines.append(f"{'total':<{width}}  {'':<{shape}} {_numbers(launches, found)}")
    return "\n".join(lines)


def _numbers(launches: int, found: Sequence[Step]) -> str:
    return (
        f"{launches:>8} {sum(step.bytes_moved for step in found) / 1e6:>9.1f} "
        f"{sum(step.compulsory_bytes for step in found) / 1e6:>9.1f} {sum(step.flops for step in found) / 1e9:>7.2f} "
        f"{sum(step.memory_us for step in found):>9.1f} {sum(step.math_us for step in found):>9.1f} "
        f"{sum(step.least_us for step in found):>8.1f}"
    )


def verdict(met: bool, text: str) -> str:
    """A bar and whether it is met, as a line."""
    return f"{'met    ' if met else 'NOT MET'}  {text}"


def stricter(moved: int) -> str:
    """The same traffic against the least that any layer-by-layer schedule can do, for the record; not a bar."""
    least = layer_by_layer_bytes(activations_stored=False)
    ratio = f"{moved / least:.2f} x the {least / 1e6:.0f} MB"
    return f"for the record: {ratio} of a layer-by-layer schedule that never stores an activation"


def bars(found: Sequence[Step]) -> list[tuple[bool, str]]:
    """The bars that need nothing but our own launches: traffic against a layer-by-layer schedule, launches."""
    moved, least = sum(step.bytes_moved for step in found), layer_by_layer_bytes()
    launches = sum(step.launches for step in found)
    return [
        (
            moved <= MOST_TRAFFIC * least,
            f"traffic {moved / 1e6:.0f} MB, {moved / least:.2f} x the {least / 1e6:.0f} MB of a layer-by-layer "
            f"schedule (at most {MOST_TRAFFIC})",
        ),
        (launches <= MOST_LAUNCHES, f"{launches} launches (at most {MOST_LAUNCHES})"),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table of each precision; 0, or 1 where a bar is not met, or 2 where there is nothing to count."""
    parser = argparse.ArgumentParser(
        prog="python -m triton_kernels.proof.roofline",
        description=f"The least time on an H100 SXM of one MM forward and backward of the actor "
        f"{' -> '.join(map(str, ACTOR))} at B = {BATCH}, on paper.",
    )
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="of the dots (default: all)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="save the steps")
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("triton") is None:
        print(f"{parser.prog}: triton is not installed; pip install 'p3kernels[triton]' (Linux)", file=sys.stderr)
        return 2
    from triton_kernels.proof.cases import collect  # noqa: PLC0415  # only here is it known that triton is installed

    cases = collect("sm_90")
    by_precision = {name: steps(cases, name) for name in options.precision or PRECISIONS}
    by_precision = {name: found for name, found in by_precision.items() if found}
    if not by_precision:
        print(f"{parser.prog}: no kernel says that an MM forward and backward launches it", file=sys.stderr)
        return 2
    print(f"One MM forward and backward, B = {BATCH}, on an H100 SXM at 3.35 TB/s: on paper, not measured")
    met = True
    for name, found in by_precision.items():
        print(f"\n{name}, {FLOPS_PER_SECOND[name] / 1e12:.0f} TFLOP/s\n{table(found, name)}")
        for passed, text in bars(found):
            met = met and passed
            print(verdict(passed, text))
        print(f"         {stricter(sum(step.bytes_moved for step in found))}")
    print("\nagainst eager torch, counted the same way: p3 bench --device cuda --roofline")
    if options.json is not None:
        saved = {name: [asdict(step) for step in found] for name, found in by_precision.items()}
        options.json.write_text(json.dumps(saved, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
