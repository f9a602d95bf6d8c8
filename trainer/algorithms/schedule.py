"""Which estimator of the marginal likelihood trains, and when it changes."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

from p3kernels.estimators import Estimator
from trainer.algorithms.method import Method


class Plateau:
    """The paper's stopping rule: a sustained plateau, and, where there is a curriculum, at the difficulty it names.

    Progress has levelled off when its mean over the later half of a window is not above that of the earlier half by
    more than a share of it.

    Args:
        window: Iterations looked at.
        tolerance: The share.
        min_difficulty: Mean difficulty of the curriculum that must be reached: the paper's level 4.5 of 5.
    """

    def __init__(self, window: int = 400, tolerance: float = 0.01, min_difficulty: float = 0.9) -> None:
        if window < 2:
            raise ValueError(f"plateau_window: expected at least 2, got {window}")
        self.window, self.tolerance, self.min_difficulty = window, tolerance, min_difficulty
        self._progress: deque[float] = deque(maxlen=window)

    def update(self, progress: float, difficulty: float | None) -> bool:
        """Adds an iteration's progress; True once the plateau is there."""
        self._progress.append(progress)
        if len(self._progress) < self.window or (difficulty is not None and difficulty < self.min_difficulty):
            return False
        values, half = list(self._progress), self.window // 2
        early, late = sum(values[:half]) / half, sum(values[half:]) / (self.window - half)
        return late - early <= self.tolerance * max(abs(early), abs(late))

    def begin_anew(self) -> None:
        """An empty window, for the next phase."""
        self._progress.clear()

    def state_dict(self) -> dict[str, Any]:
        """The window's content."""
        return {"progress": list(self._progress)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()`."""
        self._progress = deque(state["progress"], maxlen=self.window)


class EstimatorSchedule:
    """Which of a method's phases trains, and when the next one begins, for good.

    Args:
        method: Whose estimators.
        switch_at: Iterations at which the phases change, one a change and rising; None to wait for a plateau in each.
        plateau: The criterion used where `switch_at` is None.

    Attributes:
        phase: Number of the active phase.
        changed_at: Iterations at which the phases changed so far.

    Raises:
        ValueError: The iterations are not one a change, not rising, or negative.
    """

    def __init__(
        self, method: Method, switch_at: int | Sequence[int] | None = None, plateau: Plateau | None = None
    ) -> None:
        self.method = method
        self.switch_at = None if switch_at is None else check_switches(switch_at, method)
        self.plateau = plateau or Plateau()
        self.phase = sum(at == 0 for at in self.switch_at or ())
        self.changed_at: list[int] = []

    @property
    def estimator(self) -> Estimator:
        """The estimator that trains now."""
        return self.method.phases[self.phase]

    def advance(self, iteration: int, progress: float, difficulty: float | None = None) -> bool:
        """Goes on after an update; True if the next iteration has another estimator.

        Args:
            iteration: The next one's number.
            progress: What should level off: the mean reward of a step.
            difficulty: Mean difficulty of the curriculum, where there is one.
        """
        if self.phase == self.method.changes:
            return False
        levelled = self.plateau.update(progress, difficulty)
        if not (levelled if self.switch_at is None else iteration >= self.switch_at[self.phase]):
            return False
        self.phase += 1
        self.changed_at.append(iteration)
        self.plateau.begin_anew()
        return True

    def step_back(self) -> None:
        """To the phase before: of a checkpoint written at a change, the one that made its weights."""
        self.phase = max(0, self.phase - 1)

    def state_dict(self) -> dict[str, Any]:
        """Phase, its beginnings, and plateau window."""
        return {"phase": self.phase, "changed_at": list(self.changed_at), "plateau": self.plateau.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()`, also of a version that knew one change alone."""
        phase = int(state["switched"]) if "switched" in state else int(state["phase"])
        self.phase = min(phase, self.method.changes)
        self.changed_at = [int(at) for at in state.get("changed_at", [])]
        self.plateau.load_state_dict(state["plateau"])


def check_switches(switch_at: int | Sequence[int], method: Method, name: str = "switch_at") -> tuple[int, ...]:
    """The iterations of a method's changes, checked; a single number is that of a single change.

    A method of one phase takes any and uses none, as one setting may serve several methods.

    Raises:
        ValueError: Naming `name`.
    """
    given = (switch_at,) if isinstance(switch_at, int) else tuple(switch_at)
    if any(at < 0 for at in given):
        raise ValueError(f"{name}: expected an iteration >= 0, got {min(given)}")
    if method.changes == 0:
        return ()
    if len(given) != method.changes:
        phases = "+".join(phase.label for phase in method.phases)
        raise ValueError(f"{name}: expected {method.changes} iterations, one a change of {phases}, got {len(given)}")
    if any(later <= earlier for earlier, later in itertools.pairwise(given)):
        raise ValueError(f"{name}: expected rising iterations, got {' '.join(map(str, given))}")
    return given
