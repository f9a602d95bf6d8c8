"""What a run has done so far, and the scalars that an iteration is logged as."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.training.diagnostics import resident_mib
from trainer.training.rollout import EPISODES, Happened

_WINDOW = 200
"""Finished episodes that the reported means are over."""


@dataclass(frozen=True)
class Timing:
    """Seconds of one iteration."""

    simulation: float
    """Time in the environments' steps."""
    policy: float
    """Time of the rest of the rollout."""
    update: float
    """Time of the update."""

    @property
    def total(self) -> float:
        """Seconds of the whole iteration."""
        return self.simulation + self.policy + self.update


class Monitor:
    """The totals of a run and its last episodes.

    Attributes:
        steps: Environment steps of all ranks.
        seconds: Time that the iterations took.
        broken: Environments whose simulation broke and began anew.
        rollbacks: How often the run went back to a checkpoint.
    """

    def __init__(self) -> None:
        self.steps, self.seconds, self.broken, self.rollbacks = 0, 0.0, 0, 0
        self._finished = {name: deque[float](maxlen=_WINDOW) for name in EPISODES}

    def add(self, everyone: Sequence[Happened]) -> dict[str, float]:
        """Adds what happened on the ranks; returns the means of the reward's terms over them."""
        self.broken += sum(happened.broken for happened in everyone)
        for happened in everyone:
            for name, values in happened.episodes.items():
                self._finished.setdefault(name, deque(maxlen=_WINDOW)).extend(values)
        means = {}
        for name in dict.fromkeys(name for each in everyone for name in each.terms):
            values = [each.terms[name] for each in everyone if name in each.terms]  # a rank may lack a terrain
            means[name] = sum(values) / len(values)
        return means

    def episodes(self) -> dict[str, float]:
        """Means over the last finished episodes."""
        return {f"episode/{name}": sum(v) / len(v) for name, v in self._finished.items() if v}

    def totals(self, steps: int, timing: Timing) -> dict[str, float]:
        """Adds an iteration of `steps` environment steps; returns counters, rates and memory."""
        self.steps += steps
        self.seconds += timing.total
        return {
            "steps/total": float(self.steps),
            "steps/broken": float(self.broken),
            "steps/rollbacks": float(self.rollbacks),
            "time/total_seconds": self.seconds,
            "speed/steps_per_second": steps / timing.total,
            "speed/simulation_steps_per_second": steps / timing.simulation,
            "speed/policy_steps_per_second": steps / timing.policy,
            "speed/update_steps_per_second": steps / timing.update,
            "memory/resident_mib": resident_mib(),
        }

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        totals = {"steps": self.steps, "seconds": self.seconds, "broken": self.broken, "rollbacks": self.rollbacks}
        return {"totals": totals, "finished": {name: list(values) for name, values in self._finished.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a checkpoint that has what `state_dict` gave."""
        totals = state["totals"]
        self.steps, self.seconds = totals["steps"], totals["seconds"]
        self.broken, self.rollbacks = totals["broken"], totals["rollbacks"]
        self._finished = {name: deque(values, maxlen=_WINDOW) for name, values in state["finished"].items()}
