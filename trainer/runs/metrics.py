"""The scalars of a run, written as it goes and read back by the report."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

FILE_NAME = "metrics.jsonl"
ESTIMATOR = "estimator"
"""The name, in a line, of the estimator that trained: its label."""
_CODES = {0: "mm", -1: "z-mean", -2: "cm"}
"""What runs before the labels wrote as `estimator/num_samples`, beside the N of Monte Carlo."""
Record = dict[str, Any]
"""A line of the file: "iteration", names as text, and numbers; None is a number that was not finite."""
FINISH_SECONDS = 600.0
"""How long the end of a run waits for W&B's upload; what is left stays on the disk, for `wandb sync`."""


@dataclass(frozen=True)
class WandbSettings:
    """A run in Weights & Biases. Where it goes and whether there is a network is W&B's own: `wandb login`, WANDB_MODE.

    Raises:
        ValueError: A name that is empty.
    """

    project: str
    """Made by W&B if it is not there."""
    name: str
    """What W&B shows."""
    id: str
    """What W&B tells runs apart by: the same for a run and its continuations, and for no other."""
    config: dict[str, Any] = field(default_factory=dict)
    """The run's, of what JSON has."""

    def __post_init__(self) -> None:
        for name in ("project", "name", "id"):
            if not getattr(self, name):
                raise ValueError(f"{name}: expected a name for Weights & Biases, got {getattr(self, name)!r}")


class WandbUnavailable(ValueError):
    """Weights & Biases was asked for, and is not to be had."""


