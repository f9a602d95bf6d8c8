"""A run of a study, and its settings by their command-line names."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.config import ResolvedConfig, TrainConfig

TRUNK = "mm-trunk"
"""Name of the moment-matching run that branches continue."""


@dataclass(frozen=True)
class Run:
    """One training of a study."""

    config: ResolvedConfig
    """What `p3 train` writes to config.json."""
    arm: str
    """Name of its way to train; `TRUNK` for a trunk."""
    given: tuple[str, ...]
    """What comes after `p3 train`."""
    trunk: Run | None = None
    """The run that it continues."""

    @property
    def path(self) -> Path:
        """The directory of the run."""
        return self.config.run_dir

    @property
    def name(self) -> str:
        """Name of its directory and its record."""
        return self.path.name

    @property
    def first(self) -> int:
        """The first iteration of its own."""
        return 1 if self.trunk is None else self.trunk.target + 1

    @property
    def target(self) -> int:
        """The iteration at which it is finished."""
        return self.config.iterations

    def arguments(self, *, resume: bool) -> list[str]:
        """What comes after `p3`."""
        return ["train", "--run-dir", str(self.path), "--resume"] if resume else ["train", *self.given]


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
