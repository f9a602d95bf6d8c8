"""Manager terms. They only hand on what `ManagedTask` says of a step, so that the task is the one of every engine.

The command term keeps the task; the others find it there. Time-out terms leave out robots that fell in the same step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
import tyro
from mjlab.managers.action_manager import ActionTerm, ActionTermCfg
from mjlab.managers.command_manager import CommandTerm, CommandTermCfg
from mjlab.managers.event_manager import requires_model_fields
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.managed import terms
from trainer.engines.managed.task import ManagedTask
from trainer.engines.mjlab.reading import DYNAMICS_FIELDS, MOTOR_FIELDS, RobotBatch
from trainer.engines.mjlab.robot import ENTITY
from trainer.engines.mjlab.terrain import tile_middles, tile_seed
from trainer.tasks.locomotion import LocomotionTask, TaskConfig
from trainer.tasks.outcome import Outcome
from trainer.tasks.running import RunningTask
from trainer.tasks.state import RobotState

if TYPE_CHECKING:
    from mjlab.envs import ManagerBasedRlEnv

COMMAND = "walk"


@dataclass(kw_only=True)
class WalkCommandCfg(CommandTermCfg):
    """The task and its commands."""

    task: tyro.conf.Fixed[TaskConfig]
    """What is learned."""
    difficulty: float | None = None
    """Fixes the terrains' difficulty instead of the curriculum; that of the terrain's own settings."""
    resampling_time_range: tuple[float, float] = (1e9, 1e9)
    """Not used: the task says when a command ends."""

    def build(self, env: ManagerBasedRlEnv) -> WalkCommand:
        """Makes the term of an environment."""
        return WalkCommand(self, env)


class WalkCommand(CommandTerm):
    """Keeps the task for the other terms.

    Attributes:
        managed: The task, its episodes and what became of the last control step.
        robots: The robots in the simulation.
    """

    cfg: WalkCommandCfg

    def __init__(self, cfg: WalkCommandCfg, env: ManagerBasedRlEnv) -> None:
        super().__init__(cfg, env)
        config = cfg.task
        if abs(env.step_dt - config.control_dt) > 1e-9:
            raise ValueError(f"decimation: expected a control step of {config.control_dt} s, got {env.step_dt}")
        ground = env.cfg.scene.terrain
        self.managed = ManagedTask(
            LocomotionTask(config, env.device),
            env.num_envs,
            self._read,
            seed=0 if env.cfg.seed is None else env.cfg.seed,
            difficulty=cfg.difficulty,
            tile_seed=tile_seed(ground),
        )
        middles = tile_middles(ground, self.running.grid, env.device)
        self.robots = RobotBatch(env, config.robot, middles)

    @property
    def running(self) -> RunningTask:
        """The task and its episodes."""
        return self.managed.running

    @property
    def command(self) -> Tensor:
        """[E, 3]."""
        return self.running.episode.command

    def act(self, actions: Tensor) -> None:
        """Before the physics: targets and pushes."""
        targets, pushes = self.managed.act(actions)
        self.robots.set_targets(targets)
        if pushes is not None:
            self.robots.push(*pushes)

    def outcome(self) -> Outcome:
        """After the physics: what the control step led to."""
        outcome = self.managed.outcome(self._env.episode_length_buf)
        self._env.extras["final_observations"] = outcome.observations
        return outcome

    def begin(self, env_ids: Tensor) -> None:
        """Puts the robots env_ids [K] where they begin; `observations` sees them once the kinematics are up to date."""
        self.robots.place(env_ids, self.managed.start(env_ids))

    def observations(self) -> TensorDict:
        """The groups, after everything else of a step."""
        return self.managed.observations() if self.managed.has_begun else self._shaped()

    def _read(self) -> RobotState:
        return self.robots.read(self.managed.ground, self.running.tile_of, self.managed.dynamics)

    def _shaped(self) -> TensorDict:
        """Groups of the right shapes before the first episode, for the managers to learn their sizes."""
        generator = torch.Generator(self.device)
        groups = self.running.task.observe(self._read(), self.running.episode, generator)
        return TensorDict(groups, batch_size=[self.num_envs])

    def _update_metrics(self) -> None: ...

    def _resample_command(self, env_ids: Tensor) -> None: ...

    def _update_command(self, env_ids: Tensor | None) -> None: ...


@dataclass(kw_only=True)
class WalkActionCfg(ActionTermCfg):
    """Joint targets, and the pushes that come before the physics."""

    entity_name: str = ENTITY

    def build(self, env: ManagerBasedRlEnv) -> WalkAction:
        """Makes the term of an environment."""
        return WalkAction(self, env)


class WalkAction(ActionTerm):
    """Hands the actions to the task."""

    @property
    def action_dim(self) -> int:
        """A, the number of actions."""
        return walk(self._env).running.task.num_actions

    @property
    def raw_action(self) -> Tensor:
        """[E, A]: the latest, clipped."""
        return walk(self._env).running.episode.action

    def process_actions(self, actions: Tensor) -> None:
        """Once a control step, before the physics."""
        walk(self._env).act(actions)

    def apply_actions(self) -> None:
        """Before every physics step: the targets that have arrived; without a delay they stay."""
        term = walk(self._env)
        targets = term.managed.next_targets(self._env.cfg.decimation)
        if targets is not None:
            term.robots.set_targets(targets)


def walk(env: ManagerBasedRlEnv) -> WalkCommand:
    """The term that keeps the task."""
    return cast(WalkCommand, env.command_manager.get_term(COMMAND))


def observation(env: ManagerBasedRlEnv, group: str) -> Tensor:
    """[E, O]: an observation group of the task, noise and history included."""
    return walk(env).observations()[group]


def reward_rate(env: ManagerBasedRlEnv, term: str) -> Tensor:
    """[E]: a reward term of the task per second, before its weight."""
    return terms.reward_rate(walk(env).managed, walk(env).outcome(), term)


def fall(env: ManagerBasedRlEnv) -> Tensor:
    """[E]: 1 / dt in the step of a fall, because the reward manager multiplies by dt."""
    return terms.fall(walk(env).outcome(), env.step_dt)


def fell(env: ManagerBasedRlEnv) -> Tensor:
    """[E] bool: fallen, or the simulation diverged."""
    return walk(env).outcome().terminated


def out_of_time(env: ManagerBasedRlEnv) -> Tensor:
    """[E] bool: whether the episode's time is over and the robot stands."""
    return terms.out_of_time(walk(env).outcome())


