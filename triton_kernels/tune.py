"""`python -m triton_kernels.tune`: measures configurations on the GPU that is here and keeps the fastest of each key.

A search by neighbours: from the configuration in use, every block size, the warps and the stages are halved, doubled
or stepped one at a time; the fastest neighbour is the next start, until none is faster. A neighbour that does not
compile, does not fit or gives other results is passed over. The whole pass is timed, so that a kernel is judged beside
the others that it shares the cache with. What is found goes, entry by entry, to the user's cache, where `launch.tuned`
looks first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from triton_kernels import launch
from triton_kernels.launch import Config

SMALLEST_BLOCK, LARGEST_BLOCK = 16, 2048
WARPS, STAGES = (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6)
GAIN = 0.98
"""A neighbour has to be this much faster: less is the clock's noise."""

Workload = Callable[[], Sequence[Tensor]]


def neighbours(config: Config) -> Iterator[Config]:
    """Every configuration one step away."""
    for name, value in config.items():
        if name == "num_stages":
            steps = [stage for stage in (value - 1, value + 1) if stage in STAGES]
        elif name == "num_warps":
            steps = [warps for warps in (value // 2, value * 2) if warps in WARPS]
        elif isinstance(value, int) and not isinstance(value, bool) and value >= SMALLEST_BLOCK:
            steps = [block for block in (value // 2, value * 2) if SMALLEST_BLOCK <= block <= LARGEST_BLOCK]
        else:
            steps = []
        for step in steps:
            neighbour = {**config, name: step}
            if _consistent(neighbour):
                yield neighbour


def _consistent(config: Config) -> bool:
    """A chunk is a part of its block: a larger one would touch a neighbour's rows."""
    chunks = [name for name in config if name.startswith("CHUNK_")]
    return all(config[name] <= config.get(name.replace("CHUNK_", "BLOCK_"), math.inf) for name in chunks)


def climb(cost: Callable[[Config], float], start: Config, most_steps: int = 8) -> tuple[Config, float, float]:
    """The configuration that no neighbour beats.

    Args:
        cost: Milliseconds; inf for a configuration that cannot run.
        start: Where to begin.
        most_steps: How many times to move on.

    Returns:
        The best configuration, its cost, and the cost of `start`.
    """
    known: dict[str, float] = {}

    def remembered(config: Config) -> float:
        key = json.dumps(config, sort_keys=True)
        if key not in known:
            known[key] = cost(config)
        return known[key]

    best, first = start, remembered(start)
    for _ in range(most_steps):
        candidate = min(neighbours(best), key=remembered, default=best)
        if not remembered(candidate) < GAIN * remembered(best):
            break
        best = candidate
    return best, remembered(best), first


def same_results(got: Sequence[Tensor], expected: Sequence[Tensor]) -> bool:
    """Whether another tiling computed the same thing: sums in another order, so equal up to their rounding."""
    return len(got) == len(expected) and all(
        a.shape == b.shape and bool(((a - b).abs().max() if a.numel() else a.sum()) <= 1e-4 * _scale(b))
        for a, b in zip(got, expected, strict=True)
    )


def _scale(tensor: Tensor) -> Tensor:
    return tensor.abs().max() if tensor.numel() else torch.ones(())


def cost_of(workload: Workload, entry: str, repeats: int) -> Callable[[Config], float]:
    """Milliseconds of the workload with one entry's configuration replaced; inf where it fails or differs."""
    expected = [tensor.clone() for tensor in workload()]

    def cost(config: Config) -> float:
        with launch.forced({entry: config}):
            try:
                if not same_results(workload(), expected):
                    return math.inf
                return min(_milliseconds(workload) for _ in range(repeats))
            except Exception:  # out of shared memory, a shape the compiler refuses: not a configuration to use
                return math.inf

    return cost


def _milliseconds(workload: Workload, calls: int = 10) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        workload()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def save(path: Path, device: str, found: Mapping[str, Config]) -> None:
    """Adds the entries to the user's table, keeping what is there; a reader never sees half a file."""
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError):
        table = {}
    table = table if isinstance(table, dict) else {}
    table[device] = {**table.get(device, {}), **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    with os.fdopen(handle, "w") as file:
        json.dump(table, file, indent=1, sort_keys=True)
    os.replace(temporary, path)
    launch.forget_tables()


def tune(
    workloads: Mapping[str, Workload],
    repeats: int,
    keep: Callable[[str, Config], None] = lambda entry, config: None,
    known: Collection[str] = (),
    out_of_time: Callable[[], bool] = lambda: False,
) -> dict[str, Config]:
    """The configurations that beat the ones in use, by entry name.

    Args:
        workloads: Passes that ask for configurations.
        repeats: Timings of each configuration.
        keep: Told of every entry as soon as its search is over, with the best configuration, new or not.
        known: Entries that are left out.
        out_of_time: Asked before every entry; True ends the search.
    """
    found: dict[str, Config] = {}
    seen = set(known)
    for name, workload in workloads.items():
        with launch.recorded() as in_use, launch.forced(found):
            workload()
        for entry, config in in_use.items():
            if entry in seen:
                continue
            if out_of_time():
                return found
            seen.add(entry)
            with launch.forced(found):
                best, after, before = climb(cost_of(workload, entry, repeats), config)
            print(
                f"{name}: {entry} {before:.3f} -> {after:.3f} ms {best if best != config else 'as it was'}", flush=True
            )
            keep(entry, best)
            if best != config:
                found[entry] = best
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 where there is no GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m triton_kernels.tune",
        description=f"Finds the fastest configurations on this GPU and writes them to {launch.cache_path()}.",
    )
    parser.add_argument("--batch", type=int, default=24576, metavar="B", help="rows (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="timings of each (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=math.inf, metavar="S", help="begin no entry after so many")
    parser.add_argument("--resume", action="store_true", help="leave out what the file has for this GPU already")
    options = parser.parse_args(arguments)
    if options.batch < 1 or options.repeats < 1:
        parser.error("--batch and --repeats: expected at least 1")
    if not options.seconds > 0:
        parser.error("--seconds: expected a positive number")
    if launch.interpreted():
        print(f"{parser.prog}: TRITON_INTERPRET=1 is set: there is nothing to tune; unset it", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print(f"{parser.prog}: no CUDA device answers torch: nothing was tuned", file=sys.stderr)
        return 2
    from triton_kernels.proof.workloads import tuning_passes  # noqa: PLC0415  # imports triton

    device, path = launch.device_name(), launch.cache_path()
    print(f"{device}, B = {options.batch}")
    known = launch.measured_entries(device) if options.resume else ()
    end = time.monotonic() + options.seconds
    written: list[str] = []

    def keep(entry: str, config: Config) -> None:
        save(path, device, {entry: config})
        written.append(entry)

    passes = tuning_passes(options.batch, torch.device("cuda"))
    found = tune(passes, options.repeats, keep, known, lambda: time.monotonic() > end)
    rest = "; the time was up, --resume goes on" if time.monotonic() > end else ""
    print(f"{len(written)} entries, {len(found)} of them faster than before, are in {path}{rest}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
