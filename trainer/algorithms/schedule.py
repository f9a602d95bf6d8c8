"""Which estimator of the marginal likelihood trains, and when it changes."""

from __future__ import annotations

from collections import deque
from typing import Any

from trainer.algorithms.method import Method
from trainer.models.actor import Estimator


class Plateau:
    """The paper's stopping rule: a sustained plateau, and, where there is a curriculum, at the level it names.

    Progress has levelled off when its mean over the later half of a window is not above that of the earlier half by
    more than a share of it.

    Args:
        window: Iterations looked at.
        tolerance: The share.
        min_level: Curriculum level that must be reached: 4.5 of the paper's 5.
    """

    def __init__(self, window: int = 400, tolerance: float = 0.01, min_level: float = 4.5) -> None:
        if window < 2:
            raise ValueError(f"plateau_window: expected at least 2, got {window}")
        self.window, self.tolerance, self.min_level = window, tolerance, min_level
        self._progress: deque[float] = deque(maxlen=window)

    def update(self, progress: float, level: float | None) -> bool:
        """Adds an iteration's progress; True once the plateau is there."""
        self._progress.append(progress)
        if len(self._progress) < self.window or (level is not None and level < self.min_level):
            return False
        values, half = list(self._progress), self.window // 2
        early, late = sum(values[:half]) / half, sum(values[half:]) / (self.window - half)
        return late - early <= self.tolerance * max(abs(early), abs(late))

    def state_dict(self) -> dict[str, Any]:
        """The window's content."""
        return {"progress": list(self._progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()`."""
        self._progress = deque(state["progress"], maxlen=self.window)


class EstimatorSchedule:
    """A method keeps its estimator, or changes it once, for good: P³ from MM to MC, the LSFT phase.

    Args:
        method: Whose estimators.
        switch_at: Iteration at which it changes; None to wait for the plateau.
        plateau: The criterion used where `switch_at` is None.
    """

    def __init__(self, method: Method, switch_at: int | None = None, plateau: Plateau | None = None) -> None:
        if switch_at is not None and switch_at < 0:
            raise ValueError(f"switch_at: expected an iteration >= 0, got {switch_at}")
        self.method, self.switch_at = method, switch_at
        self.plateau = plateau or Plateau()
        self.switched = method.then is not None and switch_at == 0

    @property
    def estimator(self) -> Estimator:
        """The active one."""
        if self.switched:
            assert self.method.then is not None
            return self.method.then
        return self.method.estimator

    def advance(self, iteration: int, progress: float, level: float | None = None) -> bool:
        """Told after an update; True if the next iteration has another estimator.

        Args:
            iteration: The next one's number.
            progress: What should level off: the mean reward of a step.
            level: Mean curriculum level, where there is one.
        """
        if self.switched or self.method.then is None:
            return False
        levelled = self.plateau.update(progress, level)
        due = levelled if self.switch_at is None else iteration >= self.switch_at
        self.switched = due
        return due

    def state_dict(self) -> dict[str, Any]:
        """Phase and plateau window."""
        return {"switched": self.switched, "plateau": self.plateau.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()`."""
        if self.method.then is not None:
            self.switched = bool(state["switched"])
        self.plateau.load_state_dict(state["plateau"])
