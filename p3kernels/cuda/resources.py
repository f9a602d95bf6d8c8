"""`python -m p3kernels.cuda.resources`: registers, spills and occupancy of every CUDA kernel, from nvcc, without a GPU.

Compiles csrc/cuda of a source checkout once an architecture and reads what ptxas says of each kernel. Ends with 1 if a
kernel spills or keeps anything on a stack.
"""

from __future__ import annotations

import argparse
import functools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from triton_kernels.proof.occupancy import LIMITS, blocks_per_sm

SOURCE = Path(__file__).resolve().parents[2] / "csrc" / "cuda" / "kernels.cu"
ROW_THREADS, ELEMENT_THREADS = 128, 256
G1_SHARED_BYTES = {
    ("MlpMoments", 16): 114_944,
    ("MlpMoments", 8): 65_792,
    ("MlpActions", 16): 98_560,
    ("MlpActions", 8): 57_600,
}
"""Bytes for the G1 actor with 99 context columns, by kernel and rows of a tile; a test computes them."""


@dataclass(frozen=True)
class Resources:
    """What one kernel needs."""

    kernel: str
    """As in the sources: "MlpMoments<Tile<16>, Bf16>"."""
    registers: int
    spilled_bytes: int
    """Bytes of registers that are stored to memory and loaded again."""
    stack_bytes: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return ELEMENT_THREADS if self.kernel.startswith("Elementwise") else ROW_THREADS

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block, for the G1 actor."""
        tile = re.search(r"Tile<(\d+)>", self.kernel)
        return 0 if tile is None else G1_SHARED_BYTES[self.kernel.split("<")[0], int(tile[1])]

    def blocks(self, arch: str) -> int:
        """On one multiprocessor at once; 0 where a block does not fit."""
        return blocks_per_sm(arch, self.registers, self.shared_bytes, self.threads // 32)


@functools.cache
def compiled(arch: str, nvcc: str = "nvcc") -> tuple[bytes, str]:
    """Every kernel as a cubin for "sm_90" and the like, and what ptxas says of each.

    Raises:
        RuntimeError: nvcc refuses the sources.
    """
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernels.cubin"
        command = [nvcc, "-std=c++17", "-O3", f"-arch={arch}", "-Xptxas", "-v", "-cubin", str(SOURCE), "-o", str(cubin)]
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return cubin.read_bytes(), done.stdout + done.stderr


def compile_for(arch: str, nvcc: str = "nvcc") -> list[Resources]:
    """Every kernel's resources on "sm_90" and the like."""
    return parse(compiled(arch, nvcc)[1])


def parse(said: str) -> list[Resources]:
    """From the lines of `ptxas -v`."""
    found = []
    blocks = re.split(r"Compiling entry function '(\S+)'", said)
    for mangled, text in zip(blocks[1::2], blocks[2::2], strict=True):
        spills = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", text)
        registers = re.search(r"Used (\d+) registers", text)
        assert spills is not None
        assert registers is not None
        stack, stored, loaded = (int(number) for number in spills.groups())
        found.append(Resources(readable(mangled), int(registers[1]), stored + loaded, stack))
    return sorted(found, key=lambda one: one.kernel)


def readable(mangled: str) -> str:
    """The kernel's own name in a mangled entry<Kernel>: names are preceded by their length, integers by Li."""
    body = mangled.split("entryI", 1)[1]
    names: list[str] = []
    at = 0
    while at < len(body):
        length = re.match(r"\d+", body[at:])
        again = re.match(r"S\d*_", body[at:])  # a namespace named before
        if again:
            at += again.end()
        elif body.startswith("Li", at):
            end = body.index("E", at)
            names.append(body[at + 2 : end])
            at = end
        elif length:
            begin = at + length.end()
            at = begin + int(length[0])
            names.append(body[begin:at])
        else:
            if body.startswith("f", at) and names and names[-1].isdigit():
                names.append("float")
            at += 1
        if names and names[-1] == "Arguments":
            break
    kernel, *rest = [name for name in names if name not in ("p3", "cuda", "Arguments")]
    if kernel == "Elementwise":
        return f"{kernel}<{rest[0]}>"
    return f"{kernel}<Tile<{rest[1]}>, {rest[2]}>" if rest and rest[0] == "Tile" else kernel


def table(arch: str, found: Sequence[Resources]) -> str:
    """The table of all kernels, one line each."""
    width = max(len(one.kernel) for one in found)
    lines = [f"{arch:<{width}} registers spills stack shared threads blocks/SM occupancy"]
    for one in found:
        blocks = one.blocks(arch)
        warps = blocks * one.threads // 32 / LIMITS[arch].warps
        lines.append(
            f"{one.kernel:<{width}} {one.registers:>9} {one.spilled_bytes:>6} {one.stack_bytes:>5} "
            f"{one.shared_bytes:>6} {one.threads:>7} {blocks:>9} {warps:>9.2f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table an architecture; 0, 1 where a kernel spills, 2 where it cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m p3kernels.cuda.resources", description=__doc__.splitlines()[0])
    parser.add_argument("--arch", choices=tuple(LIMITS), action="append", help="default: all")
    options = parser.parse_args(arguments)
    nvcc = shutil.which("nvcc")
    if nvcc is None or not SOURCE.exists():
        print(f"{parser.prog}: needs nvcc on the PATH and the sources in {SOURCE.parent}", file=sys.stderr)
        return 2
    spills = False
    for arch in options.arch or LIMITS:
        found = compile_for(arch, nvcc)
        print(table(arch, found))
        spills = spills or any(one.spilled_bytes or one.stack_bytes for one in found)
    return 1 if spills else 0


if __name__ == "__main__":
    raise SystemExit(main())
