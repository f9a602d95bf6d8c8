"""The record of a finished run of a planned study: one small JSON file, without checkpoints.

It has what tables, figures and tests need: settings, versions, curves as means over blocks of iterations, and what its
last checkpoints reached. So a study can be gathered over days and from several machines, and published.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.runs.files import replace_file
from trainer.runs.metrics import FILE_NAME as METRICS
from trainer.runs.metrics import read_metrics
from trainer.study.arms import Size
from trainer.study.judge import Judged, judged_with, judging_seconds, read_judged
from trainer.study.plan import TRUNK, Run, flat
from trainer.study.state import BOOKKEEPING, SESSIONS, OtherSettings, state_of, why_diverged

_DIGITS = 6
"""Significant ones of a record's curves."""
BLOCK = 5
"""Iterations that a point of a curve is the mean over."""
STEPS, SECONDS, EVALUATED = "steps/total", "time/total_seconds", "eval/success"
CURVES = (
    *("episode/reward", "episode/length", "episode/success", "curriculum/difficulty"),
    *("loss/learning_rate", "loss/kl", "loss/clip_fraction", "loss/surrogate", "loss/value"),
    *("policy/latent_share", "policy/action_std", "policy/active_latents", "d_eff/trained", "d_eff/n15"),
    *("loss/latent_share", "loss/latent_noise_coef"),
)
"""What the paper's causal chain runs through, from the likelihood's noise to the reward."""


@dataclass(frozen=True)
class Record:
    """A finished run."""

    arm: str
    seed: int
    first_iteration: int
    """After the trunk's for a branch."""
    curves: dict[str, np.ndarray]
    """Curves by name (`CURVES` and `STEPS`): [T], a point a block of iterations; NaN where nothing was logged."""
    evaluated: list[tuple[float, float]]
    """Steps, and the success at difficulty 0.2 while training."""
    judged: Judged
    """How the run was judged; nothing for a trunk."""
    seconds: float
    """Seconds of training, the trunk's included."""
    judging_seconds: float
    """Processor seconds of judging."""
    trained_with: tuple[str, ...]
    judged_with: dict[str, str]
    diverged: str | None = None
    """Why the training gave up before its end, where it did."""

    def success(self, latent: str, difficulty: str | None = None) -> float:
        """The measure: the mean over the last checkpoints and, unless one is named, over the difficulties.

        A run that diverged before it had as many checkpoints as others are judged by has nothing judged, and counts
        with 0 (docs/preregistration.md).
        """
        if self.diverged is not None and not self.judged:
            return 0.0
        return self.number("success", latent, difficulty)

    def number(self, name: str, latent: str, difficulty: str | None = None) -> float:
        """Another number of the episodes, as `success`."""
        values = [
            numbers[name]
            for by_latent in self.judged.values()
            for grade, numbers in by_latent[latent].items()
            if difficulty in (None, grade)
        ]
        return sum(values) / len(values) if values else math.nan

    def first(self, curve: str) -> float:
        """The first point of a curve; NaN without any."""
        return float(self.curves[curve][0]) if len(self.curves[curve]) else math.nan

    def last(self, curve: str) -> float:
        """The last known point of a curve; NaN without any."""
        known = self.curves[curve][~np.isnan(self.curves[curve])]
        return float(known[-1]) if len(known) else math.nan

    def mean(self, curve: str) -> float:
        """Over the known points of a curve; NaN without any."""
        known = self.curves[curve][~np.isnan(self.curves[curve])]
        return float(known.mean()) if len(known) else math.nan


def record_path(run: Run, records: Path) -> Path:
    """Path of a run's record among `records`."""
    return records / f"{run.name}.json"


