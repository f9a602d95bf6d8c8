"""The step of `p3 gpu-check` that trains for a few iterations on the device, by both estimators of P³."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from p3kernels.device_check.step import Case, Finding, Skip, Task

ITERATIONS, SWITCH = 4, 2
LONGEST = 300.0


def command(engine: str, device: str, run_dir: Path) -> list[str]:
    """A short training: moment matching, then Monte Carlo."""
    train = [sys.executable, "-m", "trainer", "train", "--task", "g1-flat", "--method", "p3", "--engine", engine]
    sizes = ["--num-envs", "64", "--iterations", str(ITERATIONS), "--switch-at", str(SWITCH), "--processes", "1"]
    return [*train, *sizes, "--device", device, "--run-dir", str(run_dir), "--no-tensorboard"]


def cases(task: Task) -> Iterator[Case]:
    """Simulated on the CPU by native MuJoCo, and on the GPU by mjlab."""
    if task.device.kind != "cuda":
        raise Skip("the training on a CPU is what `make train` does")
    return iter(
        [
            Case("native MuJoCo on the CPU, networks on the GPU", functools.partial(_train, "mujoco", task)),
            Case("mjlab and networks on the GPU", functools.partial(_train, "mjlab", task)),
        ]
    )


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
