"""What a runner asks of an evaluation while it trains; `trainer/evaluation/while_training.py` is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from trainer.models.actor import LatentActor


class Judge(Protocol):
    """Evaluates the policy of a training now and then, and knows the best one so far."""

    best: dict[str, float] | None
    """Iteration and numbers of the best evaluation so far; None before the first."""

    def is_due(self, iteration: int) -> bool:
        """Whether the policy is evaluated after this iteration."""

    def judge(self, actor: LatentActor, iteration: int, save_best: Callable[[], None]) -> tuple[dict[str, float], str]:
        """Evaluates; called by all ranks. Calls `save_best` for the best so far; returns numbers, and a line."""

    def resume(self, content: Mapping[str, Any], run_dir: Path) -> None:
        """Takes over the best evaluation that a checkpoint or `best.pt` knows; called by all ranks."""


class NoJudge:
    """A training that is not evaluated."""

    best: dict[str, float] | None = None

    def is_due(self, iteration: int) -> bool:
        """False: nothing is ever judged."""
        return False

    def judge(self, actor: LatentActor, iteration: int, save_best: Callable[[], None]) -> tuple[dict[str, float], str]:
        """Nothing: it is never due."""
        raise RuntimeError("this training is not evaluated")

    def resume(self, content: Mapping[str, Any], run_dir: Path) -> None:
        """Nothing to take over."""
