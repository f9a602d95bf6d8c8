"""A task as a manager-based environment: Isaac Lab's managers ask, `ManagedTask` answers (`terms.py` has the terms)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from isaaclab.envs import ManagerBasedRLEnv
from torch import Tensor

from trainer.engines.isaaclab.reading import StateReader, rows
from trainer.engines.isaaclab.terrain import generator_cfg
from trainer.engines.managed.task import ManagedTask
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.outcome import Outcome
from trainer.tasks.registry import TASKS
from trainer.tasks.settings import restored
from trainer.tasks.state import RobotState
from trainer.tasks.symmetry import TaskSymmetry

if TYPE_CHECKING:
    from trainer.engines.isaaclab.env_cfg import TaskEnvCfg


def _fixed(cfg: TaskEnvCfg) -> float | None:
    return None if cfg.difficulty < 0 else cfg.difficulty


class ManagedTaskEnv(ManagerBasedRLEnv):
    """E environments of one task in PhysX.

    `extras` of a step are those of the native environment (`trainer/engines/env.py`), the observations before any reset
    among them, with Isaac Lab's log added to ours.

    Args:
        cfg: Its settings; without a seed it is 0, with -1 a random one.
        render_mode: Argument of `ManagerBasedRLEnv`.
        **kwargs: Other arguments of `ManagerBasedRLEnv`.

    Attributes:
        managed: The task and its episodes.
        reader: The robots.
        task_extras: Those of the last step, without Isaac Lab's log.
        beginning: State of the task's generator before any episode: where the native engine begins to draw.
    """

    cfg: TaskEnvCfg

    def __init__(self, cfg: TaskEnvCfg, render_mode: str | None = None, **kwargs: Any) -> None:
        cfg.seed = self.seed(0 if cfg.seed is None else cfg.seed)
        if cfg.scene.terrain.terrain_generator is not None:  # the tiles are those of the task
            config = restored(TASKS[cfg.task], cfg.task_settings)
            cfg.scene.terrain.terrain_generator = generator_cfg(config, _fixed(cfg))
            cfg.scene.terrain.terrain_generator.seed = cfg.seed
        self.task_extras: dict[str, Any] = {}
        super().__init__(cfg, render_mode, **kwargs)

    def load_managers(self) -> None:
        """Begins with the task: the managers find their sizes by asking it."""
        cfg = self.cfg
        assert cfg.seed is not None
        config = dataclasses.replace(
            restored(TASKS[cfg.task], cfg.task_settings),
            control_dt=cfg.decimation * cfg.sim.dt,
            episode_seconds=cfg.episode_length_s,
        )
        task = LocomotionTask(config, self.device)
        self.managed = ManagedTask(task, self.num_envs, self.read, seed=cfg.seed, difficulty=_fixed(cfg))
        self.beginning = self.managed.running.generator.get_state()
        soft = self.managed.running.grid.soft
        self.reader = StateReader(self.scene, config.robot, self.managed.ground, scan_from_maps=soft)
        self._spawns = torch.tensor([tile.spawn for tile in self.managed.running.tiles], device=self.device)
        self.managed.start(torch.arange(self.num_envs, device=self.device))
        super().load_managers()  # ends with the randomisation
        self.reader.read_dynamics()

    @property
    def symmetry(self) -> TaskSymmetry:
        """The task in the mirror, for `P3PPO`'s `mirror_share`."""
        return TaskSymmetry(self.managed.task)

    def read(self) -> RobotState:
        """The robots as the task sees them."""
        return self.reader.read(self.managed.running.tile_of, self.tile_origin())

    def tile_origin(self) -> Tensor:
        """[E, 3]: in the world, the middle of each environment's tile; on the plane, where the environment is."""
        tile, terrain = self.managed.running.tile_of, self.scene.terrain
        assert terrain is not None
        if not self.managed.running.tiles:
            return terrain.env_origins
        return self._spawn_origin(tile) - self._spawns[tile]

    def _spawn_origin(self, tile: Tensor) -> Tensor:
        """[K, 3]: in the world, where robots start on the tiles [K]."""
        rows, terrain = self.managed.running.grid.num_rows, self.scene.terrain
        assert terrain is not None
        assert terrain.terrain_origins is not None
        return terrain.terrain_origins[tile % rows, tile // rows]

    @property
    def outcome(self) -> Outcome:
        """What the last control step led to."""
        before = self.managed.last_outcome
        outcome = self.managed.outcome(self.episode_length_buf)
        if outcome is not before:
            self.task_extras = self.managed.running.extras(outcome)  # before new episodes begin
        return outcome

    def step(self, action: Tensor) -> tuple[dict[str, Any], Tensor, Tensor, Tensor, dict[str, Any]]:
        """One control step of action [E, A]."""
        observations, reward, terminated, timed_out, extras = super().step(action)
        log = {**self.task_extras["log"], **extras.pop("log", {})}  # popped: it would be told again at every step
        return observations, reward, terminated, timed_out, {**self.task_extras, "log": log}

    def begin(self, env_ids: Tensor) -> None:
        """New episodes for env_ids [K]: puts their robots where the task says."""
        robot, start = self.reader.robot, self.managed.start(env_ids)
        half = 0.5 * start.yaw
        zero = torch.zeros_like(half)
        pose = torch.cat([start.root_pos + self.tile_origin()[env_ids], half.cos()[:, None]], -1)
        pose = torch.cat([pose, torch.stack([zero, zero, half.sin()], -1)], -1)
        # Of the link: the writers for the centre of mass leave Isaac Lab's buffers of the link's velocity as they were.
        robot.write_root_link_pose_to_sim(pose, env_ids=rows(env_ids))
        robot.write_root_link_velocity_to_sim(torch.zeros(len(env_ids), 6, device=self.device), env_ids=rows(env_ids))
        joint_pos = robot.data.default_joint_pos[env_ids].clone()  # of the hands, which the task does not know
        joint_pos[:, self.reader.joints] = start.joint_pos
        robot.write_joint_state_to_sim(joint_pos, torch.zeros_like(joint_pos), env_ids=rows(env_ids))
        if self.managed.running.tiles:
            self.scene.env_origins[env_ids] = self._spawn_origin(start.tile)
