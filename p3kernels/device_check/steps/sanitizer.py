"""compute-sanitizer's tools over a small script that runs every op of a backend once."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

import torch

from p3kernels.device_check.compare import on, results
from p3kernels.device_check.ops import OPS
from p3kernels.device_check.step import Case, Finding, Skip, Task

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LONGEST = 240.0


def cases(task: Task) -> Iterator[Case]:
    """One case a tool and backend."""
    if task.device.kind != "cuda":
        raise Skip("compute-sanitizer needs a GPU")
    if shutil.which("compute-sanitizer") is None:
        raise Skip("compute-sanitizer is not on the PATH; it comes with the CUDA toolkit")
    return _cases(task)


def _cases(task: Task) -> Iterator[Case]:
    for backend, reason in task.device.backends().items():
        for tool in TOOLS:
            if reason == "available":
                yield Case(f"{tool}, {backend}", functools.partial(_sanitize, tool, backend, task))


def command(tool: str, backend: str) -> list[str]:
    """initcheck says much of torch's own copies; only accesses of our kernels count, by their names."""
    own = ["--kernel-name", "kernel_substring=p3"] if backend == "cuda" else []
    script = [sys.executable, "-m", "p3kernels.device_check.steps.sanitizer", backend]
    return ["compute-sanitizer", "--tool", tool, "--error-exitcode", "86", *own, *script]


def _sanitize(tool: str, backend: str, task: Task) -> Finding:
    """The caching allocator would hide an overrun in its own slack: it is off."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        command(tool, backend), env=environment, capture_output=True, text=True, check=False, timeout=LONGEST
    )
    log = task.folder / "logs" / f"compute-sanitizer-{tool}-{backend}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(done.stdout + done.stderr, encoding="utf-8")
    return verdict(done.returncode, done.stdout + done.stderr, log.name)


def verdict(code: int, said: str, log: str) -> Finding:
    """From the tool's exit code and its last line."""
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", said)
    if code == 0:
        return Finding(True, summary[-1] if summary else "no errors")
    told = summary[-1] if summary else (said.strip().splitlines() or ["no output"])[-1][:200]
    return Finding(False, f"exit code {code}: {told}; see logs/{log}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The small script: every op with kernels on the backend, forward and backward, sizes with a rest."""
    (backend,) = sys.argv[1:] if arguments is None else arguments
    place = torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")
    for op in OPS:
        if backend in op.kernels:
            for size in ("odd", "prime"):
                results(op, on(op.make(size, torch.float32), place), backend)
    if place.type == "cuda":
        torch.cuda.synchronize()
    print(f"every op on {backend}: done")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
