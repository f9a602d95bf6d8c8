"""What a study is made of: its methods, seeds and settings, and the runs that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.algorithms.methods import parse_method
from trainer.algorithms.presets import resolve, task_of
from trainer.config import ResolvedConfig, TrainConfig


@dataclass(frozen=True)
class Study:
    """Methods that are trained alike and compared."""

    name: str
    """As on the command line."""
    title: str
    """Title of its section in the results."""
    summary: str
    """For the list of studies."""
    methods: tuple[str, ...]
    """In the order of the tables; as for `p3 train --method`."""
    reference: str
    """The method that the others are tested against."""
    seeds: tuple[int, ...]


STUDIES = {
    study.name: study
    for study in (
        Study(
            name="estimators",
            title="Estimators over seeds",
            summary="one network, trained with each estimator of its likelihood, against the single sample of the VAE",
            methods=("vae", "z-mean", "mc(5)", "mc(15)", "mc(50)", "mm", "p3", "cm", "cm-diagonal"),
            reference="vae",
            seeds=(1, 2, 3, 4, 5),
        ),
        Study(
            name="baselines",
            title="Baselines over seeds",
            summary="AE, SPR and SimpleActorCritic against P³",
            methods=("ae", "spr", "simple-actor-critic", "p3"),
            reference="p3",
            seeds=(1, 2, 3),
        ),
    )
}


@dataclass(frozen=True)
class EvalSettings:
    """The measure that ranks: fresh episodes at one fixed difficulty, which no promotion rule decides about."""

    difficulty: float | None = 0.0
    """Difficulty of the terrain, in [0, 1]; None on a plane."""
    seconds: float = 10.0
    """Length of an episode."""
    episodes: int = 128
    """Robots, one episode each."""
    seed: int = 1000
    """Seed of the episodes, the same for every run; other than the trainings'."""


@dataclass(frozen=True)
class Settings:
    """A study as it shall be run.

    Raises:
        ValueError: Naming the option that cannot be.
    """

    study: Study
    directory: Path
    """Directory of the runs, TASK-METHOD-SEED each."""
    task: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    num_envs: int
    iterations: int
    evaluation: EvalSettings
    reference: str
    plateau_window: int = 400
    records: Path | None = None
    """Directory of the records of finished runs; None for none."""
    set: tuple[str, ...] = ()
    """Settings of the task, as for `p3 train --set`."""
    settings: Path | None = None
    """A file of such settings."""

    def __post_init__(self) -> None:
        check_unique("--methods", [parse_method(method).name for method in self.methods])
        check_unique("--seeds", self.seeds)
        if self.reference not in self.methods:
            raise ValueError(f"--reference: {self.reference!r} is none of the methods {', '.join(self.methods)}")
        evaluation = self.evaluation
        if evaluation.seconds <= 0 or evaluation.episodes < 1:
            raise ValueError("--eval-seconds and --eval-episodes: expected positive numbers")
        if evaluation.seed in self.seeds:
            raise ValueError(f"--eval-seed: {evaluation.seed} is a seed of the trainings, expected another")
        if self.plateau_window < 2:
            raise ValueError(f"--plateau-window: expected at least 2, got {self.plateau_window}")
        self.runs()  # what p3 train would refuse is refused here
        if evaluation.difficulty is not None:
            if not task_of(self.runs()[0].config).terrains:
                raise ValueError(f"--eval-difficulty: {self.task} has no terrains, got {evaluation.difficulty:g}")
            if not 0 <= evaluation.difficulty <= 1:
                raise ValueError(f"--eval-difficulty: expected a number in [0, 1], got {evaluation.difficulty:g}")

    def runs(self) -> list[Run]:
        """Every run, seed by seed: what is interrupted early compares all methods on a few seeds."""
        return [Run(self._config(method, seed), self._given()) for seed in self.seeds for method in self.methods]

    def _config(self, method: str, seed: int) -> ResolvedConfig:
        config = TrainConfig(
            task=self.task,
            set=self.set,
            settings=self.settings,
            method=method,
            num_envs=self.num_envs,
            iterations=self.iterations,
            seed=seed,
            processes=1,
            num_threads=1,
            run_dir=self.directory / f"{self.task}-{method}-{seed}",
        )
        return resolve(config)

    def _given(self) -> tuple[str, ...]:
        """The settings of the task as `p3 train` takes them."""
        file = () if self.settings is None else ("--settings", str(self.settings))
        return (*file, *(("--set", *self.set) if self.set else ()))


@dataclass(frozen=True)
class Run:
    """One training of the study."""

    config: ResolvedConfig
    """What `p3 train` writes to config.json."""
    task_options: tuple[str, ...] = ()
    """Options of `p3 train` for the settings of the task."""

    @property
    def path(self) -> Path:
        """Its directory."""
        return self.config.run_dir

    @property
    def target(self) -> int:
        """The iteration at which it is finished."""
        return self.config.iterations

    def arguments(self, *, resume: bool) -> list[str]:
        """What comes after `p3`."""
        if resume:
            return ["train", "--run-dir", str(self.path), "--resume"]
        options: dict[str, object] = {
            "task": self.config.task,
            "method": self.config.method,
            "num-envs": self.config.num_envs,
        }
        options |= {"iterations": self.target, "seed": self.config.seed, "processes": 1, "num-threads": 1}
        options["run-dir"] = self.path
        given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
        return ["train", *given, *self.task_options]


def check_unique(option: str, values: Sequence[Any]) -> None:
    """Refuses nothing, and one twice.

    Raises:
        ValueError: Naming `option`.
    """
    if not values:
        raise ValueError(f"{option}: expected at least one")
    twice = {value for value in values if list(values).count(value) > 1}
    if twice:
        raise ValueError(f"{option}: {', '.join(map(str, sorted(twice)))} more than once")


def flat(config: TrainConfig) -> dict[str, Any]:
    """Settings by their command-line names, those of the parts among them: {"num-envs": 64, "ppo.gamma": 0.99, ...}."""
    values: dict[str, Any] = {}
    for name, value in dataclasses.asdict(config).items():
        parts = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        values |= {key.replace("_", "-"): item for key, item in parts.items()}
    return values