class MetricsLog:
    """Scalars of a run, by iteration: `metrics.jsonl` (the truth the report reads), TensorBoard events, and W&B.

    One JSON object a line. What cannot be written is lost with one warning and never ends a training: an iteration is
    in a file whole or not at all, so a disk that was full for a while leaves a gap, not a broken file. W&B gets nothing
    more after an error.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        tensorboard: bool = True,
        resume_at: int | None = None,
        wandb: WandbSettings | None = None,
    ):
        """Opens the files.

        Args:
            run_dir: The directory of the run; made if it is not there.
            tensorboard: Whether to write TensorBoard events as well.
            resume_at: The first iteration that will be written. Lines of it and of later iterations are dropped, and
                so is a last line cut off by a crash. None is a new run.
            wandb: Whether and as what to log to Weights & Biases as well; its files are in `run_dir / "wandb"`. A run
                with this id goes on where it is; iterations that W&B has are left as they are.

        Raises:
            FileExistsError: A new run where a run has been logged already.
            WandbUnavailable: W&B is asked for and is not installed, or does not start.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / FILE_NAME
        if resume_at is None and path.exists() and path.stat().st_size > 0:
            raise FileExistsError(f"{path} is the log of another run: give resume_at to go on with it")
        module = None if wandb is None else _import_wandb()
        if resume_at is not None:
            _drop_from(path, resume_at)
        self._warned: set[str] = set()
        self._lines = _WholeAppends(path)
        self._events = _open_events(run_dir, resume_at) if tensorboard else None
        self._wandb: _WandbRun | None = None
        if wandb is not None and module is not None:
            try:
                self._wandb = _WandbRun(module, wandb, run_dir)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # What was interrupted can go on; it has not failed.
        self.close(failed=kind is not None and not issubclass(kind, KeyboardInterrupt))

    def write(self, iteration: int, scalars: Mapping[str, float], names: Mapping[str, str] | None = None) -> None:
        """Writes one iteration and flushes. A number that is not finite is null in JSON, and nowhere else.

        Args:
            iteration: Its number.
            scalars: Numbers by name.
            names: Texts by name, such as the estimator's: in `metrics.jsonl` alone, for the others draw numbers.
        """
        names = names or {}
        if "iteration" in scalars or scalars.keys() & names.keys():
            raise ValueError("scalars: 'iteration' is the name of the line's number, and no name can be there twice")
        values = {name: float(value) for name, value in scalars.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._lines.append((json.dumps({"iteration": iteration, **names, **finite}) + "\n").encode())
        except OSError as error:
            self._warn("lines", f"cannot write {self._lines.path}: {error.strerror or error}; the training goes on")
        present = {name: value for name, value in finite.items() if value is not None}
        if self._events is not None:
            try:
                self._events.write(iteration, present)
            except OSError as error:
                self._warn(
                    "events", f"cannot write TensorBoard events: {error.strerror or error}; the training goes on"
                )
        if self._wandb is not None:
            try:
                self._wandb.write(iteration, present)
            except Exception as error:  # whatever it is, of a service that the training does not need
                self._wandb = None
                self._warn("wandb", f"no more to Weights & Biases: {error}; the training goes on")

    def close(self, *, failed: bool = False) -> None:
        """Closes the files, and waits for what W&B has yet to send. A second call does nothing.

        Args:
            failed: What W&B shall say about the run.
        """
        self._lines.close()
        if self._events is not None:
            self._events.close()
            self._events = None
        run, self._wandb = self._wandb, None
        if run is not None:
            try:
                run.close(failed)
            except Exception as error:  # as in `write`
                self._warn("wandb", f"Weights & Biases did not get the end of the run: {error}")

    def _warn(self, sink: str, message: str) -> None:
        if sink not in self._warned:
            _warn(message)
        self._warned.add(sink)


class _WholeAppends:
    """A file that grows by whole pieces, each there as soon as it is written.

    Args:
        path: Of a new file or of one to go on with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # a buffer would keep a half-written piece and try it again
        self._size = self._file.seek(0, os.SEEK_END)
        self._torn = False

    def append(self, piece: bytes) -> None:
        """The whole piece, or an OSError and a file that is as before, now or by the next call."""
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._torn = len(rest) < len(piece)
            raise
        self._size += len(piece)

    def close(self) -> None:
        if self._torn:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
        self._torn = False
        self._file.close()


class _Events:
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
        self._file = _WholeAppends(run_dir / name)
        begin = [self._event(wall_time=time.time(), file_version="brain.Event:2")]
        if resume_at is not None:  # a start at this step: TensorBoard forgets what it has of it and of later ones
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            begin.append(self._event(wall_time=time.time(), step=resume_at, session_log=start))
        self._append(begin)

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._append([self._event(wall_time=time.time(), step=iteration, summary=self._summary(value=values))])

    def close(self) -> None:
        self._file.close()

    def _append(self, events: list[Any]) -> None:
        records = io.BytesIO()
        for event in events:
            self._writer(records).write(event.SerializeToString())
        self._file.append(records.getvalue())


class _WandbRun:
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
            _warn(f"W&B's run {settings.id} has iterations before {self._first}; they are left as they are")

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        if iteration >= self._first:  # W&B takes no step twice
            self._run.log(dict(scalars), step=iteration, commit=True)
            self._first = iteration + 1

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


def estimator_name(record: Mapping[str, Any]) -> str | None:
    """The estimator of a line of `metrics.jsonl`, also of one that an earlier version wrote as a number."""
    name, code = record.get(ESTIMATOR), record.get("estimator/num_samples")
    if isinstance(name, str) or code is None:
        return name if isinstance(name, str) else None
    return _CODES.get(int(code)) or f"mc{code:g}"


def read_metrics(run_dir: Path) -> list[Record]:
    """The lines of `metrics.jsonl`, each with "iteration"; None is a number that was not finite.

    A last line that a crash cut off is passed over.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A line other than the last is no JSON object with an "iteration".
    """
    path = run_dir / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(f"no metrics here: {path} does not exist")
    lines = [(number, line) for number, line in enumerate(path.read_bytes().split(b"\n"), start=1) if line.strip()]
    records = []
    for number, line in lines:
        try:
            record = json.loads(line, parse_constant=lambda _: None)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("iteration"), int):
            records.append(record)
        elif number != lines[-1][0]:
            raise ValueError(f"{path}, line {number}: expected a JSON object with an 'iteration', got {line[:60]!r}")
    return records


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file so that a reader, or a crash, finds the old content or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _drop_from(path: Path, resume_at: int) -> None:
    if not path.exists():
        return
    kept = [record for record in read_metrics(path.parent) if (record["iteration"] or 0) < resume_at]
    replace_file(path, "".join(json.dumps(record) + "\n" for record in kept).encode())


def _import_wandb() -> ModuleType:
    try:
        import wandb  # noqa: PLC0415  optional, and slow to import
    except ImportError as error:
        raise WandbUnavailable(f"wandb cannot be imported ({error}); run: pip install 'p3kernels[wandb]'") from error
    return wandb


def _open_events(run_dir: Path, resume_at: int | None) -> _Events | None:
    try:
        return _Events(run_dir, resume_at)
    except ImportError:
        _warn("tensorboard is not installed (pip install 'p3kernels[train]'); metrics go to metrics.jsonl only")
    except OSError as error:
        _warn(f"no TensorBoard events: {error.strerror or error}; metrics go to metrics.jsonl only")
    return None


def _warn(message: str) -> None:
    with contextlib.suppress(OSError):  # the log of standard error may be on the same full disk
        print(f"warning: {message}", file=sys.stderr, flush=True)
