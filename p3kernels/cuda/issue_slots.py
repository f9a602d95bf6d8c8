"""`python -m p3kernels.cuda.issue_slots`: least time of a rollout's one CUDA launch on an H100, from its machine code.

nvcc compiles csrc/cuda for sm_90, nvdisasm (which triton brings) prints the code of `MlpMoments`, and its instructions
are counted by the rules of `triton_kernels.proof.model`: those of each loop times how often the G1 actor goes round it,
one a clock and scheduler. Nothing is executed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from p3kernels.cuda.resources import SOURCE, compiled, readable
from triton_kernels.proof import model, sass
from triton_kernels.proof.actor import ACTOR, ROLLOUT_ROWS, STOCHASTIC
from triton_kernels.proof.sass import Code

WORKLOAD = "rollout_cuda"
"""Its name in the committed table, beside Triton's `rollout`."""
FEWER_ROWS = (1024, 2048)
THREADS, THREAD_ROWS, THREAD_COLUMNS, STAGE_WEIGHTS = 128, 8, 4, 2048
"""As in csrc/cuda/layer.h."""
PROCESSORS = model.SCHEDULERS // 4
PRODUCTS = THREAD_ROWS * THREAD_COLUMNS
"""Multiply-adds of a thread for one moment and one input."""


@dataclass(frozen=True)
class Tile:
    """The sizes that csrc/cuda/layer.h derives from the rows of a tile."""

    rows: int

    @property
    def columns(self) -> int:
        """Outputs made at once."""
        return THREADS * THREAD_ROWS // self.rows * THREAD_COLUMNS

    @property
    def depth(self) -> int:
        """Inputs of a stage."""
        return STAGE_WEIGHTS // self.columns

    @property
    def kernel(self) -> str:
        """With float32 weights."""
        return f"MlpMoments<Tile<{self.rows}>, float>"


