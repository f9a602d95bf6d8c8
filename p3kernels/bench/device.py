"""`p3 bench --device cuda`: one MM forward and backward of the actor on a GPU, measured, beside its bound on paper.

Contestants are eager torch with the printed formulas, torch.compile of the same, cuBLAS products with elementwise
kernels (`backend="cuda"`), ours at each dot precision, and ours replayed from a CUDA graph. Ours is compared with the
float64 reference before anything is timed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

import p3kernels
from p3kernels.bench import mlp_moments
from p3kernels.bench.actor import moment_inputs, split_parameters
from p3kernels.bench.contestants import Contestant, leaves
from p3kernels.bench.entry import Forward, Size, Tensors
from p3kernels.bench.paper import BATCH, PAPER_PRECISIONS, ours_on_paper
from p3kernels.bench.verify import compare_tensor
from p3kernels.info import collect

TOLERANCES = {"ieee": (1e-5, 1e-4), "tf32x3": (1e-5, 1e-4), "tf32": (1e-2, 1e-2), "bf16": (2e-2, 2e-2)}
"""Errors of outputs and gradients, over the largest element; tf32 and bf16: four times what rounding the operands costs
(tools/dot_precision_error.py)."""
VERIFY_ROWS = 1024
TURN_MS = 20.0
"""A turn repeats the call for about this long, so that the events' own resolution does not count."""


@dataclass
class Row:
    """The measurements of one contestant."""

    name: str
    best_ms: float | None = None
    median_ms: float | None = None
    launches: int | None = None
    """Kernels that the device ran in one call, from the profiler; None where it tells none."""
    paper_us: float | None = None
    """The bound that `p3 bench --device cuda --roofline` prints."""
    error: float | None = None
    """The largest against the float64 reference, relative to each tensor's largest element."""
    skipped: str | None = None


def unavailable() -> str | None:
    """Why nothing can be measured on a GPU here, or None."""
    if torch.version.cuda is None:
        return f"no CUDA device: this torch ({torch.__version__}) is built without CUDA"
    if not torch.cuda.is_available():
        return f"no CUDA device: torch is built for CUDA {torch.version.cuda}, but no device answers"
    return None


