"""What the runs of a study say: curves, final numbers, convergence and tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.algorithms.schedule import Plateau
from trainer.study.finished import DIFFICULTY, REWARD, STEPS, Finished, find_finished
from trainer.study.plan import Run, Settings
from trainer.study.statistics import Paired, area, holm, mean_std, paired


@dataclass(frozen=True)
class Measure:
    """A number of a finished run."""

    key: str
    label: str
    digits: int
    of: Callable[[Finished], float]


def _lost_by_sampling(run: Finished) -> float:
    """Reward that is lost where z is drawn in every step in place of its mean."""
    return run.evaluated("mean", "reward") - run.evaluated("sample", "reward")


MEASURES = (
    Measure("eval_reward_mean", "reward, z mean", 2, lambda run: run.evaluated("mean", "reward")),
    Measure("eval_reward_sample", "reward, z sampled", 2, lambda run: run.evaluated("sample", "reward")),
    Measure("eval_reward_lost", "lost by sampling z", 2, _lost_by_sampling),
    Measure("eval_distance_mean", "distance m, z mean", 2, lambda run: run.evaluated("mean", "distance")),
    Measure("eval_lifetime_mean", "lifetime s, z mean", 2, lambda run: run.evaluated("mean", "lifetime")),
    Measure("area", "training reward, mean over the steps", 2, lambda run: area(run.curves[STEPS], run.curves[REWARD])),
    Measure("reward_half", "training reward at half of the steps", 2, lambda run: run.reward_at(0.5)),
    Measure("reward_end", "training reward at the end", 2, lambda run: run.reward_at(1.0)),
    Measure("difficulty", "final difficulty", 2, lambda run: run.difficulty),
    Measure("minutes", "training, minutes", 1, lambda run: run.seconds / 60),
)
PRIMARY = MEASURES[0]
"""Chosen before any two runs of a study had been compared: what all of them maximise, as deployed, on episodes
that are the same for every run and at a difficulty that no promotion rule decides."""


@dataclass(frozen=True)
class Analysis:
    """A study's finished runs."""

    settings: Settings
    runs: dict[str, dict[int, Finished]]
    """By method, in the study's order, and by seed; methods without a finished run have an empty dict."""
    unfinished: list[Run] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)
    """Run directories whose metrics cannot be used, and why."""

    def left_out(self) -> str:
        """What is not finished, by method and seed; "" if nothing is."""
        seeds: dict[str, list[str]] = {}
        for run in self.unfinished:
            seeds.setdefault(run.config.method, []).append(str(run.config.seed))
        return ", ".join(f"{method} (seed{'s' * (len(own) > 1)} {' '.join(own)})" for method, own in seeds.items())

    def converged_at(self, run: Finished) -> int | None:
        """Iteration at which a run had converged, or None."""
        return converged_at(run.curves[REWARD], run.curves[DIFFICULTY], self.settings.plateau_window)

    def values(self, method: str, measure: Measure) -> dict[int, float]:
        """By seed."""
        return {seed: measure.of(run) for seed, run in self.runs[method].items()}

    def bands(self, method: str, curve: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Steps, mean and standard deviation over the seeds [T] each; a point counts the seeds that have it."""
        runs = list(self.runs[method].values())
        count = min(len(run.curves[curve]) for run in runs)
        stacked = np.stack([run.curves[curve][:count] for run in runs])
        seeds = (~np.isnan(stacked)).sum(0)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nansum(stacked, 0) / np.where(seeds > 0, seeds, np.nan)
            squares = np.nansum((stacked - mean) ** 2, 0)
            std = np.sqrt(squares / np.where(seeds > 1, seeds - 1, np.nan))
        return runs[0].curves[STEPS][:count], mean, std

    def comparisons(self, measure: Measure = PRIMARY) -> dict[str, Comparison]:
        """Every other method minus the reference, over the seeds that both have; corrected for their number."""
        reference = self.values(self.settings.reference, measure)
        tests: dict[str, Paired] = {}
        for method in self.settings.methods:
            own = self.values(method, measure)
            seeds = [seed for seed in own if seed in reference]
            if method != self.settings.reference and seeds:
                tests[method] = paired([own[seed] for seed in seeds], [reference[seed] for seed in seeds])
        t = holm([test.t_p for test in tests.values()])
        flip = holm([test.sign_flip_p for test in tests.values()])
        return {name: Comparison(test, t[i], flip[i]) for i, (name, test) in enumerate(tests.items())}

    def as_json(self) -> dict[str, Any]:
        """Every number of every run, and the comparisons; what is not finite is null."""
        measures: dict[str, dict[str, dict[str, Any]]] = {
            method: {
                str(seed): {
                    **{measure.key: _finite(measure.of(run)) for measure in MEASURES},
                    "converged_at": self.converged_at(run),
                    "evaluation": {
                        latent: {name: _finite(value) for name, value in numbers.items()}
                        for latent, numbers in run.evaluation.items()
                    },
                }
                for seed, run in runs.items()
            }
            for method, runs in self.runs.items()
        }
        tests = {
            measure.key: {
                method: {name: _finite(value) for name, value in {**vars(c.test), **c.adjusted()}.items()}
                for method, c in self.comparisons(measure).items()
            }
            for measure in MEASURES[:-1]
        }
        return {
            "study": self.settings.study.name,
            "primary": PRIMARY.key,
            "reference": self.settings.reference,
            "runs": measures,
            "tests": tests,
            "unfinished": [run.path.name for run in self.unfinished],
            "damaged": self.damaged,
        }


@dataclass(frozen=True)
class Comparison:
    """A test, and its p-values after Holm's correction."""

    test: Paired
    t_holm: float
    sign_flip_holm: float

    def adjusted(self) -> dict[str, float]:
        """By name."""
        return {"t_holm": self.t_holm, "sign_flip_holm": self.sign_flip_holm}


def analyse(settings: Settings) -> Analysis:
    """Reads what is finished; what is not, or cannot be read, is told of and left out."""
    runs: dict[str, dict[int, Finished]] = {method: {} for method in settings.methods}
    unfinished: list[Run] = []
    damaged: dict[str, str] = {}
    for run in settings.runs():
        try:
            finished = find_finished(run, settings.evaluation, settings.records)
            if finished is None:
                unfinished.append(run)
            else:
                runs[run.config.method][run.config.seed] = finished
        except (ValueError, OSError, KeyError) as error:
            damaged[run.path.name] = str(error)
    return Analysis(settings, runs, unfinished, damaged)


def converged_at(reward: np.ndarray, difficulty: np.ndarray, window: int = 400) -> int | None:
    """The first iteration at which the paper's criterion holds, or None: a plateau of the reward, at difficulty 0.9.

    Args:
        reward: [T], NaN before the first episode has ended.
        difficulty: [T], NaN without a curriculum; then the plateau alone decides.
        window: Iterations that the criterion looks at.
    """
    plateau = Plateau(window)
    for index, (progress, height) in enumerate(zip(reward.tolist(), difficulty.tolist(), strict=True)):
        if math.isnan(progress):
            continue
        if plateau.update(progress, None if math.isnan(height) else height):
            return index + 1
    return None


def summary(values: Sequence[float], digits: int) -> str:
    """Mean ± std, as far as there are values."""
    mean, std = mean_std([value for value in values if not math.isnan(value)])
    if math.isnan(mean):
        return "–"
    return f"{mean:.{digits}f}" if math.isnan(std) else f"{mean:.{digits}f} ± {std:.{digits}f}"


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
