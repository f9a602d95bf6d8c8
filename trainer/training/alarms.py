"""What a training should not do quietly: one line each, when it begins."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

CLIPPED, CLIPPED_ITERATIONS = 0.5, 10
"""Share of ratios outside the clip range that is too much, and for how many iterations in a row."""
EFFICIENT = 0.5
"""D_eff below which most of an update's rows are clipped by the estimator's noise alone."""
GROWN, RISING_ITERATIONS = 2.0, 20
"""Exploration std against that of the beginning that is too much, and the window over which it still rises."""


class Alarms:
    """Looks at the scalars of each iteration; each alarm is told once, and again after it had gone.

    Args:
        learning_rates: The bounds of the adaptive learning rate.
    """

    def __init__(self, learning_rates: tuple[float, float]) -> None:
        self.learning_rates = learning_rates
        self._clipped = 0
        self._first_std: float | None = None
        self._stds: deque[float] = deque(maxlen=RISING_ITERATIONS)
        self._ringing: set[str] = set()

    def messages(self, scalars: Mapping[str, float], estimator: str, *, switched: bool) -> list[str]:
        """The alarms that begin with this iteration.

        Args:
            scalars: The scalars as they are logged; one that is missing is not looked at.
            estimator: Label of the one that trained.
            switched: Whether it is one that the method changed to.
        """
        clipped = scalars.get("loss/clip_fraction", 0.0)
        self._clipped = self._clipped + 1 if clipped > CLIPPED else 0
        efficiency, rate = scalars.get("d_eff/trained"), scalars.get("loss/learning_rate")
        active = scalars.get("policy/active_latents")
        found: dict[str, tuple[bool | None, str]] = {
            "d_eff": (
                None if efficiency is None else switched and efficiency < EFFICIENT,
                f"D_eff is {100 * (efficiency or 0.0):.0f} % with {estimator}: its own noise clips most rows",
            ),
            "clip": (
                self._clipped >= CLIPPED_ITERATIONS,
                f"{100 * clipped:.0f} % of the ratios are clipped, more than half for {self._clipped} iterations",
            ),
            "rate": (
                None if rate is None else any(abs(rate - bound) <= 1e-3 * bound for bound in self.learning_rates),
                f"the learning rate is at its bound of {rate or 0.0:.0e}",
            ),
            "latents": (
                None if active is None else active == 0,
                "no latent is active: the encoder tells the policy nothing",
            ),
            "std": self._growing_std(scalars.get("policy/action_std")),
        }
        begun = [text for name, (rings, text) in found.items() if rings and name not in self._ringing]
        for name, (rings, _) in found.items():
            if rings is not None:  # measured
                (self._ringing.add if rings else self._ringing.discard)(name)
        return [f"alarm: {text}" for text in begun]

    def _growing_std(self, std: float | None) -> tuple[bool | None, str]:
        """Whether the exploration grows without an end. The beginning is this process's first iteration."""
        if std is None:
            return None, ""
        if self._first_std is None:
            self._first_std = std
        self._stds.append(std)
        earlier, later = list(self._stds)[: RISING_ITERATIONS // 2], list(self._stds)[RISING_ITERATIONS // 2 :]
        rises = len(self._stds) == RISING_ITERATIONS and min(later) > max(earlier)
        return rises and std > GROWN * self._first_std, (
            f"the exploration std is {std:.2f}, at the beginning it was {self._first_std:.2f}, "
            f"and it rose over the last {RISING_ITERATIONS} iterations"
        )
