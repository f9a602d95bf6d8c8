"""What manager terms tell of a control step. mjlab's and Isaac Lab's terms only find the task and ask here."""

from __future__ import annotations

from torch import Tensor

from trainer.engines.managed.task import ManagedTask
from trainer.tasks.outcome import Outcome


def reward_rate(managed: ManagedTask, outcome: Outcome, term: str) -> Tensor:
    """[E]: a reward term of the task per second, before its weight."""
    return outcome.rates[managed.reward_rows[term]]


def fall(outcome: Outcome, step_dt: float) -> Tensor:
    """[E]: 1 / dt in the step of a fall, because the reward manager multiplies by dt."""
    return (outcome.terminated & ~outcome.broken).float() / step_dt


def out_of_time(outcome: Outcome) -> Tensor:
    """[E] bool: whether the episode's time is over and the robot stands."""
    return outcome.out_of_time & ~outcome.terminated


def traversed(outcome: Outcome) -> Tensor:
    """[E] bool: whether the robot arrived at the end of its course."""
    return outcome.traversed & ~outcome.terminated


def update_levels(managed: ManagedTask, env_ids: Tensor) -> Tensor | None:
    """Moves those of env_ids [K] whose episode ended along their levels; the mean difficulty, None on the plane."""
    managed.update_levels(env_ids)
    curriculum = managed.running.curriculum
    return None if curriculum is None else curriculum.difficulty().mean()
