"""The work of `p3 bench`: runs what its options say."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from p3kernels.backends import choose_backend
from p3kernels.bench.options import (
    BATCH,
    OPS,
    QUICK_BATCH,
    QUICK_REPEATS,
    QUICK_SAMPLES,
    REPEATS,
    SAMPLES,
    build_parser,
    comma,
)
from p3kernels.bench.plot import write_plot
from p3kernels.bench.registry import load_entry
from p3kernels.bench.report import format_tables, write_json
from p3kernels.bench.run import Plan, run_case
from p3kernels.bench.verify import VerificationError
from p3kernels.info import collect


def _directory(text: str) -> Path:
    """A directory that can be written to; made if it is not there."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to {text!r}: {error.strerror or error}") from None
    return path


def _plan(options: argparse.Namespace) -> Plan:
    return Plan(
        batches=options.batch or (QUICK_BATCH if options.quick else BATCH),
        samples=options.samples or (QUICK_SAMPLES if options.quick else SAMPLES),
        threads=options.threads or torch.get_num_threads(),
        repeats=options.repeats or (QUICK_REPEATS if options.quick else None),
        compile=not (options.quick or options.no_compile),
        memory=not options.no_memory,
    )


def main(arguments: Sequence[str] | None = None, prog: str = "p3 bench") -> int:
    """Runs the benchmarks; returns 0, or 1 if results do not agree."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser = build_parser(prog)
    options = parser.parse_args(arguments)
    if options.roofline and options.device != "cuda":
        parser.error("argument --roofline: expected with --device cuda")
    if options.device == "cuda":
        return _on_device(parser, options, shlex.join([*prog.split(), *arguments]))
    try:
        out = _directory(options.out)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --out: {error}")
    plan = _plan(options)
    try:
        backend = choose_backend(None, torch.empty(0))
    except (ValueError, RuntimeError) as error:  # P3_BACKEND asks for what cannot run
        parser.error(str(error))
    threads_before = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        paths = _run(options.ops or OPS, plan, out, backend, shlex.join([*prog.split(), *arguments]))
    except VerificationError as error:
        print(f"\n{prog}: {error}. Nothing of this op is reported.", file=sys.stderr)
        return 1
    finally:
        torch.set_num_threads(threads_before)
    print("written:", *paths, sep="\n  ")
    return 0


def _on_device(parser: argparse.ArgumentParser, options: argparse.Namespace, command_line: str) -> int:
    """`--device cuda`: measured, or on paper; 2 where that cannot be."""
    from p3kernels.bench import device, paper  # noqa: PLC0415  # nothing of it is needed on a CPU

    if options.ops or options.samples or options.threads:
        parser.error("--device cuda measures the actor's moments; it takes --batch, --repeats, --no-compile and --out")
    if options.batch is not None and len(options.batch) != 1:
        parser.error(f"argument --batch: expected one number with --device cuda, got {comma(options.batch)}")
    reason = paper.unavailable() if options.roofline else device.unavailable()
    if reason is not None:
        hint = "" if options.roofline else "; the bound on paper: p3 bench --device cuda --roofline"
        print(f"{parser.prog}: {reason}. Nothing was measured{hint}", file=sys.stderr)
        return 2
    if options.roofline:
        text, met = paper.report()
        print(text)
        return 0 if met else 1
    try:
        out = _directory(options.out)
    except argparse.ArgumentTypeError as error:
        parser.error(f"argument --out: {error}")
    batch = options.batch[0] if options.batch else paper.BATCH
    repeats = options.repeats or (QUICK_REPEATS if options.quick else REPEATS)
    return device.main(batch, repeats, not (options.quick or options.no_compile), out, command_line)


def _run(ops: Sequence[str], plan: Plan, out: Path, backend: str, command_line: str) -> list[Path]:
    facts = collect()
    cores = os.cpu_count() or 1
    machine = f"{facts['machine']['cpu']}, {plan.threads} of {cores} cores, float32, backend {backend}"
    print(machine)
    record: dict[str, object] = {
        "command_line": command_line,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": "cpu",
        "dtype": "float32",
        "backend": backend,
        "threads": plan.threads,
        "info": facts,
    }
    paths = []
    for op in dict.fromkeys(ops):
        entry = load_entry(op)
        cases = [run_case(entry, size, plan) for size in plan.sizes(entry)]
        print(f"\n{format_tables(entry, cases)}\n", flush=True)
        path = out / f"{op}.json"
        write_json(path, entry, cases, record)
        paths.append(path)
        plot = out / f"{op}.png"
        skipped = write_plot(plot, entry, cases, machine)
        if skipped is None:
            paths.append(plot)
        else:
            print(f"plot of {op} skipped: {skipped}")
    return paths
