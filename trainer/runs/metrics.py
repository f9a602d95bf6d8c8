"""The scalars of a run, written as it goes and read back by the report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.runs.files import WholeAppends, replace_file
from trainer.runs.sinks import WandbRun, WandbSettings, import_wandb, open_events, warn

FILE_NAME = "metrics.jsonl"
ESTIMATOR = "estimator"
"""The name, in a line, of the estimator that trained: its label."""
_CODES = {0: "mm", -1: "z-mean", -2: "cm"}
"""What runs before the labels wrote as `estimator/num_samples`, beside the N of Monte Carlo."""
Record = dict[str, Any]
"""A line of the file: "iteration", names as text, and numbers; None is a number that was not finite."""


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
        module = None if wandb is None else import_wandb()
        if resume_at is not None:
            _drop_from(path, resume_at)
        self._warned: set[str] = set()
        self._lines = WholeAppends(path)
        self._events = open_events(run_dir, resume_at) if tensorboard else None
        self._wandb: WandbRun | None = None
        if wandb is not None and module is not None:
            try:
                self._wandb = WandbRun(module, wandb, run_dir)
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
            warn(message)
        self._warned.add(sink)


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


def _drop_from(path: Path, resume_at: int) -> None:
    if not path.exists():
        return
    kept = [record for record in read_metrics(path.parent) if (record["iteration"] or 0) < resume_at]
    replace_file(path, "".join(json.dumps(record) + "\n" for record in kept).encode())
