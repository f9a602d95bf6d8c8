"""The fastest tiles on this GPU: every entry is saved as soon as it is found, and the time is limited."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from p3kernels.device_check.step import Case, Finding, Skip, Task
from p3kernels.device_check.steps.values import require

SHARE = 0.9
"""Share of the step's time for tuning: the rest is for saving and for the last timing."""


def cases(task: Task) -> Iterator[Case]:
    """One case: the search itself, which goes on where it was stopped."""
    require(task, "triton")
    if task.device.kind != "cuda":
        raise Skip("there is nothing to tune in the interpreter")

    def run() -> Finding:
        from triton_kernels import launch, tune  # noqa: PLC0415  # imports triton

        code = tune.main(["--resume", "--seconds", str(SHARE * task.seconds)])
        path = launch.cache_path()
        if path.exists():
            shutil.copyfile(path, task.folder / "tuned.json")
        return Finding(code == 0, f"tuned configurations are in {path}", {"show": True})

    return iter([Case("the fastest tiles", run)])
