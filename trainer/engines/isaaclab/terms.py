"""Manager terms: each hands on what `ManagedTask` says of the step, so that all engines mean the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from isaaclab.managers import ActionTerm, ActionTermCfg, CommandTerm, CommandTermCfg
from isaaclab.utils import configclass
from torch import Tensor

from trainer.engines.isaaclab.reading import rows
from trainer.engines.managed import terms

if TYPE_CHECKING:
    from trainer.engines.isaaclab.managed_env import ManagedTaskEnv


def observation(env: ManagedTaskEnv, group: str) -> Tensor:
    """[E, O]: an observation group of the task, noise included."""
    return env.managed.observations()[group]


def reward_rate(env: ManagedTaskEnv, term: str) -> Tensor:
    """[E]: a reward term of the task per second, before its weight."""
    return terms.reward_rate(env.managed, env.outcome, term)


def fall(env: ManagedTaskEnv) -> Tensor:
    """[E]: 1 / dt in the step of a fall, because the reward manager multiplies by dt."""
    return terms.fall(env.outcome, env.step_dt)


def fell(env: ManagedTaskEnv) -> Tensor:
    """[E] bool: fallen, or the simulation diverged."""
    return env.outcome.terminated


def out_of_time(env: ManagedTaskEnv) -> Tensor:
    """[E] bool: whether the episode's time is over and the robot stands."""
    return terms.out_of_time(env.outcome)


def traversed(env: ManagedTaskEnv) -> Tensor:
    """[E] bool: arrived at the end of the course."""
    return terms.traversed(env.outcome)


def terrain_levels(env: ManagedTaskEnv, env_ids: Tensor) -> float:
    """Moves the environments whose episode ended along their levels; the mean difficulty, for the log."""
    difficulty = terms.update_levels(env.managed, env_ids)
    assert difficulty is not None  # the plane has no such term
    return float(difficulty)


def begin_episodes(env: ManagedTaskEnv, env_ids: Tensor) -> None:
    """Puts the robots env_ids [K] where the task begins their next episode."""
    env.begin(env_ids)


def set_dynamics(env: ManagedTaskEnv, env_ids: Tensor) -> None:
    """Gives the robots env_ids [K] the friction, mass and centre of mass that the task drew for their episodes."""
    env.reader.write_dynamics(env_ids, env.managed.dynamics[env_ids])


def randomize_material(
    env: ManagedTaskEnv,
    env_ids: Tensor | None,
    friction_range: tuple[float, float],
    restitution_range: tuple[float, float],
    num_materials: int,
) -> None:
    """Gives every robot one of `num_materials` random materials, on all its shapes.

    Isaac Lab's own term gives each shape another one: a robot with a slippery and a rough foot, whose friction is not
    one number. PhysX knows 64000 materials at most, hence a table of them; its tensors are on the CPU.
    """
    view = env.reader.robot.root_physx_view
    materials = view.get_material_properties()  # [E, shapes, 3]: static and dynamic friction, restitution
    robots = torch.arange(len(materials)) if env_ids is None else env_ids.cpu()
    friction = torch.empty(num_materials, 1).uniform_(*friction_range).expand(-1, 2)
    restitution = torch.empty(num_materials, 1).uniform_(*restitution_range)
    table = torch.cat([friction, restitution], -1)
    materials[robots] = table[torch.randint(num_materials, (len(robots), 1))]
    view.set_material_properties(materials, robots)


class JointTargets(ActionTerm):
    """Joint position targets of the task's actions, held over a control step, and the pushes that are due before it."""

    cfg: JointTargetsCfg
    _env: ManagedTaskEnv

    def __init__(self, cfg: JointTargetsCfg, env: ManagedTaskEnv) -> None:
        super().__init__(cfg, env)
        self._raw = torch.zeros(self.num_envs, self.action_dim, device=self.device)
        self._targets = torch.zeros_like(self._raw)

    @property
    def action_dim(self) -> int:
        """A, the number of actions."""
        return self._env.managed.task.num_actions

    @property
    def raw_actions(self) -> Tensor:
        """[E, A]: as the policy gave them."""
        return self._raw

    @property
    def processed_actions(self) -> Tensor:
        """[E, J]: joint targets, in our order."""
        return self._targets

    def process_actions(self, actions: Tensor) -> None:
        """Takes the actions of a control step."""
        self._raw = actions
        self._targets, pushes = self._env.managed.act(actions)
        if pushes is not None:
            self._push(*pushes)

    def apply_actions(self) -> None:
        """Gives the motors their targets, once a physics step."""
        reader = self._env.reader
        late = self._env.managed.next_targets(self._env.cfg.decimation)
        reader.robot.set_joint_position_target(self._targets if late is None else late, joint_ids=reader.joints)

    def _push(self, due: Tensor, velocity: Tensor) -> None:
        """Adds velocity [K, 2] to the roots due [K]."""
        robot = self._env.reader.robot
        root_velocity = robot.data.root_com_vel_w[due].clone()
        root_velocity[:, :2] += velocity
        robot.write_root_com_velocity_to_sim(root_velocity, env_ids=rows(due))


@configclass
class JointTargetsCfg(ActionTermCfg):
    """Settings of `JointTargets`: the task has them all."""

    class_type: type[ActionTerm] = JointTargets
    asset_name: str = "robot"


class TaskCommand(CommandTerm):
    """The task's velocity command, for whoever asks Isaac Lab's command manager; the task draws and steers it."""

    cfg: TaskCommandCfg
    _env: ManagedTaskEnv

    @property
    def command(self) -> Tensor:
        """[E, 3]: forward, left (m/s) and yaw rate (rad/s), body frame."""
        return self._env.managed.running.episode.command

    def _update_metrics(self) -> None:
        """None: the reward terms tell how well it is followed."""

    def _resample_command(self, env_ids: Sequence[int]) -> None:
        """The task has its own time for it."""

    def _update_command(self) -> None:
        """The task has its own time for this too."""


@configclass
class TaskCommandCfg(CommandTermCfg):
    """Settings of `TaskCommand`: the task has them all."""

    class_type: type[CommandTerm] = TaskCommand
    resampling_time_range: tuple[float, float] = (1e9, 1e9)
