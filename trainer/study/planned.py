"""The runs that follow from a planned study: trunks, their branches, and runs from random weights."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from pathlib import Path

import tyro

from trainer.algorithms.presets import resolve
from trainer.config import TrainConfig
from trainer.runs.checkpoint import checkpoint_path
from trainer.study.arms import Arm, Plan, Size
from trainer.study.plan import TRUNK, Run, check_unique
from trainer.study.statistics import MOST_EXACT
from trainer.training.branch import settings_of_branch


@dataclass(frozen=True)
class Planned:
    """A planned study as it shall be run.

    Raises:
        ValueError: Naming the option that cannot be.
    """

    plan: Plan
    directory: Path
    """Directory of the runs, TASK-ARM-SEED each."""
    records: Path
    """Directory of the records of finished runs, a file each."""
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    size: Size = field(default_factory=Size)

    def __post_init__(self) -> None:
        check_unique("--arms", [arm.name for arm in self.arms])
        check_unique("--seeds", self.seeds)
        if len(self.seeds) > MOST_EXACT:
            raise ValueError(f"--seeds: expected at most {MOST_EXACT}, got {len(self.seeds)}")
        if self.size.judging.seed in self.seeds:
            raise ValueError(f"--eval-seed: {self.size.judging.seed} is a seed of the trainings, expected another")
        self.runs()  # what p3 train would refuse is refused here

    def runs(self) -> list[Run]:
        """Every run, seed by seed: what is interrupted early compares all arms on a few seeds."""
        return list(self._runs)

    @functools.cached_property
    def _runs(self) -> tuple[Run, ...]:
        found: list[Run] = []
        for seed in self.seeds:
            trunk = self._run(Arm(TRUNK, ("--method", "mm")), seed, self.size.trunk)
            if any(arm.branch for arm in self.arms):
                found.append(trunk)
            for arm in self.arms:
                found.append(self._branch(arm, trunk) if arm.branch else self._run(arm, seed, self.size.iterations))
        return tuple(found)

    def compared(self) -> list[Run]:
        """Every run but the trunks."""
        return [run for run in self.runs() if run.arm != TRUNK]

    def _path(self, arm: Arm, seed: int) -> Path:
        return self.directory / f"{self.size.task}-{arm.name}-{seed}"

    def _run(self, arm: Arm, seed: int, iterations: int) -> Run:
        size, path = self.size, self._path(arm, seed)
        given = (
            *("--task", size.task, "--num-envs", str(size.num_envs), "--iterations", str(iterations)),
            *("--processes", "1", "--num-threads", "1", "--save-interval", str(size.save_interval)),
            *("--keep-checkpoints", str(size.judging.checkpoints), "--no-tensorboard"),
            *("--eval-interval", str(size.eval_interval), "--eval-difficulty", "0.2", "--eval-episodes", "64"),
            *size.options,
            *arm.options,
        )
        config = resolve(dataclasses.replace(_parsed(given), seed=seed, run_dir=path))
        return Run(config, arm.name, (*given, "--seed", str(seed), "--run-dir", str(path)))

    def _branch(self, arm: Arm, trunk: Run) -> Run:
        path, source = self._path(arm, trunk.config.seed), str(checkpoint_path(trunk.path, trunk.target))
        given = ("--iterations", str(self.size.iterations), *arm.options)
        options = trunk.given[: trunk.given.index("--seed")]
        config = dataclasses.replace(_parsed_branch(options, given), seed=trunk.config.seed)
        config = resolve(dataclasses.replace(config, branch_from=source, run_dir=path))
        return Run(config, arm.name, ("--branch-from", source, *given, "--run-dir", str(path)), trunk)


@functools.cache
def _parsed(given: tuple[str, ...]) -> TrainConfig:
    return tyro.cli(TrainConfig, args=given)


@functools.cache
def _parsed_branch(trunk: tuple[str, ...], given: tuple[str, ...]) -> TrainConfig:
    """Settings of `p3 train --branch-from`, of a trunk that need not be there yet."""
    return tyro.cli(TrainConfig, args=given, default=settings_of_branch(resolve(_parsed(trunk)).given(), ""))
