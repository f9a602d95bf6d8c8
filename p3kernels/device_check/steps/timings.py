"""Milliseconds of the passes a training is made of, ours and its rivals, with CUDA graphs and without."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch

import p3kernels
from p3kernels.bench import device as bench
from p3kernels.bench import mlp_moments
from p3kernels.bench.actor import split_parameters
from p3kernels.bench.contestants import Contestant
from p3kernels.bench.entry import Forward, Size, Tensors
from p3kernels.bench.paper import BATCH, ours_on_paper
from p3kernels.device_check.compare import on, results
from p3kernels.device_check.ops import ACTOR, LATENT, OPS, PRECISIONS, Op
from p3kernels.device_check.step import Case, Finding, Skip, Task

ROLLOUT = 4096
SAMPLES = 15
REPEATS = 5


def cases(task: Task) -> Iterator[Case]:
    """MM forward and backward at the training's minibatch, a rollout step, and Monte Carlo with 15 samples."""
    if task.device.kind != "cuda":
        raise Skip("times on a CPU in the interpreter say nothing of a GPU")
    return _cases(task)


def _cases(task: Task) -> Iterator[Case]:
    available = {name for name, reason in task.device.backends().items() if reason == "available"}
    paper = functools.cache(ours_on_paper)
    train = f"MM forward and backward, B = {BATCH}"
    for name, forward in _rivals(available).items():
        build = functools.partial(bench.contestant, name, forward, Size(BATCH), "cuda")
        bound = functools.partial(lambda key: paper().get(key), name.removeprefix("ours, "))
        yield Case(f"{train}: {name}", functools.partial(_timed, build, False, bound))
        yield Case(f"{train}: {name}, CUDA graph", functools.partial(_timed, build, True, bound))
    yield Case(
        f"{train}: torch.compile of the printed formulas", functools.partial(_timed, _compiled_rival, False, None)
    )
    for backend in sorted(available):
        yield Case(f"rollout step, B = {ROLLOUT}: {backend}", functools.partial(_rollout, backend, task))
        yield Case(
            f"MC forward and backward, N = {SAMPLES}, B = {BATCH}: {backend}",
            functools.partial(_mixture, backend, task),
        )


def _rivals(available: set[str]) -> dict[str, Forward]:
    """By name: eager torch, cuBLAS products around one elementwise kernel, and ours at each precision."""
    found: dict[str, Forward] = {"eager torch": mlp_moments.ENTRY.eager}
    if "cuda" in available:
        found["cuBLAS and elementwise kernels (backend cuda)"] = _by_backend("cuda")
    if "triton" in available:
        found |= {f"ours, {precision}": bench.ours(precision) for precision in PRECISIONS}
    return found


def _by_backend(backend: str) -> Forward:
    def forward(tensors: Tensors, _: Size) -> tuple[torch.Tensor, torch.Tensor]:
        weights, biases = split_parameters(tensors)
        return p3kernels.mlp_moments(tensors["mean"], tensors["var"], weights, biases, backend=backend)

    return forward


def _compiled_rival() -> Contestant:
    torch.compiler.reset()
    function: Forward = torch.compile(mlp_moments.ENTRY.eager, fullgraph=True, dynamic=False)
    return bench.contestant("compile", function, Size(BATCH), "cuda")


def _timed(build: Callable[[], Contestant], graph: bool, bound: Callable[[], float | None] | None) -> Finding:
    call: Callable[[], object] = build().forward_backward
    launches = bench.count_launches(call, "cuda")
    if graph:
        call = bench.captured(call)
    return _told(call, launches, None if bound is None else bound())


def _told(call: Callable[[], object], launches: int | None, bound: float | None) -> Finding:
    turns = bench.time_calls(call, REPEATS, "cuda")
    best = min(turns)
    least = "" if bound is None else f"; the model's least is {bound / 1e3:.3f} ms on an H100"
    numbers = {"show": True, "best_ms": best, "turns_ms": turns, "launches": launches, "paper_us": bound}
    return Finding(True, f"{best:.3f} ms, {launches} kernels{least}", numbers)


def _rollout(backend: str, task: Task) -> Finding:
    op = dataclasses.replace(_op("mlp_moments"), sizes={"rollout": (ROLLOUT, ACTOR[0], LATENT, *ACTOR[1:])})
    inputs = on(op.make("rollout", torch.float32), task.device.place())

    def call() -> object:
        with torch.no_grad():
            return op.outputs(inputs, backend)

    return _told(bench.captured(call), bench.count_launches(call, "cuda"), None)


def _mixture(backend: str, task: Task) -> Finding:
    size = (SAMPLES, BATCH, ACTOR[0] - LATENT, LATENT, *ACTOR[1:])
    op = _op("mlp_mixture_log_prob, drawn")
    drawn = dataclasses.replace(op, sizes={"train": size}, call=_drawn)
    inputs = on(drawn.make("train", torch.float32), task.device.place())

    def call() -> object:
        return results(drawn, inputs, backend)

    return _told(call, bench.count_launches(call, "cuda"), None)


def _drawn(**named: object) -> torch.Tensor:
    return p3kernels.mlp_mixture_log_prob(num_samples=SAMPLES, seed=11, **named)  # type: ignore[arg-type]


def _op(name: str) -> Op:
    return next(op for op in OPS if op.name == name)