def write_record(run: Run, size: Size, records: Path) -> None:
    """Writes the record of a run that is trained, or gave up, and is judged unless it is a trunk.

    Raises:
        ValueError: It is not, or its log is damaged.
    """
    judged = {} if run.arm == TRUNK else read_judged(run, size)
    state = state_of(run)
    if state not in ("trained", "diverged") or judged is None:
        raise ValueError(f"{run.path}: expected a run that is trained and judged")
    rows = read_metrics(run.path) if state == "trained" or (run.path / METRICS).exists() else []
    last = run.target if state == "trained" else run.first + len(rows) - 1
    if [int(row["iteration"]) for row in rows] != list(range(run.first, last + 1)):
        raise ValueError(f"{run.path}: its metrics are not of the iterations {run.first} to {last}")
    evaluated = [[row[STEPS], row[EVALUATED]] for row in rows if row.get(EVALUATED) is not None]
    content = {
        "arm": run.arm,
        "seed": run.config.seed,
        "settings": _learned(run),
        "first_iteration": run.first,
        "judging": _judging(size),
        "judged": judged,
        "evaluated": evaluated,
        "curves": {key: [_rounded(value) for value in _blocks(rows, key)] for key in (STEPS, *CURVES)},
        "seconds": rows[-1][SECONDS] if rows else 0.0,
        "judging_seconds": round(judging_seconds(run.path, size.judging), 1),
        "trained_with": _versions_in(run.path / SESSIONS),
        "judged_with": judged_with(run.path, size.judging),
        "diverged": why_diverged(run) if state == "diverged" else None,
    }
    records.mkdir(parents=True, exist_ok=True)
    replace_file(record_path(run, records), (json.dumps(content) + "\n").encode())


def read_record(run: Run, size: Size, records: Path) -> Record | None:
    """What `write_record` wrote; None where there is none.

    Raises:
        OtherSettings: It is of a run that was trained or judged in another way; names the setting.
        ValueError: It cannot be read.
    """
    path = record_path(run, records)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "evaluation_settings" in content:
            raise OtherSettings(f"{path}: a record of version 0.1.0, of another study; name another --records")
        for kind, expected in (("settings", _learned(run)), ("judging", _judging(size))):
            for name, value in expected.items():
                if content[kind].get(name, value) != value:  # what it does not say, its version did not have
                    raise OtherSettings(f"{path}: has {name} {content[kind][name]!r}, this study {value!r}")
        return Record(
            content["arm"],
            content["seed"],
            content["first_iteration"],
            {key: _array(content["curves"].get(key, [])) for key in (STEPS, *CURVES)},
            [(float(steps), float(success)) for steps, success in content["evaluated"]],
            content["judged"],
            float(content["seconds"]),
            float(content["judging_seconds"]),
            tuple(content["trained_with"]),
            content["judged_with"],
            content.get("diverged"),
        )
    except OtherSettings:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected the record of a run ({error!r})") from error


def _judging(size: Size) -> dict[str, Any]:
    judging = size.judging
    return {
        "difficulties": list(judging.difficulties),
        "episodes": judging.episodes,
        "seconds": judging.seconds,
        "seed": judging.seed,
        "iterations": list(size.judged),
    }


def _learned(run: Run) -> dict[str, Any]:
    """The settings that matter for what is learned, as JSON has them."""
    return json.loads(json.dumps({name: value for name, value in flat(run.config).items() if name not in BOOKKEEPING}))


def _versions_in(path: Path) -> tuple[str, ...]:
    """What a file of the study was made with, one entry for each time; nothing where it does not say."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = content if isinstance(content, list) else [content]
        return tuple(", ".join(f"{name} {version}" for name, version in entry["versions"].items()) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _rounded(value: float) -> float | None:
    """As a record has it: a few significant digits; None for what is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _blocks(rows: list[dict[str, Any]], key: str) -> list[float]:
    """Means over blocks of iterations, of the steps the last; NaN where a block has nothing of it."""
    values = _array([row.get(key) for row in rows])
    found = []
    for begin in range(0, len(values), BLOCK):
        block = values[begin : begin + BLOCK]
        known = block[~np.isnan(block)]
        found.append(math.nan if not len(known) else float(known[-1] if key == STEPS else known.mean()))
    return found


def _array(values: list[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else float(value) for value in values])
