"""One op at one size: compare, then time, then measure memory."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from p3kernels.bench import memory
from p3kernels.bench.contestants import Contestant, build
from p3kernels.bench.entry import Entry, Size
from p3kernels.bench.options import MANY_SAMPLES, REPEATS, REPEATS_MANY_SAMPLES
from p3kernels.bench.results import MODES, QUIET_CORES, CaseResult, ContestantResult
from p3kernels.bench.timing import OtherWork, interleave
from p3kernels.bench.verify import Comparison, VerificationError, reference_size, verify_other, verify_ours, worst


@dataclass(frozen=True)
class Plan:
    """What to measure, as the command line says."""

    batches: tuple[int, ...]
    samples: tuple[int, ...]
    threads: int
    repeats: int | None
    """None for the default, which is less for slow cases."""
    compile: bool
    memory: bool

    def sizes(self, entry: Entry) -> list[Size]:
        """The sizes of an entry."""
        samples = self.samples if entry.over_samples else (None,)
        return [Size(batch, count) for batch in self.batches for count in samples]

    def repeats_of(self, size: Size) -> int:
        """How often a contestant is timed."""
        if self.repeats is not None:
            return self.repeats
        return REPEATS_MANY_SAMPLES if size.samples is not None and size.samples >= MANY_SAMPLES else REPEATS


def _progress(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{': ' + lines[0] if lines else ''}"


def _errors(comparisons: list[Comparison]) -> str:
    outputs, gradients = worst(comparisons, gradients=False), worst(comparisons, gradients=True)
    return f"outputs {outputs:.1e}, gradients {gradients:.1e}"


def run_case(entry: Entry, size: Size, plan: Plan) -> CaseResult:
    """Measures one op at one size.

    Raises:
        VerificationError: Ours is not what the reference says, or an exact contestant is not what ours says.
    """
    repeats, small = plan.repeats_of(size), reference_size(size)
    _progress(f"{entry.name} {size.label}")
    _progress("  ours: ", end="")
    results = {"ours": ContestantResult("ours", f"the float64 reference on {small.batch} rows")}
    results["ours"].comparisons = compared = verify_ours(entry, size)
    _progress(f"agrees with the float64 reference on {small.batch} rows: {_errors(compared)}")

    ours = build(entry, size, "ours")
    assert ours is not None
    contestants = {"ours": ours}
    for name in ("eager", *(("compile",) if plan.compile else ()), "bound"):
        contestant = build(entry, size, name)
        if contestant is not None:
            results[name] = _admit(entry, contestant, ours)
            if results[name].skipped is None:
                contestants[name] = contestant

    other_work = OtherWork()
    for mode in MODES:
        _progress(f"  {mode.replace('_', '+')}: {repeats} turns each ... ", end="")
        timings = interleave({name: getattr(c, mode) for name, c in contestants.items()}, repeats)
        for name, timing in timings.items():
            results[name].timings[mode] = timing
        _progress(", ".join(f"{results[name].label} {timing.best_ms:.3g} ms" for name, timing in timings.items()))
    other_cores = other_work.cores()
    if other_cores is not None and other_cores > QUIET_CORES:
        _progress(f"  other processes used {other_cores:.1f} cores meanwhile: expect noise")

    if entry.measures_memory and plan.memory:
        _measure_memory(entry, size, plan, results)
    return CaseResult(size, small, repeats, results, other_cores)


def _admit(entry: Entry, contestant: Contestant, ours: Contestant) -> ContestantResult:
    """Runs a contestant for the first time: compiled if it must be, and compared with ours."""
    result = ContestantResult(contestant.label)
    _progress(f"  {contestant.label}: ", end="")
    begin = time.perf_counter()
    try:
        if contestant.name == "bound":
            contestant.forward_backward()
            _progress("ready")
            return result
        if contestant.name == "compile":
            _progress("compiling ... ", end="")
            contestant.forward()
        result.comparisons = compared = verify_other(entry, contestant, ours)
        result.compared_with = "ours"
    except VerificationError:
        _progress("disagrees")
        raise
    except Exception as error:  # it may be anything: no compiler, no memory; ours is still worth measuring
        result.skipped = _first_line(error)
        _progress(f"skipped, {result.skipped}")
        return result
    note = "" if all(c.ok for c in compared) else ", beyond tolerance: this formula loses digits in float32"
    seconds = f"first calls took {time.perf_counter() - begin:.1f} s; "
    _progress(f"{seconds if contestant.name == 'compile' else ''}difference from ours: {_errors(compared)}{note}")
    return result


def _measure_memory(entry: Entry, size: Size, plan: Plan, results: dict[str, ContestantResult]) -> None:
    reason = memory.unavailable_reason()
    _progress("  peak memory, a process each: ", end="")
    shown = []
    for name, result in results.items():
        if name == "bound" or result.skipped is not None:
            continue
        if reason is None:
            result.peak_bytes, note = memory.peak_bytes(entry.name, name, size, plan.threads)
            result.peak_note = note or None
        else:
            result.peak_note = reason
        peak = result.peak_bytes
        shown.append(f"{result.label} {f'{peak / 2**20:.0f} MiB' if peak is not None else result.peak_note}")
    _progress(", ".join(shown))
