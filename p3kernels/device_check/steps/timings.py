"""Milliseconds of the passes a training is made of, ours and its rivals, with CUDA graphs and without."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator

import torch

import p3kernels
from p3kernels.bench import device as bench
from p3kernels.bench import mlp_moments
from p3kernels.bench.contestants import Contestant
from p3kernels.bench.entry import Forward, Size
from p3kernels.bench.paper import BATCH, modelled_us, ours_on_paper
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
        setting = bench.RIVAL_SETTINGS.get(name.removeprefix(RIVAL), "highest")
        yield Case(f"{train}: {name}", functools.partial(_timed, build, False, bound, setting))
        yield Case(f"{train}: {name}, CUDA graph", functools.partial(_timed, build, True, bound, setting))
    yield Case(
        f"{train}: torch.compile of the printed formulas", functools.partial(_timed, _compiled_rival, False, None)
    )
    for backend in sorted(available):
        for precision in bench.RIVAL_SETTINGS if backend in PRODUCTS else ("ieee",):
            way = f"{backend}, {precision}"
            if backend == "triton" or precision == "ieee":  # CUDA's one launch has no other products
                yield Case(f"rollout step, B = {ROLLOUT}: {way}", functools.partial(_rollout, backend, precision, task))
            yield Case(
                f"MC forward and backward, N = {SAMPLES}, B = {BATCH}: {way}",
                functools.partial(_mixture, backend, precision, task),
            )


RIVAL = "cuBLAS and elementwise kernels (backend cuda), "
PRODUCTS = ("cuda", "triton")
"""Backends whose products may be in TF32."""


def _rivals(available: set[str]) -> dict[str, Forward]:
    """By name: eager torch, cuBLAS products around one elementwise kernel, and ours at each precision."""
    found: dict[str, Forward] = {"eager torch": mlp_moments.ENTRY.eager}
    if "cuda" in available:
        found |= {f"{RIVAL}{precision}": bench.rival for precision in bench.RIVAL_SETTINGS}
    if "triton" in available:
        found |= {f"ours, {precision}": bench.ours(precision) for precision in PRECISIONS}
    return found


def _compiled_rival() -> Contestant:
    torch.compiler.reset()
    function: Forward = torch.compile(mlp_moments.ENTRY.eager, fullgraph=True, dynamic=False)
    return bench.contestant("compile", function, Size(BATCH), "cuda")


def _timed(
    build: Callable[[], Contestant],
    graph: bool,
    bound: Callable[[], float | None] | None,
    setting: str = "highest",
) -> Finding:
    with bench.products_of_torch(setting):
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


def _rollout(backend: str, precision: str, task: Task) -> Finding:
    op = dataclasses.replace(_op("mlp_moments"), sizes={"rollout": (ROLLOUT, ACTOR[0], LATENT, *ACTOR[1:])})
    inputs = on(op.make("rollout", torch.float32), task.device.place())

    def call() -> object:
        with torch.no_grad():
            return op.outputs(inputs, backend)

    bound = modelled_us({"triton": "rollout", "cuda": "rollout_cuda"}.get(backend, ""), precision)
    with bench.products_of_torch(bench.RIVAL_SETTINGS[precision]):
        return _told(bench.captured(call), bench.count_launches(call, "cuda"), bound)


def _mixture(backend: str, precision: str, task: Task) -> Finding:
    size = (SAMPLES, BATCH, ACTOR[0] - LATENT, LATENT, *ACTOR[1:])
    op = _op("mlp_mixture_log_prob, drawn")
    drawn = dataclasses.replace(op, sizes={"train": size}, call=_drawn)
    inputs = on(drawn.make("train", torch.float32), task.device.place())

    def call() -> object:
        return results(drawn, inputs, backend)

    bound = modelled_us("mc15_train", precision) if backend == "triton" else None
    with bench.products_of_torch(bench.RIVAL_SETTINGS[precision]):
        return _told(call, bench.count_launches(call, "cuda"), bound)


def _drawn(**named: object) -> torch.Tensor:
    return p3kernels.mlp_mixture_log_prob(num_samples=SAMPLES, seed=11, **named)  # type: ignore[arg-type]


def _op(name: str) -> Op:
    return next(op for op in OPS if op.name == name)
