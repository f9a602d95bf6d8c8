"""The command line of `p3 bench`."""

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
from p3kernels.bench.plot import write_plot
from p3kernels.bench.registry import OPS, load_entry
from p3kernels.bench.report import format_tables, write_json
from p3kernels.bench.run import MANY_SAMPLES, REPEATS, REPEATS_MANY_SAMPLES, Plan, run_case
from p3kernels.bench.verify import VerificationError
from p3kernels.info import collect

BATCH, SAMPLES = (4096,), (5, 15, 50)
QUICK_BATCH, QUICK_SAMPLES, QUICK_REPEATS = (1024,), (5,), 3


def _op(text: str) -> str:
    if text not in OPS:
        raise argparse.ArgumentTypeError(f"no benchmark of {text!r}; there is one of {', '.join(OPS)}")
    return text


def _count(text: str) -> int:
    """An integer ≥ 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return int(text)


def _counts(text: str) -> tuple[int, ...]:
    """Integers ≥ 1 with commas between them, without repetitions."""
    try:
        return tuple(dict.fromkeys(_count(part.strip()) for part in text.split(",")))
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"expected integers >= 1 with commas between them, got {text!r}") from None


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


def _comma(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def build_parser(prog: str) -> argparse.ArgumentParser:
    """The parser of `p3 bench`."""
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Times ops, forward and forward+backward, against eager torch, torch.compile and a bound (the bare "
        "GEMMs; for elementwise ops the memory traffic), on the CPU in float32. Results are compared before they are "
        "timed: exit code 1 if ours is not what the float64 reference says.",
    )
    parser.add_argument("ops", nargs="*", type=_op, metavar="OPS", help=f"which ops; all of {', '.join(OPS)} if none")
    parser.add_argument("--batch", type=_counts, metavar="B[,B]", help=f"rows (default {_comma(BATCH)})")
    parser.add_argument("--samples", type=_counts, metavar="N[,N]", help=f"mixture samples (default {_comma(SAMPLES)})")
    parser.add_argument("--threads", type=_count, metavar="N", help="torch's threads (default: torch's own choice)")
    parser.add_argument(
        "--repeats",
        type=_count,
        metavar="N",
        help=f"turns each contestant gets (default {REPEATS}, {REPEATS_MANY_SAMPLES} from N = {MANY_SAMPLES})",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"under a minute: batch {_comma(QUICK_BATCH)}, samples {_comma(QUICK_SAMPLES)}, repeats {QUICK_REPEATS}, "
        "no torch.compile, unless said otherwise",
    )
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes minutes")
    parser.add_argument("--no-memory", action="store_true", help="leave peak memory out: it takes a process each")
    parser.add_argument("--out", default="bench", metavar="DIR", help="where JSON and plots go (default bench/)")
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="cuda: one MM forward and backward of the actor on the GPU, with CUDA events (exit code 2 without one)",
    )
    parser.add_argument(
        "--roofline",
        action="store_true",
        help="with --device cuda: the least time on an H100 and eager's traffic, on paper; needs no GPU",
    )
    return parser


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
        parser.error(f"argument --batch: expected one number with --device cuda, got {_comma(options.batch)}")
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
