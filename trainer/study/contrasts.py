"""What the records of a planned study say: the measures by arm, the planned contrasts, and which finding each one is.

The rules are those of docs/preregistration.md: two measures, three contrasts, exact sign flips over the seeds that both
arms have, Holm's correction over all six, and equivalence within ten percentage points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer.study.arms import Contrast
from trainer.study.plan import TRUNK
from trainer.study.planned import Planned
from trainer.study.records import Record, read_record
from trainer.study.statistics import equivalence_p, holm, interval, sign_flip_p

LEVEL = 0.05
"""Significance level of all tests of a family together."""
MARGIN = 0.10
"""Difference of success, as a share, below which two methods are as good as alike."""
HALF = 0.5
"""The success that the steps are counted to."""
LATENTS = {"mean": "z mean", "sample": "z sampled"}
"""The co-primary measures: success acting at the latent's mean, and at a sample of it."""


@dataclass(frozen=True)
class Test:
    """A contrast on one of the measures."""

    contrast: Contrast
    latent: str
    seeds: tuple[int, ...]
    mean: float
    """Mean of the differences of success, first − second."""
    interval: tuple[float, float]
    """95 % interval of that mean, by Student's t."""
    wins: int
    """Seeds on which the first is better."""
    p: float
    """Two-sided p-value, by all flips of signs."""
    p_holm: float
    equivalence: float
    """p of equivalence within ± `MARGIN`."""
    equivalence_holm: float

    @property
    def finding(self) -> str:
        """What the contrast counts as."""
        differs, alike = self.p_holm <= LEVEL, self.equivalence_holm <= LEVEL
        if differs:
            better = self.contrast.first if self.mean > 0 else self.contrast.second
            return f"{better} is better" + (f", by less than {100 * MARGIN:.0f} points" if alike else "")
        return f"alike within {100 * MARGIN:.0f} points" if alike else "undecided"


@dataclass(frozen=True)
class Findings:
    """A planned study's finished runs."""

    planned: Planned
    records: dict[str, dict[int, Record]]
    """By arm, in the study's order, and by seed."""
    trunks: dict[int, Record] = field(default_factory=dict)
    """Records of the trunks by their seeds."""
    unfinished: list[str] = field(default_factory=list)
    damaged: dict[str, str] = field(default_factory=dict)

    def values(self, arm: str, of: Callable[[Record], float]) -> dict[int, float]:
        """A number of every finished run of an arm, by seed."""
        return {seed: of(record) for seed, record in self.records[arm].items()}

    def success(self, arm: str, latent: str, difficulty: str | None = None) -> dict[int, float]:
        """The measure of every finished run of an arm, by seed; see `Record.success`."""
        return self.values(arm, lambda record: record.success(latent, difficulty))

    def tests(self) -> list[Test]:
        """The planned contrasts between arms that have seeds in common; a family for Holm's correction.

        The correction is for all that were planned, whether they have runs by now or not.
        """
        contrasts = self.planned.plan.contrasts_of([arm.name for arm in self.planned.arms])
        values = {arm: {latent: self.success(arm, latent) for latent in LATENTS} for arm in self.records}
        return contrast_tests(contrasts, values, planned=len(self.planned.plan.contrasts) * len(LATENTS))

    def steps_to_half(self, arm: str) -> dict[int, float]:
        """Steps until an evaluation while training, at difficulty 0.2, succeeds half of the time; infinite if none."""
        found = {}
        for seed, record in self.records[arm].items():
            trunk = self.trunks.get(seed)
            before = trunk.evaluated if record.first_iteration > 1 and trunk is not None else []
            found[seed] = steps_to(HALF, [*before, *record.evaluated])
        return found

    def as_json(self) -> dict[str, Any]:
        """Every number that the tables have, by arm and seed, and the tests."""
        runs = {
            arm: {
                str(seed): {
                    **{f"success, {text}": record.success(latent) for latent, text in LATENTS.items()},
                    "steps to 50 %": _finite(self.steps_to_half(arm)[seed]),
                    "diverged": record.diverged,
                }
                for seed, record in by_seed.items()
            }
            for arm, by_seed in self.records.items()
        }
        tests = [
            {
                **{name: value for name, value in vars(test).items() if name != "contrast"},
                "contrast": f"{test.contrast.first} - {test.contrast.second}",
                "interval": [_finite(end) for end in test.interval],
                "finding": test.finding,
            }
            for test in self.tests()
        ]
        return {
            "study": self.planned.plan.name,
            "runs": runs,
            "tests": tests,
            "unfinished": self.unfinished,
            "damaged": self.damaged,
        }


def contrast_tests(
    contrasts: tuple[Contrast, ...], values: Mapping[str, Mapping[str, Mapping[int, float]]], planned: int
) -> list[Test]:
    """Tests contrasts over the seeds that both arms have.

    Args:
        contrasts: What is compared.
        values: By arm, by latent and by seed.
        planned: Number of tests that Holm's correction is for; those that cannot be made yet count as p = 1.
    """
    made: list[tuple[Contrast, str, tuple[int, ...], list[float]]] = []
    for contrast in contrasts:
        for latent in LATENTS:
            first, second = (values.get(arm, {}).get(latent, {}) for arm in (contrast.first, contrast.second))
            seeds = tuple(seed for seed in first if seed in second)
            if seeds:
                made.append((contrast, latent, seeds, [first[seed] - second[seed] for seed in seeds]))
    missing = [1.0] * (planned - len(made))
    p = [sign_flip_p(differences) for *_, differences in made]
    alike = [equivalence_p(differences, MARGIN) for *_, differences in made]
    p_holm, alike_holm = holm([*p, *missing]), holm([*alike, *missing])
    return [
        Test(
            contrast,
            latent,
            seeds,
            sum(differences) / len(differences),
            interval(differences),
            sum(difference > 0 for difference in differences),
            p[index],
            p_holm[index],
            alike[index],
            alike_holm[index],
        )
        for index, (contrast, latent, seeds, differences) in enumerate(made)
    ]


def steps_to(success: float, evaluated: list[tuple[float, float]]) -> float:
    """Steps of the first evaluation that reaches `success`; infinite if none does."""
    return next((steps for steps, value in evaluated if value >= success), math.inf)


def gather(planned: Planned) -> Findings:
    """Reads the records that there are; what is missing, or cannot be read, is told of and left out."""
    findings = Findings(planned, {arm.name: {} for arm in planned.arms})
    for run in planned.runs():
        try:
            record = read_record(run, planned.size, planned.records)
        except (ValueError, OSError) as error:
            findings.damaged[run.name] = str(error)
            continue
        if run.arm == TRUNK:
            if record is not None:
                findings.trunks[run.config.seed] = record
        elif record is None:
            findings.unfinished.append(run.name)
        else:
            findings.records[run.arm][run.config.seed] = record
    return findings


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
