"""What a step has found so far, on disk after every case: what is written there is not done again."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from p3kernels.device_check.step import CRASHED, FAILED, Finding

Line = dict[str, Any]


class Journal:
    """One file of JSON lines a step: {"begin": case}, {"case": …, "status": …}, at last {"end": true}.

    Args:
        folder: The check's own.
        step: The step's name.
    """

    def __init__(self, folder: Path, step: str) -> None:
        self.path = folder / "steps" / f"{step}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _lines(self) -> list[Line]:
        """Every whole line; one that a kill cut short counts as none."""
        if not self.path.exists():
            return []
        found = []
        for text in self.path.read_text(encoding="utf-8").splitlines():
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                found.append(line)
        return found

    def _write(self, line: Line) -> None:
        text = json.dumps(line)
        cut_short = self.path.exists() and self.path.stat().st_size and not self.path.read_bytes().endswith(b"\n")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut_short else "") + text + "\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def cases(self) -> dict[str, Line]:
        """The cases that are done, by name."""
        return {line["case"]: line for line in self._lines() if "case" in line}

    @property
    def ended(self) -> bool:
        """Whether the step is done."""
        return any("end" in line for line in self._lines())

    @property
    def skipped(self) -> str | None:
        """Why the whole step could not run here, or None."""
        return next((line["skip"] for line in self._lines() if "skip" in line), None)

    @property
    def begun(self) -> str | None:
        """The case that began and has not ended, or None."""
        done, last = self.cases, [line["begin"] for line in self._lines() if "begin" in line]
        return last[-1] if last and last[-1] not in done else None

    @property
    def wrong(self) -> list[Line]:
        """The cases that failed or broke the process."""
        return [line for line in self.cases.values() if line["status"] in (FAILED, CRASHED)]

    def begin(self, case: str) -> None:
        """Notes that a case is about to run: if the process ends in it, it is known which it was."""
        self._write({"begin": case})

    def add(
        self, case: str, status: str, detail: str, numbers: dict[str, Any] | None = None, seconds: float = 0.0
    ) -> None:
        """Keeps what a case found."""
        line = {"case": case, "status": status, "detail": detail, "seconds": round(seconds, 3)}
        self._write({**line, **({"numbers": numbers} if numbers else {}), "at": time.strftime("%H:%M:%S")})

    def found(self, case: str, finding: Finding, seconds: float) -> None:
        """Keeps a finding."""
        self.add(case, "passed" if finding.passed else FAILED, finding.detail, finding.numbers, seconds)

    def skip(self, why: str) -> None:
        """Keeps that the step cannot run here, and ends it."""
        self._write({"skip": why})
        self.end()

    def end(self) -> None:
        """Nothing of the step is left to do."""
        self._write({"end": True})

    def forget(self) -> None:
        """The step is to be done again."""
        self.path.unlink(missing_ok=True)
