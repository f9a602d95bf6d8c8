"""Checkpoints: tensors and plain values in one file, written beside its place and then moved there.

They load with `weights_only=True`: a checkpoint from elsewhere can hold data, never code.
"""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from typing import Any

import torch

FORMAT = "p3-checkpoint"
VERSION = 1


def checkpoint_path(run_dir: Path, iteration: int) -> Path:
    """Where the checkpoint after `iteration` iterations is."""
    return run_dir / f"model_{iteration}.pt"


def save_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Writes `content` so that `path` is, at any moment, the old file or the new one, whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"format": FORMAT, "version": VERSION, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, task: str | None = None) -> dict[str, Any]:
    """Reads a checkpoint, of `task` where one is named.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is not one of ours, is damaged, of a later version, or of another task.
    """
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, pickle.UnpicklingError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path}: cannot be read as a checkpoint: damaged, cut off or foreign ({reason})") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: a torch file, but not a checkpoint of this trainer")
    if content["version"] > VERSION:
        raise ValueError(f"{path}: checkpoint version {content['version']}; this trainer reads up to {VERSION}")
    if task is not None and content["task"] != task:
        raise ValueError(f"{path}: of task {content['task']!r}, this run is {task!r}")
    return content


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The checkpoint of the highest iteration, or None."""
    found = {
        int(match[1]): path
        for path in run_dir.glob("model_*.pt")
        if (match := re.fullmatch(r"model_(\d+)\.pt", path.name))
    }
    return found[max(found)] if found else None
