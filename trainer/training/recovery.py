"""When a training goes back to its last checkpoint, and when there is no point in it any more."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

_MOST_ROLLBACKS = 3
"""Returns to one and the same checkpoint; after that the trouble is not chance."""


class Diverged(RuntimeError):
    """The training breaks again and again, and there is nothing to go back to that helps."""


class NotSaved(OSError):
    """The training is done, but its last checkpoint could not be written."""


class Recovery:
    """Counts iterations in trouble: those with a step left out or with weights that had to be restored.

    Args:
        after: Iterations in trouble, in a row, after which a run goes back.

    Attributes:
        trouble: Iterations in trouble, in a row, up to the last one.
    """

    def __init__(self, after: int) -> None:
        self.trouble = 0
        self._after = after
        self._returns: dict[Path, int] = defaultdict(int)

    def note(self, *, went_wrong: bool) -> None:
        """Counts an iteration."""
        self.trouble = self.trouble + 1 if went_wrong else 0

    @property
    def is_due(self) -> bool:
        """Whether the run should go back now."""
        return self.trouble >= self._after

    def describe(self, iteration: int) -> str:
        """What happened, as messages say it."""
        return f"iteration {iteration}: trouble in {self.trouble} iterations in a row"

    def return_to(self, path: Path, iteration: int) -> None:
        """Counts a return to a checkpoint.

        Raises:
            Diverged: The run has been there too often.
        """
        if self._returns[path] >= _MOST_ROLLBACKS:
            raise Diverged(f"{self.describe(iteration)}, {_MOST_ROLLBACKS} times after going back to {path}")
        self._returns[path] += 1
