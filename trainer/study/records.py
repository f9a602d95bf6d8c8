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
from trainer.runs.metrics import read_metrics
from trainer.study.arms import TRUNK, ArmRun, Size
from trainer.study.finished import learned, rounded, versions_in
from trainer.study.judge import Judged, judged_with, judging_seconds, read_judged
from trainer.study.state import SESSIONS, OtherSettings, state_of

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
    """Nothing for a trunk."""
    seconds: float
    """Seconds of training, the trunk's included."""
    judging_seconds: float
    """Processor seconds of judging."""
    trained_with: tuple[str, ...]
    judged_with: dict[str, str]

    def success(self, latent: str, difficulty: str | None = None) -> float:
        """The measure: the mean over the last checkpoints and, unless one is named, over the difficulties."""
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

    def last(self, curve: str) -> float:
        """The last known point of a curve; NaN without any."""
        known = self.curves[curve][~np.isnan(self.curves[curve])]
        return float(known[-1]) if len(known) else math.nan

    def mean(self, curve: str) -> float:
        """Over the known points of a curve; NaN without any."""
        known = self.curves[curve][~np.isnan(self.curves[curve])]
        return float(known.mean()) if len(known) else math.nan


def record_path(run: ArmRun, records: Path) -> Path:
    """Path of a run's record among `records`."""
    return records / f"{run.name}.json"


def write_record(run: ArmRun, size: Size, records: Path) -> None:
    """Writes the record of a run that is trained and, unless it is a trunk, judged.

    Raises:
        ValueError: It is not, or its log is damaged.
    """
    judged = {} if run.arm == TRUNK else read_judged(run, size)
    if state_of(run) != "trained" or judged is None:
        raise ValueError(f"{run.path}: expected a run that is trained and judged")
    rows = read_metrics(run.path)
    first = 1 if run.trunk is None else run.trunk.target + 1
    if [int(row["iteration"]) for row in rows] != list(range(first, run.target + 1)):
        raise ValueError(f"{run.path}: its metrics are not of the iterations {first} to {run.target}")
    evaluated = [[row[STEPS], row[EVALUATED]] for row in rows if row.get(EVALUATED) is not None]
    content = {
        "arm": run.arm,
        "seed": run.config.seed,
        "settings": learned(run),
        "first_iteration": first,
        "judging": _judging(size),
        "judged": judged,
        "evaluated": evaluated,
        "curves": {key: [rounded(value) for value in _blocks(rows, key)] for key in (STEPS, *CURVES)},
        "seconds": rows[-1][SECONDS],
        "judging_seconds": round(judging_seconds(run.path, size.judging), 1),
        "trained_with": versions_in(run.path / SESSIONS),
        "judged_with": judged_with(run.path, size.judging),
    }
    records.mkdir(parents=True, exist_ok=True)
    replace_file(record_path(run, records), (json.dumps(content) + "\n").encode())


def read_record(run: ArmRun, size: Size, records: Path) -> Record | None:
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
        for kind, expected in (("settings", learned(run)), ("judging", _judging(size))):
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
