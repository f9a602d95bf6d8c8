"""What passes between a running task and an engine: where episodes begin, and what a control step led to."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True)
class Start:
    """Where and how K new episodes begin, with everything at rest."""

    tile: Tensor
    """[K] int64, into the tiles; 0 on the plane."""
    root_pos: Tensor
    """[K, 3], in the tile's frame."""
    yaw: Tensor
    """[K]."""
    joint_pos: Tensor
    """[K, J]."""
    dynamics: Tensor
    """[K, 5], as `RobotState.dynamics`."""
    motors: Tensor | None = None
    """[K, 3, J]: factors on torque, stiffness and damping of the motors; None where they are as they are."""


@dataclass(frozen=True)
class Outcome:
    """What a control step led to, before any new episode begins."""

    observations: TensorDict
    """The observation groups; every number is finite."""
    rates: Tensor
    """[R, E]: the reward terms before their weights, in the order of `TaskConfig.rewards`; 0 where broken."""
    terms: Tensor
    """[R, E]: with their weights."""
    reward: Tensor
    """[E]: of this step, the penalty for a fall included."""
    terminated: Tensor
    """[E] bool: fallen, off the course's side or broken."""
    broken: Tensor
    """[E] bool: the simulation diverged."""
    why_broken: str
    """What the simulator said about the first broken one."""
    out_of_time: Tensor
    """[E] bool."""
    traversed: Tensor
    """[E] bool: arrived at the end of the course."""
    success: Tensor
    """[E] bool, where the episode ended: traversed without a fall; on the plane, lasted the time and followed its
    commands for at least half of what they asked for."""
    episode_return: Tensor
    """[E]: the sum of the episode's rewards so far."""
    episode_length: Tensor
    """[E] int64: its control steps so far."""

    @functools.cached_property
    def timed_out(self) -> Tensor:
        """[E] bool: ended for a reason that says nothing against the policy."""
        return (self.out_of_time | self.traversed) & ~self.terminated

    @functools.cached_property
    def done(self) -> Tensor:
        """[E] bool."""
        return self.terminated | self.timed_out