def machine_code(nvcc: str = "nvcc") -> dict[str, str]:
    """What nvdisasm prints of every kernel on sm_90, by the kernel's name."""
    text = sass.disassemble(compiled(model.ARCH, nvcc)[0])
    parts = re.split(r"^\.text\.(\S+):$", text, flags=re.MULTILINE)
    return {readable(name): body for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def stages(tile: Tile) -> tuple[int, int]:
    """Stages of weights that a block goes through, and those of them that meet deterministic inputs alone."""
    everywhere = deterministic = 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(ACTOR)):
        turns = -(-outputs // tile.columns)
        everywhere += turns * -(-inputs // tile.depth)
        if layer == 0:
            deterministic = turns * ((inputs - STOCHASTIC) // tile.depth)
    return everywhere, deterministic


def warp_instructions(code: Code, tile: Tile) -> float | None:
    """Instructions that a warp issues for the G1 actor; None where the compiler made other loops of the source.

    Both ways through an activation count: a warp whose elements differ takes both.
    """
    if len(code.loops) != 9:
        return None
    everywhere, deterministic = stages(tile)
    elements = sum(ACTOR[1:-1]) * tile.rows / THREADS
    read, written = (-(-width * tile.rows // THREADS) for width in (ACTOR[0], ACTOR[-1]))
    turns = sum(-(-outputs // tile.columns) for outputs in ACTOR[1:])
    # Widths in fours and the rest; inputs in twos; layers; columns; stages; activations; outputs: the rest, in fours.
    trips = (1, 0, read / 2, len(ACTOR) - 1, turns, everywhere, elements, written % 4, written // 4)
    stage = code.loops[5]
    of_variance = [
        end - begin - 1
        for begin, end in code.skips
        if stage.begin <= begin and end <= stage.end and _multiply_adds(code, begin, end) == PRODUCTS
    ]
    if len(of_variance) != tile.depth:
        return None
    return code.instructions(trips) - deterministic * sum(of_variance)


def _multiply_adds(code: Code, begin: int, end: int) -> int:
    return sum(name.startswith("FFMA") for name in code.names[begin:end])


@dataclass(frozen=True)
class Rollout:
    """The moments of the G1 actor for some rows, in one launch."""

    rows: int
    tile: Tile
    issued: float
    """Instructions of a warp."""

    @property
    def blocks(self) -> int:
        """Tiles of rows, a block each."""
        return -(-self.rows // self.tile.rows)

    @property
    def busiest_us(self) -> float:
        """Microseconds that the multiprocessor with the most blocks issues; each scheduler has a warp of each block."""
        return 1e6 * -(-self.blocks // PROCESSORS) * self.issued / model.CLOCK

    def record(self) -> model.Record:
        """By every limit, as `triton_kernels.proof.model` has it."""
        parameters = sum(i * o + o for i, o in itertools.pairwise(ACTOR))
        tensors = self.rows * (ACTOR[0] + STOCHASTIC + 2 * ACTOR[-1])
        first, *hidden = (i * o for i, o in itertools.pairwise(ACTOR))
        flops = 2 * self.rows * (first + STOCHASTIC * ACTOR[1] + 2 * sum(hidden))
        instructions = self.issued * self.blocks * THREADS / 32
        moved, from_l2 = 4 * (tensors + parameters), 4 * (tensors + self.blocks * parameters)
        dram, math = model.least_seconds(moved, flops, "ieee")
        by_limit = {
            "dram_us": 1e6 * dram,
            "l2_us": 1e6 * from_l2 / model.L2_BYTES_PER_SECOND,
            "tensor_us": 1e6 * math,
            "issue_us": 1e6 * instructions / model.ISSUED_PER_SECOND,
            "special_us": 0.0,
        }
        return {
            "workload": WORKLOAD,
            "precision": "ieee",
            "launches": 1,
            "dram_bytes": moved,
            "l2_bytes": from_l2,
            "flops": flops,
            "instructions_per_activation": 32 * instructions / (self.rows * sum(ACTOR[1:-1])),
            **by_limit,
            "least_us": max(by_limit.values()),
        }


def rollouts(nvcc: str = "nvcc", rows: Sequence[int] = (ROLLOUT_ROWS,)) -> list[Rollout]:
    """One for each number of rows.

    Raises:
        RuntimeError: nvcc refuses the sources, or makes loops of them that are not understood.
    """
    text, found = machine_code(nvcc), []
    for number in rows:
        tile = Tile(8 if number <= 8 * PROCESSORS else 16)
        issued = warp_instructions(sass.parse(text[tile.kernel]), tile)
        if issued is None:
            raise RuntimeError(f"the loops of {tile.kernel} are not those of csrc/cuda/layer.h: the model needs a look")
        found.append(Rollout(number, tile, issued))
    return found


def unavailable() -> str | None:
    """Why nothing can be counted here, or None."""
    if shutil.which("nvcc") is None or not SOURCE.exists():
        return f"needs nvcc on the PATH and the sources in {SOURCE.parent}"
    if importlib.util.find_spec("triton") is None:
        return "needs the nvdisasm that triton brings; pip install 'p3kernels[triton]' (Linux)"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the limits; 0, or 2 where they cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m p3kernels.cuda.issue_slots", description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help=f"write the modelled limits to {model.TABLE.name}")
    options = parser.parse_args(arguments)
    reason = unavailable()
    if reason is not None:
        print(f"{parser.prog}: {reason}", file=sys.stderr)
        return 2
    found = rollouts(rows=(*FEWER_ROWS, ROLLOUT_ROWS))
    print(f"Least time on an H100 SXM by each limit: modelled, not measured\n{model.table([found[-1].record()])}\n")
    for one in found:
        print(
            f"{one.rows:>5} rows, {one.blocks:>3} blocks of {one.tile.rows:>2}: {one.issued:,.0f} instructions a warp, "
            f"{one.busiest_us:.0f} us on the busiest multiprocessor"
        )
    if options.table:
        model.write_table([found[-1].record()])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
