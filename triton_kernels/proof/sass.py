"""Machine code read as loops: how many instructions a warp issues on its way through a kernel.

`nvdisasm`, which triton brings, prints the code; a branch back to an earlier label is a loop, whose body is what lies
between. Slow paths (a division whose operands are out of the ordinary) are branched around and do not count; what they
call lies behind the kernel's end and does not count either.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence, Set
from dataclasses import dataclass
from pathlib import Path

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)([^;]*);")
_LABEL = re.compile(r"^(\.L_x_\d+|\$\S+):")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
PRODUCT = ("HGMMA", "HMMA", "IMMA", "QGMMA")
FETCH = ("LDGSTS", "LDG", "STG", "LDS", "STS", "MUFU", "BAR", *PRODUCT)
"""Kinds of instructions that a record counts by themselves."""


@dataclass(frozen=True)
class Loop:
    """A part of the code that is gone round."""

    begin: int
    """Index of its first instruction; `end` is the one after its branch back."""
    end: int


@dataclass(frozen=True)
class Code:
    """A kernel's instructions in order, by name, and its loops in the order of their beginnings."""

    names: tuple[str, ...]
    counted: tuple[bool, ...]
    """False on a slow path."""
    loops: tuple[Loop, ...]
    skips: tuple[tuple[int, int], ...] = ()
    """Branches forward: where each stands and where it leads."""

    def instructions(self, trips: Sequence[float], kind: str = "", straight: float = 1.0) -> float:
        """Instructions that a warp issues, each loop gone round as often as `trips` says; of a kind, if named.

        `straight` is the part of the code outside of loops that it goes through.

        Raises:
            ValueError: If the code has another number of loops than `trips`.
        """
        if len(trips) != len(self.loops):
            raise ValueError(f"the code has {len(self.loops)} loops, {len(trips)} were expected")
        total = 0.0
        inner = self._innermost()
        for at, (name, counted) in enumerate(zip(self.names, self.counted, strict=True)):
            if counted and (name.split(".")[0] == kind if kind else True):
                loop = inner[at]
                total += straight if loop is None else trips[loop]
        return total

    def kinds(self, loop: int | None = None) -> dict[str, int]:
        """Full names (LDGSTS.E.BYPASS.128) → how often they stand in the code, or in a loop of it."""
        found: dict[str, int] = {}
        part = slice(None) if loop is None else slice(self.loops[loop].begin, self.loops[loop].end)
        for name, counted in zip(self.names[part], self.counted[part], strict=True):
            if counted:
                found[name] = found.get(name, 0) + 1
        return found

    def _innermost(self) -> list[int | None]:
        inner: list[int | None] = [None] * len(self.names)
        widest_first = sorted(range(len(self.loops)), key=lambda i: self.loops[i].begin - self.loops[i].end)
        for index in widest_first:
            loop = self.loops[index]
            inner[loop.begin : loop.end] = [index] * (loop.end - loop.begin)
        return inner


def fitted(trips: Sequence[float], loops: int) -> tuple[float, ...] | None:
    """`trips` for code of so many loops, or None: Triton makes one loop of two where the outer has little to itself."""
    left = list(trips)
    for outer in reversed(range(len(trips) - 1)):
        if len(left) > loops and left[outer + 1] >= left[outer] and left[outer + 1] % left[outer] == 0:
            del left[outer]
    return tuple(left) if len(left) == loops else None


def disassemble(cubin: bytes) -> str:
    """What nvdisasm prints of a cubin."""
    import triton  # noqa: PLC0415

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([str(tool), "-c", file.name], capture_output=True, text=True, check=True).stdout


def parse(text: str) -> Code:
    """The code of the one kernel in `text`."""
    names: list[str] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    calls: list[int] = []
    for line in text.splitlines():
        label = _LABEL.match(line)
        if label and label[1].startswith("$"):
            break  # functions that slow paths call
        if label:
            labels[label[1]] = len(names)
        found = _INSTRUCTION.match(line)
        if not found:
            continue
        name, operands = found[2], found[3]
        target = _TARGET.search(operands)
        if name == "BRA" and target:
            branches.append((len(names), target[1]))
        if name.startswith("CALL"):
            calls.append(len(names))
        names.append(name)
    used = _without_padding(names, {at for at, label in branches if labels.get(label) == at})
    found_loops = {(labels.get(label, at + 1), at + 1) for at, label in branches if at < used}
    counted = [True] * used
    for call in calls:
        # From the branch that leads around it to the label that it leads to.
        around = [(at, labels[label]) for at, label in branches if at < call < labels.get(label, 0)]
        if around:
            at, end = max(around)
            for index in range(at + 1, min(end, used)):
                counted[index] = False
    # Of two that begin at one place, the longer one is the outer one.
    ordered = sorted((begin, -end) for begin, end in found_loops if begin < end - 1)
    loops = [Loop(begin, -end) for begin, end in ordered]
    skips = sorted((at, labels[label]) for at, label in branches if at < labels.get(label, 0) <= used)
    return Code(tuple(names[:used]), tuple(counted), tuple(loops), tuple(skips))


def _without_padding(names: Sequence[str], ends: Set[int]) -> int:
    """Where the code ends: behind the last instruction that is no filler, nor one of `ends`, jumps to themselves."""
    end = len(names)
    while end > 0 and (names[end - 1] == "NOP" or end - 1 in ends):
        end -= 1
    return end
