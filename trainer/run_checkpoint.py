"""What a command's CHECKPOINT argument names: a checkpoint, its content and the settings of its run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.checkpoint import latest_checkpoint, load_checkpoint
from trainer.config import TrainConfig, load_config


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint's file, its run's settings and its content."""

    path: Path
    config: TrainConfig
    content: dict[str, Any]

    @property
    def name(self) -> str:
        """Run and file, as tables and figures call it."""
        return f"{self.path.resolve().parent.name}/{self.path.stem}"

    @property
    def run_dir(self) -> Path:
        """Where its config is."""
        return self.path.parent


def read_run_checkpoint(source: Path) -> RunCheckpoint:
    """The checkpoint of a run directory, the latest, or of a file in one.

    Raises:
        FileNotFoundError: There is none.
        OSError: It may not be read.
        ValueError: It is damaged, foreign, of another version or of another task than its run.
    """
    if not source.exists():
        raise FileNotFoundError(f"CHECKPOINT: no run directory and no file {source}")
    run_dir, file = (source, None) if source.is_dir() else (source.parent, source)
    settings = run_dir / "config.json"
    if not settings.exists():
        if file is None:
            raise FileNotFoundError(f"CHECKPOINT: no config.json in {run_dir}; expected the directory of a run")
        load_checkpoint(file)  # says what else it is, if it is something else
        raise FileNotFoundError(f"CHECKPOINT: no config.json beside {file}; expected a file in the directory of a run")
    file = file or latest_checkpoint(run_dir)
    if file is None:
        raise FileNotFoundError(f"CHECKPOINT: no checkpoint in {run_dir}; expected the directory of a run")
    config = load_config(settings)
    return RunCheckpoint(file, config, load_checkpoint(file, config.task))
