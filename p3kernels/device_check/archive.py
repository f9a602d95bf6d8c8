"""What is sent back: a page that a person reads, and one archive of everything."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p3kernels.device_check.journal import Journal
from p3kernels.device_check.session import Result

ARCHIVE, REPORT = "gpu-check.zip", "report.md"
LARGEST_FILE = 20 * 2**20
"""Bytes; larger files, such as checkpoints of the short training, stay where they are."""


def write_report(folder: Path, facts: dict[str, Any], results: Sequence[Result]) -> Path:
    """The page: the machine, a line a step, what went wrong, and the numbers that cases found."""
    lines = ["# GPU check", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {_cell(value)} |" for name, value in facts.items()]
    lines += ["", "| step | result | |", "|---|---|---|"]
    lines += [f"| {one.step.name} | {one.status} | {_cell(one.detail)} |" for one in results]
    for one in results:
        journal = Journal(folder, one.step.name)
        wrong = journal.wrong
        if wrong:
            lines += ["", f"## {one.step.name}: what went wrong", ""]
            lines += [f"- `{line['case']}` {line['status']}: {line['detail']}" for line in wrong]
        told = [line for line in journal.cases.values() if line.get("numbers", {}).get("show")]
        if told:
            lines += ["", f"## {one.step.name}", ""]
            lines += [f"- {line['case']}: {line['detail']}" for line in told]
    path = folder / REPORT
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _cell(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("|", "\\|").replace("\n", " ")


def write_archive(folder: Path) -> Path:
    """One file with everything in the folder that is not too large; a reader never sees half of it."""
    path, temporary = folder / ARCHIVE, folder / f"{ARCHIVE}.part"
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.rglob("*")):
            if file.is_file() and file not in (path, temporary) and file.stat().st_size <= LARGEST_FILE:
                archive.write(file, Path("gpu-check") / file.relative_to(folder))
    temporary.replace(path)
    return path
