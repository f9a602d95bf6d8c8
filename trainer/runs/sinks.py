"""Where the scalars of a run go beside `metrics.jsonl`: TensorBoard's event files, and Weights & Biases."""

from __future__ import annotations

import contextlib
import io
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from trainer.runs.files import WholeAppends

FINISH_SECONDS = 600.0
"""How long the end of a run waits for W&B's upload; what is left stays on the disk, for `wandb sync`."""


@dataclass(frozen=True)
class WandbSettings:
    """A run in Weights & Biases. Its server and its network are W&B's own settings: `wandb login`, WANDB_MODE.

    Raises:
        ValueError: A name that is empty.
    """

    project: str
    """Project of the run; W&B makes it if there is none."""
    name: str
    """Name of the run that W&B shows."""
    id: str
    """Identity of the run: the same for a run and its continuations, and for no other."""
    config: dict[str, Any] = field(default_factory=dict)
    """Settings of the run, in types that JSON has."""

    def __post_init__(self) -> None:
        for name in ("project", "name", "id"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected a name for Weights & Biases, got {getattr(self, name)!r}")


class WandbUnavailable(ValueError):
    """Weights & Biases was asked for, but is not installed or does not start."""


class TensorBoardEvents:
    """A TensorBoard event file, one event an iteration.

    `torch.utils.tensorboard` opens and closes its file for every scalar, in a thread that a full disk ends with a
    traceback; after that it writes nothing more.

    Raises:
        ImportError: There is no tensorboard.
        OSError: There is no room for the file.
    """

    def __init__(self, run_dir: Path, resume_at: int | None) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: PLC0415  optional
        from tensorboard.summary.writer.record_writer import RecordWriter  # noqa: PLC0415

        self._event, self._summary, self._writer = event_pb2.Event, summary_pb2.Summary, RecordWriter
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        self._file = WholeAppends(run_dir / name)
        begin = [self._event(wall_time=time.time(), file_version="brain.Event:2")]
        if resume_at is not None:  # a start at this step: TensorBoard forgets what it has of it and of later ones
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            begin.append(self._event(wall_time=time.time(), step=resume_at, session_log=start))
        self._append(begin)

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Appends the numbers of an iteration."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._append([self._event(wall_time=time.time(), step=iteration, summary=self._summary(value=values))])

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _append(self, events: list[Any]) -> None:
        records = io.BytesIO()
        for event in events:
            self._writer(records).write(event.SerializeToString())
        self._file.append(records.getvalue())


class WandbRun:
    """A run of W&B, and from which iteration on it takes something."""

    def __init__(self, module: ModuleType, settings: WandbSettings, run_dir: Path) -> None:
        try:
            options = {} if "WANDB_FINISH_TIMEOUT" in os.environ else {"finish_timeout": FINISH_SECONDS}
            self._run = module.init(
                project=settings.project,
                name=settings.name,
                id=settings.id,
                config=settings.config,
                dir=str(run_dir),
                resume="allow",
                allow_val_change=True,  # a continuation may have another target
                reinit="create_new",  # a run of someone else in this process is none of ours
                # Our line in place is no text for a log, and a wrapped stderr is no terminal.
                settings=module.Settings(console="off", **options),
            )
        except Exception as error:
            raise WandbUnavailable(
                f"Weights & Biases does not start: {error} (WANDB_MODE=offline logs without a network)"
            ) from error
        self._first = int(self._run.starting_step)
        if self._first > 0:
            warn(f"W&B's run {settings.id} has iterations before {self._first}; they are left as they are")

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Sends the numbers of an iteration that W&B does not have yet."""
        if iteration >= self._first:  # W&B takes no step twice
            self._run.log(dict(scalars), step=iteration, commit=True)
            self._first = iteration + 1

    def close(self, failed: bool) -> None:
        """Waits for what is not sent yet, and tells W&B how the run ended."""
        self._run.finish(exit_code=int(failed))


def import_wandb() -> ModuleType:
    """The package wandb.

    Raises:
        WandbUnavailable: It is not installed.
    """
    try:
        import wandb  # noqa: PLC0415  optional, and slow to import
    except ImportError as error:
        raise WandbUnavailable(f"wandb cannot be imported ({error}); run: pip install 'p3kernels[wandb]'") from error
    return wandb


def open_events(run_dir: Path, resume_at: int | None) -> TensorBoardEvents | None:
    """A new file of events; None, with a warning, where there cannot be one."""
    try:
        return TensorBoardEvents(run_dir, resume_at)
    except ImportError:
        warn("tensorboard is not installed (pip install 'p3kernels[train]'); metrics go to metrics.jsonl only")
    except OSError as error:
        warn(f"no TensorBoard events: {error.strerror or error}; metrics go to metrics.jsonl only")
    return None


def warn(message: str) -> None:
    """Prints a warning; nothing where standard error cannot be written."""
    with contextlib.suppress(OSError):  # the log of standard error may be on the same full disk
        print(f"warning: {message}", file=sys.stderr, flush=True)