def traversed(env: ManagerBasedRlEnv) -> Tensor:
    """[E] bool: arrived at the end of the course."""
    return terms.traversed(walk(env).outcome())


def terrain_levels(env: ManagerBasedRlEnv, env_ids: Tensor) -> Tensor | None:
    """Moves the environments whose episode ended along their levels; the mean difficulty, for the log."""
    return terms.update_levels(walk(env).managed, env_ids)


def begin_episodes(env: ManagerBasedRlEnv, env_ids: Tensor) -> None:
    """Puts the robots env_ids [K] where the task begins their next episode."""
    walk(env).begin(env_ids)


@requires_model_fields(*MOTOR_FIELDS)
def randomize_motors(env: ManagerBasedRlEnv, env_ids: Tensor) -> None:
    """Gives env_ids [K] the torque and gains that the task drew for their episodes."""
    motors = walk(env).managed.motors
    if motors is not None:
        walk(env).robots.set_motors(env_ids, motors[env_ids])


@requires_model_fields(*DYNAMICS_FIELDS)
def randomize_dynamics(env: ManagerBasedRlEnv, env_ids: Tensor) -> None:
    """Gives env_ids [K] the friction, mass and centre of mass that the task drew for their episodes."""
    walk(env).robots.set_dynamics(env_ids, walk(env).managed.dynamics[env_ids])
