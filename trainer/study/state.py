"""How far a run is, by what its directory holds."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Literal

from trainer.runs.checkpoint import latest_checkpoint, newest_readable
from trainer.runs.config_file import load_config
from trainer.runs.directory import DIVERGED
from trainer.runs.metrics import FILE_NAME as METRICS
from trainer.study.plan import Run, flat

State = Literal["missing", "unfinished", "trained", "diverged"]

SESSIONS = "study.json"
"""In a run's directory: when and with which versions a study trained it."""
BOOKKEEPING = (
    *("run-dir", "resume", "max-minutes", "save-interval", "keep-checkpoints", "tensorboard", "wandb-project"),
    *("branch-from", "processes", "eval-interval", "eval-difficulty", "eval-episodes", "eval-seconds"),
)
"""Settings that change nothing of what is learned, or, as the processes, only the order of sums and random numbers."""
_TAIL_BYTES = 1 << 16
"""More than a line of `metrics.jsonl`."""


class OtherSettings(ValueError):
    """A directory that this study would use holds a run that is not its own."""


def check_settings(run: Run) -> None:
    """Compares a run's own settings, where there are some, with those of the study.

    Raises:
        OtherSettings: They differ; names the setting.
        ValueError: Its config.json cannot be read.
    """
    path = run.path / "config.json"
    if not path.exists():
        return
    found, expected = flat(load_config(path)), flat(run.config)
    for name, value in expected.items():
        # What it does not say, its version did not have.
        if name not in BOOKKEEPING and found.get(name, value) != value:
            raise OtherSettings(f"--{name}: {run.path} was trained with {found[name]!r}, this study has {value!r}")


def state_of(run: Run) -> State:
    """Whether the run is trained, begun, or not there, or gave up; a branch diverges with the trunk it would continue.

    Raises:
        OtherSettings: The directory holds another run.
        ValueError: It is damaged beyond what a resume mends.
    """
    if latest_checkpoint(run.path) is not None and final_checkpoint(run) is not None:
        return "trained"
    if why_diverged(run) is not None:
        return "diverged"
    return "missing" if latest_checkpoint(run.path) is None else "unfinished"


def why_diverged(run: Run) -> str | None:
    """What a training that gave up said of it, or its trunk's; None of others."""
    with contextlib.suppress(OSError):
        return (run.path / DIVERGED).read_text(encoding="utf-8").strip()
    if run.trunk is not None and latest_checkpoint(run.path) is None and state_of(run.trunk) == "diverged":
        return f"its trunk {run.trunk.name} did: {why_diverged(run.trunk)}"
    return None


def final_checkpoint(run: Run) -> Path | None:
    """The checkpoint of a trained run's last iteration; None before that.

    Raises:
        OtherSettings: The directory holds another run.
        ValueError: It is damaged beyond what a resume mends.
        FileNotFoundError: It has no checkpoint at all.
    """
    if not (run.path / "config.json").exists():
        raise ValueError(f"{run.path}: it has checkpoints, but no config.json")
    check_settings(run)
    path, content, _ = newest_readable(run.path, run.config.task)
    if content["iter"] > run.target:
        raise OtherSettings(f"--iterations: {path} is beyond the study's {run.target}")
    return path if content["iter"] == run.target else None


def in_use(run_dir: Path) -> str | None:
    """The process that has the run, or None. Only looks: it takes the lock, shared, for a moment."""
    try:
        descriptor = os.open(run_dir / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 20, 0).decode(errors="replace") or "unknown"
    except OSError:  # a filesystem without locks
        return None
    finally:
        os.close(descriptor)
    return None


def progress_of(run: Run) -> tuple[int, float]:
    """Iterations logged so far and the seconds they took, from the log's last line; 0 and 0 before the first."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), (run.path / METRICS).open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        whole = file.read().rpartition(b"\n")[0]
        last = json.loads(whole.rpartition(b"\n")[2])
        return int(last["iteration"]), float(last["time/total_seconds"])
    return 0, 0.0
