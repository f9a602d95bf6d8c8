"""A task inside a manager-based environment (mjlab's, Isaac Lab's): what its manager terms ask for.

The managers run in one order in both: actions before the physics; terminations and rewards after it; then curriculum
and reset events of environments that ended; observations last. Terms only pass on what is worked out here, so that a
task means the same in every engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.ground import Ground
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.outcome import Outcome, Start
from trainer.tasks.running import RunningTask
from trainer.tasks.state import RobotState

_ABSURD = 1e6
"""Finite values beyond this are a diverged simulation too: float32 observations would overflow next."""


class ManagedTask:
    """A task, its E episodes and what became of the last control step.

    Args:
        task: On the simulation's device.
        num_envs: E.
        read: Gives the `RobotState` of all robots, positions in their tiles' frames (`running.tile_of`). Asked once
            after every control step's physics, and again when new episodes have begun and kinematics are up to date.
        seed: Seed of everything random in the task.
        difficulty: Fixes the terrains' difficulty instead of the curriculum.
        tile_seed: Seed of the terrains alone, where it is another one.

    Attributes:
        running: The task and its episodes.
        ground: Height maps of its tiles, for the scan and the ground below the feet.
        dynamics: [E, 5]: what was drawn for the episodes, for `RobotState.dynamics` where the engine randomises each.
        motors: [E, 3, J]: likewise, factors on torque, stiffness and damping; None where motors are as they are.
        reward_rows: Row of each reward term in `Outcome.rates`.
    """

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        read: Callable[[], RobotState],
        *,
        seed: int,
        difficulty: float | None = None,
        tile_seed: int | None = None,
    ) -> None:
        self.running = RunningTask(task, num_envs, seed=seed, difficulty=difficulty, tile_seed=tile_seed)
        self.ground = Ground(self.running.tiles, task.device)
        self.dynamics = torch.zeros(num_envs, 5, device=task.device)
        self._read = read
        self._outcome: Outcome | None = None
        self._judged = False
        self._physics_step = 0
        self.motors: Tensor | None = None
        self.reward_rows = {name: row for row, name in enumerate(task.config.rewards)}
        self._begun = torch.zeros(num_envs, dtype=torch.bool, device=task.device)
        self._any_begun = False

    @property
    def task(self) -> LocomotionTask:
        """What is learned."""
        return self.running.task

    def act(self, actions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Before the physics: joint targets [E, J] of actions [E, A], and pushes as of `RunningTask.draw_pushes`."""
        self._judged, self._physics_step = False, 0
        return self.running.act(actions), self.running.draw_pushes()

    def next_targets(self, decimation: int) -> Tensor | None:
        """Before every physics step, of `decimation` in a control step: targets [E, J]; None where they stay."""
        if self.running.delay is None:
            return None
        targets = self.running.delay.at(self._physics_step, decimation)
        self._physics_step += 1
        return targets

    def outcome(self, episode_length: Tensor) -> Outcome:
        """After the physics: what the control step led to; worked out when it is first asked for.

        Args:
            episode_length: [E]: steps of the episodes as the environment counts them, this one included. rsl_rl may
                have set its count to anything, and the task follows.
        """
        if not self._judged or self._outcome is None:
            self.running.episode.step = episode_length - 1
            state, broken = sound(self._read(), self.running.state)
            self._outcome, self._judged = self.running.after_physics(state, broken), True
        return self._outcome

    @property
    def last_outcome(self) -> Outcome | None:
        """What the last control step led to; None before the first."""
        return self._outcome

    def update_levels(self, env_ids: Tensor) -> None:
        """Before new episodes begin: moves those of env_ids [K] whose episode ended along the terrain's levels."""
        if self._outcome is None:
            return
        ended = env_ids[self._outcome.done[env_ids]]
        if len(ended):
            self.running.update_levels(ended, self._outcome)

    def start(self, env_ids: Tensor) -> Start:
        """Where env_ids [K] begin anew; the engine puts them there, and `observations` then sees them there."""
        start = self.running.draw_start(env_ids)
        self.dynamics[env_ids] = start.dynamics
        if start.motors is not None:
            if self.motors is None:
                self.motors = torch.ones(self.running.num_envs, *start.motors.shape[1:], device=self.task.device)
            self.motors[env_ids] = start.motors
        self._begun[env_ids], self._any_begun = True, True
        return start

    @property
    def has_begun(self) -> bool:
        """Whether there have been episodes, so that there are observations."""
        return self._any_begun or hasattr(self.running, "state")

    def observations(self) -> TensorDict:
        """The groups after everything else of a step is done, kinematics of new episodes included."""
        if self._any_begun:
            begun = self._begun.nonzero().squeeze(-1)
            self._begun[:], self._any_begun = False, False
            self.running.begin(begun, at_rest(self._read().select(begun)))
        return self.running.observations


def sound(state: RobotState, before: RobotState) -> tuple[RobotState, Tensor]:
    """The state with that of the step before where it is not finite or absurd, and where that is, [E] bool."""
    columns = [getattr(state, field.name).flatten(1) for field in fields(state) if field.name != "body_contact"]
    fine = (torch.cat(columns, 1).abs() < _ABSURD).all(1)  # false for what is not a number

    def mended(name: str) -> Tensor:
        value = getattr(state, name)
        return torch.where(fine.view(-1, *[1] * (value.ndim - 1)), value, getattr(before, name))

    return RobotState(**{field.name: mended(field.name) for field in fields(state)}), ~fine


def at_rest(state: RobotState) -> RobotState:
    """The robots as they begin: in the air, without motion and torque, whatever sensors say before the first step."""
    still = ("root_lin_vel", "root_ang_vel", "joint_vel", "joint_torque", "foot_vel", "foot_force", "body_contact")
    return replace(state, **{name: torch.zeros_like(getattr(state, name)) for name in still})
