"""One rollout: the policy acts, the environments step, the algorithm stores. Every training loop goes through here."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import P3PPO
from trainer.engines.env import one_thread

EPISODES = ("reward", "length", "fell", "traversed", "success")
"""What is told of every episode that ends."""


class Steppable(Protocol):
    """What `collect` asks of environments."""

    def get_observations(self) -> TensorDict:
        """The current observation groups [E]."""

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]: observations, rewards [E], dones [E] and extras."""


def collect(algorithm: P3PPO, env: Steppable, on_step: Callable[[dict[str, Any]], None] = lambda _: None) -> float:
    """Fills the algorithm's storage with a rollout and computes its returns: `algorithm.update()` comes next.

    Args:
        algorithm: Its storage says how many steps a rollout has.
        env: The environments, which go on where they are.
        on_step: Called after every step, with its extras.

    Returns:
        The seconds that the environments took.
    """
    simulating = 0.0
    with torch.inference_mode(), one_thread():
        observations = env.get_observations()
        for _ in range(algorithm.storage.num_transitions_per_env):
            action = algorithm.act(observations)
            before = time.perf_counter()
            observations, reward, done, extras = env.step(action)
            simulating += time.perf_counter() - before
            algorithm.process_env_step(observations, reward, done, extras)
            on_step(extras)
        algorithm.compute_returns(observations)
    return simulating


@dataclass
class Happened:
    """What happened in one rank's rollout, beside what the storage has."""

    terms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Means of the reward's terms, and of the curriculum's difficulty."""
    episodes: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in EPISODES})
    """Numbers of the episodes that ended, by name; success by terrain among them, where an episode ended on one."""
    broken: int = 0
    """Environments whose simulation broke."""
    why_broken: str = ""
    """What the simulator said about the last of them."""
    _held: tuple[list[str], Tensor] | None = None
    """Names and, on the device until `read`, sums of the reward's terms, with the number of broken rows at the end."""

    def add(self, extras: dict[str, Any], weight: float) -> None:
        """Adds a step of the environments, as the share `weight` of the rollout."""
        self.why_broken = extras["why_broken"] or self.why_broken
        means, log = extras["reward_terms"], extras["log"]
        names = list(log)[: len(means)]
        counted = torch.cat([weight * means.double(), extras["broken"].sum().double().view(1)])
        self._held = names, counted if self._held is None else self._held[1] + counted
        for name in list(log)[len(means) :]:
            self.terms[name] += weight * log[name]
        for name, values in extras.get("episodes", {}).items():
            self.episodes.setdefault(name, []).extend(values.tolist())

    def read(self) -> Happened:
        """Itself, with everything on the host: one wait for the device."""
        if self._held is not None:
            names, held = self._held
            *sums, broken = held.tolist()
            self.terms = {**dict(zip(names, sums, strict=True)), **self.terms}
            self.broken += round(broken)
            self._held = None
        return self
