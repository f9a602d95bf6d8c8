"""The scalars of a run, written as it goes and read back by the report."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FILE_NAME = "metrics.jsonl"


class MetricsLog:
    """Scalars of a run, by iteration: `metrics.jsonl` (the truth the report reads) and TensorBoard events.

    One JSON object a line. What cannot be written is lost with one warning and never ends a training: a line is in the
    file whole or not at all, so a disk that was full for a while leaves a gap, not a broken file.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool = True, resume_at: int | None = None):
        """Opens the files.

        Args:
            run_dir: The directory of the run; made if it is not there.
            tensorboard: Whether to write TensorBoard events as well.
            resume_at: The first iteration that will be written. Lines of it and of later iterations are dropped, and
                so is a last line cut off by a crash. None is a new run.

        Raises:
            FileExistsError: A new run where a run has been logged already.
        """
        run_dir.mkdir(parents=True, exist_ok=True)
        path = run_dir / FILE_NAME
        if resume_at is not None:
            _drop_from(path, resume_at)
        elif path.exists() and path.stat().st_size > 0:
            raise FileExistsError(f"{path} is the log of another run: give resume_at to go on with it")
        self._path = path
        self._file = path.open("ab", buffering=0)  # a buffer would keep a half-written line and try it again
        self._size = self._file.seek(0, os.SEEK_END)
        self._torn = False
        self._warned = False
        self._events = _open_events(run_dir, resume_at) if tensorboard else None

    def write(self, iteration: int, scalars: Mapping[str, float]) -> None:
        """Writes one iteration and flushes. A number that is not finite is null in JSON, and not in TensorBoard."""
        if "iteration" in scalars:
            raise ValueError("scalars: 'iteration' is the name of the line's number, not of a scalar")
        values = {name: float(value) for name, value in scalars.items()}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
        try:
            self._append((json.dumps({"iteration": iteration, **finite}) + "\n").encode())
        except OSError as error:
            self._warn(f"cannot write {self._path}: {error.strerror or error}; the training goes on")
        self._write_events(iteration, finite)

    def close(self) -> None:
        """Closes the files. A second call does nothing."""
        self._file.close()
        if self._events is not None:
            try:
                self._events.close()
            except OSError as error:
                self._warn(f"cannot write the last TensorBoard events: {error.strerror or error}")
            self._events = None

    def _append(self, line: bytes) -> None:
        """A whole line, or an OSError and a file that is as before, now or by the next call."""
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._torn = len(rest) < len(line)
            raise
        self._size += len(line)

    def _write_events(self, iteration: int, scalars: Mapping[str, float | None]) -> None:
        if self._events is None:
            return
        try:
            for name, value in scalars.items():
                if value is not None:
                    self._events.add_scalar(name, value, iteration)
            self._events.flush()
        except OSError as error:  # its writer thread is dead by now, and every later call would say the same
            self._events = None
            self._warn(f"no more TensorBoard events: {error.strerror or error}; the training goes on")

    def _warn(self, message: str) -> None:
        if not self._warned:
            _warn(message)
        self._warned = True


def read_metrics(run_dir: Path) -> list[dict[str, float | None]]:
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


def _open_events(run_dir: Path, resume_at: int | None) -> SummaryWriter | None:
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  optional, and slow to import

        return SummaryWriter(str(run_dir), purge_step=resume_at)
    except ImportError:
        _warn("tensorboard is not installed (pip install 'p3kernels[train]'); metrics go to metrics.jsonl only")
    except OSError as error:
        _warn(f"no TensorBoard events: {error.strerror or error}; metrics go to metrics.jsonl only")
    return None


def _warn(message: str) -> None:
    with contextlib.suppress(OSError):  # the log of standard error may be on the same full disk
        print(f"warning: {message}", file=sys.stderr, flush=True)