def ours(precision: str) -> Forward:
    """Our op with its dots at `precision`."""

    def forward(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
        weights, biases = split_parameters(tensors)
        return p3kernels.mlp_moments(
            tensors["mean"], tensors["var"], weights, biases, backend="triton", precision=precision
        )

    return forward


def rival(tensors: Tensors, _: Size) -> tuple[Tensor, Tensor]:
    """The fair rival of ours: torch's products with one elementwise kernel between two of them."""
    weights, biases = split_parameters(tensors)
    return p3kernels.mlp_moments(tensors["mean"], tensors["var"], weights, biases, backend="cuda")


RIVAL_SETTINGS = {"ieee": "highest", "tf32": "high"}
"""What torch calls the precision of its products."""


@contextlib.contextmanager
def products_of_torch(setting: str) -> Iterator[None]:
    """Inside, torch's own products have this precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def contestant(name: str, function: Forward, size: Size, device: str) -> Contestant:
    """A forward on seeded inputs on the device; its cotangents are made there once."""
    inputs = {key: tensor.to(device) for key, tensor in moment_inputs(size).items()}
    made = Contestant(name, name, function, leaves(inputs), size)
    columns = split_parameters(inputs)[1][-1].shape[0]
    source = torch.Generator().manual_seed(1)
    made.cotangents = [torch.randn(size.batch, columns, generator=source).to(device) for _ in range(2)]
    return made


def largest_error(precision: str, rows: int, device: str) -> tuple[float, bool]:
    """Our largest error against the float64 reference, and whether outputs and gradients are within `TOLERANCES`."""
    size = Size(rows)
    got = contestant("ours", ours(precision), size, device)
    outputs, gradients = got.results()
    reference = contestant("reference", mlp_moments.ENTRY.reference, size, device)
    reference.inputs = leaves(reference.inputs, torch.float64)
    reference.cotangents = [tensor.double() for tensor in got.cotangents]
    expected_outputs, expected_gradients = reference.results()
    of_outputs, of_gradients = TOLERANCES[precision]
    compared = [
        compare_tensor(name, output, expected, of_outputs)
        for name, output, expected in zip(("mean", "var"), outputs, expected_outputs, strict=True)
    ]
    compared += [
        compare_tensor(name, gradients[name], expected_gradients[name], of_gradients) for name in expected_gradients
    ]
    return max(one.error for one in compared), all(one.ok for one in compared)


def time_calls(function: Callable[[], object], repeats: int, device: str) -> list[float]:
    """Milliseconds a call, one number a turn: between CUDA events on a GPU, by the clock elsewhere."""
    for _ in range(3):  # compiles, loads tables, and lets the allocator find its sizes
        function()
    once = _turn(function, 1, device)
    calls = max(1, min(200, round(TURN_MS / max(once, 1e-3))))
    return [_turn(function, calls, device) for _ in range(repeats)]


def _turn(function: Callable[[], object], calls: int, device: str) -> float:
    if not device.startswith("cuda"):
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        return 1e3 * (time.perf_counter() - begin) / calls
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(calls):
        function()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / calls


def count_launches(function: Callable[[], object], device: str) -> int | None:
    """Kernels (and copies) that one call runs on the GPU; None elsewhere."""
    if not device.startswith("cuda"):
        return None
    activities = [torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        function()
        torch.cuda.synchronize()
    return sum(1 for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)


def captured(function: Callable[[], object]) -> Callable[[], object]:
    """The call as a CUDA graph that replays it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def measure(
    batch: int = BATCH,
    repeats: int = 7,
    compile: bool = True,
    precisions: Sequence[str] = PAPER_PRECISIONS,
    device: str = "cuda",
    verify_rows: int = VERIFY_ROWS,
) -> list[Row]:
    """Every contestant's row, in the order of the table; what cannot run says why in its row."""
    size, rows = Size(batch), []
    rows.append(
        _run("eager torch", lambda: contestant("eager", mlp_moments.ENTRY.eager, size, device), repeats, device)
    )
    if compile:

        def compiled() -> Contestant:
            torch.compiler.reset()
            function: Forward = torch.compile(mlp_moments.ENTRY.eager, fullgraph=True, dynamic=False)
            return contestant("compile", function, size, device)

        rows.append(_run("torch.compile", compiled, repeats, device))
    if device.startswith("cuda"):
        for precision, setting in RIVAL_SETTINGS.items():
            with products_of_torch(setting):
                build = functools.partial(contestant, "rival", rival, size, device)
                rows.append(_run(f"cuBLAS and elementwise, {precision}", build, repeats, device))
    paper = ours_on_paper() if batch == BATCH else {}
    for precision in precisions:
        name = f"ours, {precision}"
        try:
            error, within = largest_error(precision, min(verify_rows, batch), device)
        except Exception as problem:  # one precision that cannot run leaves the others worth measuring
            rows.append(Row(name, skipped=f"{type(problem).__name__}: {str(problem).splitlines()[0]}"))
            continue
        if not within:
            rows.append(Row(name, error=error, skipped=f"wrong: error {error:.1e} against the float64 reference"))
            continue
        build = functools.partial(contestant, "ours", ours(precision), size, device)
        row = _run(name, build, repeats, device)
        row.error, row.paper_us = error, paper.get(precision)
        rows.append(row)
        if device.startswith("cuda"):
            replayed = _run(f"{name}, CUDA graph", build, repeats, device, graph=True)
            replayed.paper_us = row.paper_us
            rows.append(replayed)
    return rows


def _run(name: str, build: Callable[[], Contestant], repeats: int, device: str, graph: bool = False) -> Row:
    print(f"  {name} ...", file=sys.stderr, flush=True)
    try:
        call: Callable[[], object] = build().forward_backward
        if graph:
            call = captured(call)
        turns = time_calls(call, repeats, device)
        return Row(name, min(turns), statistics.median(turns), count_launches(call, device))
    except Exception as problem:  # no compiler, no memory: the rest is still worth measuring
        return Row(name, skipped=f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0]}")


def format_rows(rows: Sequence[Row]) -> str:
    """The table; ratios are of the best times, against eager."""
    width = max(len(row.name) for row in rows)
    head = f"{'':<{width}} {'best ms':>9} {'median ms':>9} {'x eager':>8} {'launches':>8} {'paper ms':>9} {'error':>8}"
    eager = next((row.best_ms for row in rows if row.name == "eager torch"), None)
    lines = [head]
    for row in rows:
        if row.skipped is not None:
            lines.append(f"{row.name:<{width}} {row.skipped}")
            continue
        assert row.best_ms is not None
        assert row.median_ms is not None
        ratio = f"{eager / row.best_ms:.2f}" if eager else "-"
        launches = "-" if row.launches is None else str(row.launches)
        paper = "-" if row.paper_us is None else f"{row.paper_us / 1e3:.3f}"
        error = "-" if row.error is None else f"{row.error:.1e}"
        lines.append(
            f"{row.name:<{width}} {row.best_ms:>9.3f} {row.median_ms:>9.3f} {ratio:>8} {launches:>8} {paper:>9} "
            f"{error:>8}"
        )
    return "\n".join(lines)


def main(batch: int, repeats: int, compile: bool, out: Path, command_line: str) -> int:
    """Measures, prints, saves; 0, or 1 if ours is wrong."""
    print(f"One MM forward and backward of the actor, B = {batch}, float32, on {torch.cuda.get_device_name()}")
    rows = measure(batch, repeats, compile)
    print(format_rows(rows))
    path = out / "device.json"
    record = {
        "command_line": command_line,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "device": torch.cuda.get_device_name(),
        "batch": batch,
        "info": collect(),
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written:\n  {path}")
    return 1 if any(row.error is not None and row.skipped for row in rows) else 0
