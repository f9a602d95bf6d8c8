"""The step of `p3 gpu-check` that trains on the device: single updates two ways, and a few iterations of `p3 train`."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels.device_check.step import Case, Finding, Skip, Task
from trainer.training.synthetic import fill, make_algorithm

ENVIRONMENTS = 64
SAME_WAY = 0.01
"""How far apart weights may end, over the way that they went: on a CPU the rounding of float32 alone is 6e-6 of it."""
ITERATIONS, SWITCH = 4, 2
LONGEST = 300.0


def command(engine: str, device: str, run_dir: Path) -> list[str]:
    """A short training: moment matching, then Monte Carlo."""
    train = [sys.executable, "-m", "trainer", "train", "--task", "g1-flat", "--method", "p3", "--engine", engine]
    sizes = ["--num-envs", "64", "--iterations", str(ITERATIONS), "--switch-at", str(SWITCH), "--processes", "1"]
    return [*train, *sizes, "--device", device, "--run-dir", str(run_dir), "--no-tensorboard"]


def cases(task: Task) -> Iterator[Case]:
    """Single updates; then iterations simulated on the CPU by native MuJoCo, and on the GPU by mjlab."""
    if task.device.kind != "cuda":
        raise Skip("the training on a CPU is what `make train` does")
    device = str(task.device.place())
    return iter(
        [
            Case("an update by our kernels, against plain torch", functools.partial(by_kernels, device)),
            Case("an update whose steps are a CUDA graph, against launches", functools.partial(by_graph, device)),
            Case("native MuJoCo on the CPU, networks on the GPU", functools.partial(_train, "mujoco", task)),
            Case("mjlab and networks on the GPU", functools.partial(_train, "mjlab", task)),
        ]
    )


def by_kernels(device: str) -> Finding:
    """Whether the kernels of an update's terms and of moments lead where plain torch does."""
    ours, begin = updated(device)
    with _backend("reference"):
        plain, _ = updated(device)
    return apart(ours.weights, plain.weights, begin, SAME_WAY)


def by_graph(device: str) -> Finding:
    """Whether replayed steps give the weights of launched ones, bit for bit."""
    captured, begin = updated(device, cuda_graph=True)
    if captured.failed is not None:
        return Finding(False, captured.failed, {"show": True})
    return apart(captured.weights, updated(device)[0].weights, begin, 0.0)


class Updated(NamedTuple):
    """What an update left behind."""

    weights: Tensor
    """Those of actor and critic, [W]."""
    failed: str | None
    """Why no CUDA graph took its steps, where one was asked for."""


def updated(device: str, *, cuda_graph: bool = False) -> tuple[Updated, Tensor]:
    """Two updates of moment matching on random data, the same ones every time; and the weights they began with."""
    algorithm, observations = make_algorithm("mm", ENVIRONMENTS, device=device, cuda_graph=cuda_graph)

    def weights() -> Tensor:
        networks = (algorithm.actor, algorithm.critic)
        return torch.cat([p.detach().flatten() for net in networks for p in net.parameters()]).cpu()

    begin, failed = weights(), None
    for seed in (1, 2):
        torch.manual_seed(seed)
        fill(algorithm, observations)
        algorithm.update()
    if cuda_graph:
        graph = algorithm.step_graph
        failed = "no graph was made" if graph is None else graph.failed
        if failed is None and graph is not None and graph.captures == 0:
            failed = "no step was captured"
    return Updated(weights(), failed), begin


def apart(one: Tensor, other: Tensor, begin: Tensor, most: float) -> Finding:
    """Judges two results by their distance, over how far they went from where both began."""
    distance = ((one - other).norm() / (other - begin).norm().clamp(min=1e-30)).item()
    passed = distance <= most  # False for NaN
    detail = f"weights {distance:.1e} of their way apart (at most {most:g})"
    return Finding(passed, detail, {"show": True, "distance": distance if math.isfinite(distance) else None})


@contextlib.contextmanager
def _backend(name: str) -> Iterator[None]:
    before = os.environ.get("P3_BACKEND")
    os.environ["P3_BACKEND"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["P3_BACKEND"]
        else:
            os.environ["P3_BACKEND"] = before


def _train(engine: str, task: Task) -> Finding:
    run_dir = task.folder / "training" / engine
    if (run_dir / "metrics.jsonl").exists():  # of a time that was interrupted
        (run_dir / "metrics.jsonl").unlink()
    done = subprocess.run(
        command(engine, str(task.device.place()), run_dir), capture_output=True, text=True, check=False, timeout=LONGEST
    )
    (task.folder / "logs").mkdir(exist_ok=True)
    (task.folder / "logs" / f"train-{engine}.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    if done.returncode == 2 and engine == "mjlab":
        raise Skip(f"mjlab does not run here: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1][:200]
        return Finding(False, f"exit code {done.returncode}: {last}; see logs/train-{engine}.txt")
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return judge([json.loads(line) for line in lines])


def judge(records: list[Mapping[str, Any]]) -> Finding:
    """Every iteration is there, nothing was left out and every loss is a number."""
    wrong = []
    if [record["iteration"] for record in records][-1:] != [ITERATIONS]:
        wrong.append(f"ended before iteration {ITERATIONS}")
    for record in records:
        losses = {name: value for name, value in record.items() if name.startswith("loss/")}
        bad = [name for name, value in losses.items() if value is None or not math.isfinite(value)]
        wrong += [f"iteration {record['iteration']}: {name} is not finite" for name in bad]
        if record.get("loss/skipped_steps"):
            wrong.append(f"iteration {record['iteration']}: {record['loss/skipped_steps']:.0f} steps left out")
    return Finding(not wrong, "; ".join(wrong[:3]) or f"{len(records)} iterations, every loss finite", {"show": True})
