"""A run that was trained and evaluated to its end: from its directory, or from its record.

A record is what the tables and figures need of a run, in one small JSON file without checkpoints: with `--records` a
study can be gathered from several machines and days, and published.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.runs.files import replace_file
from trainer.runs.metrics import read_metrics
from trainer.study.evaluation import FILE_NAME as EVALUATION
from trainer.study.evaluation import Numbers, read_evaluation
from trainer.study.plan import EvalSettings, Run, flat
from trainer.study.state import BOOKKEEPING, SESSIONS, OtherSettings, state_of

REWARD, LENGTH, DIFFICULTY, STEPS = "episode/reward", "episode/length", "curriculum/difficulty", "steps/total"
PROGRESS, SECONDS = "reward/progress", "time/total_seconds"
CURVES = (REWARD, LENGTH, PROGRESS, DIFFICULTY)
_LEVEL, _LAST_LEVEL = "curriculum/level", 5
"""Before version 0.2 difficulty was logged, and evaluated at, as a level of 0 to 5."""
_DIGITS = 6
"""Significant ones of a record's curves."""


@dataclass(frozen=True)
class Finished:
    """A run that was trained and evaluated to its end."""

    run: Run
    curves: dict[str, np.ndarray]
    """Curves by name, those of `CURVES` and `STEPS`: [T], by iteration; NaN where nothing was logged."""
    evaluation: Numbers
    seconds: float
    trained_with: tuple[str, ...]
    """Versions, one entry for each time it was begun or resumed; nothing for a run that no study began."""
    evaluated_with: tuple[str, ...]

    @property
    def difficulty(self) -> float:
        """Mean curriculum difficulty at the end; NaN without a curriculum."""
        return _last(self.curves[DIFFICULTY])

    def evaluated(self, latent: str, name: str) -> float:
        """A number of the evaluation at a fixed difficulty."""
        return self.evaluation[latent][name]

    def reward_at(self, share: float) -> float:
        """Mean reward of the training episodes that had ended last, at a share of the steps."""
        return _last(self.curves[REWARD][: max(1, round(share * len(self.curves[REWARD])))])


def find_finished(run: Run, evaluation: EvalSettings, records: Path | None) -> Finished | None:
    """The run from its record, else from its directory; None where it is not finished.

    Raises:
        OtherSettings: What is there belongs to another study.
        ValueError: It is damaged.
    """
    if records is not None and (recorded := read_record(run, evaluation, records)) is not None:
        return recorded
    numbers = read_evaluation(run, evaluation) if state_of(run) == "trained" else None
    return None if numbers is None else _from_directory(run, numbers)


def _from_directory(run: Run, evaluation: Numbers) -> Finished:
    rows = read_metrics(run.path)
    if not rows or rows[-1]["iteration"] != run.target:
        raise ValueError(f"{run.path}: its metrics end before iteration {run.target}")
    curves = _curves({key: [row.get(key) for row in rows] for key in (*CURVES, STEPS, _LEVEL)})
    return Finished(
        run,
        curves,
        evaluation,
        seconds=float(_array([rows[-1].get(SECONDS)])[0]),
        trained_with=versions_in(run.path / SESSIONS),
        evaluated_with=versions_in(run.path / EVALUATION),
    )


def record_path(run: Run, records: Path) -> Path:
    """Path of a run's record among `records`."""
    return records / f"{run.path.name}.json"


def write_record(finished: Finished, evaluation: EvalSettings, records: Path) -> None:
    """Writes the run's record, in one piece."""
    content = {
        "settings": learned(finished.run),
        "evaluation_settings": dataclasses.asdict(evaluation),
        "evaluation": finished.evaluation,
        "seconds": finished.seconds,
        "trained_with": finished.trained_with,
        "evaluated_with": finished.evaluated_with,
        "curves": {key: [rounded(value) for value in curve.tolist()] for key, curve in finished.curves.items()},
    }
    records.mkdir(parents=True, exist_ok=True)
    replace_file(record_path(finished.run, records), (json.dumps(content) + "\n").encode())


def read_record(run: Run, evaluation: EvalSettings, records: Path) -> Finished | None:
    """What `write_record` wrote; None where there is none.

    Raises:
        OtherSettings: It is of a run that was trained or evaluated in another way; names the setting.
        ValueError: It cannot be read.
    """
    path = record_path(run, records)
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if "level" in content["evaluation_settings"]:
            level = content["evaluation_settings"].pop("level")
            content["evaluation_settings"]["difficulty"] = None if level is None else level / _LAST_LEVEL
        for kind, expected in (("settings", learned(run)), ("evaluation_settings", dataclasses.asdict(evaluation))):
            for name, value in expected.items():
                if content[kind].get(name, value) != value:  # what it does not say, its version did not have
                    raise OtherSettings(f"{path}: has {name} {content[kind][name]!r}, this study {value!r}")
        curves = _curves(content["curves"])
        if any(len(curve) != run.target for curve in curves.values()):
            raise ValueError(f"its curves are not of {run.target} iterations")
        return Finished(
            run,
            curves,
            content["evaluation"],
            float(content["seconds"]),
            tuple(content["trained_with"]),
            tuple(content["evaluated_with"]),
        )
    except OtherSettings:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected the record of a run ({error!r})") from error


def _curves(values: dict[str, list[float | None]]) -> dict[str, np.ndarray]:
    """Those of `CURVES`, and `STEPS`, by name; of an earlier version's run, the difficulty of its levels."""
    if _LEVEL in values and all(value is None for value in values.get(DIFFICULTY, [])):
        values = {**values, DIFFICULTY: [None if value is None else value / _LAST_LEVEL for value in values[_LEVEL]]}
    return {key: _array(values[key]) for key in (*CURVES, STEPS)}


def learned(run: Run) -> dict[str, Any]:
    """The settings that matter for what is learned, as JSON has them."""
    return json.loads(json.dumps({name: value for name, value in flat(run.config).items() if name not in BOOKKEEPING}))


def versions_in(path: Path) -> tuple[str, ...]:
    """What a file of the study was made with, one entry for each time; nothing where it does not say."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        entries = content if isinstance(content, list) else [content]
        return tuple(", ".join(f"{name} {version}" for name, version in entry["versions"].items()) for entry in entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()


def _array(values: Iterable[float | None]) -> np.ndarray:
    return np.array([math.nan if value is None else float(value) for value in values])


def rounded(value: float) -> float | None:
    """As a record has it: a few significant digits; None for what is not finite."""
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None


def _last(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else math.nan
