"""A task in mjlab, as the trainer's environment."""

from __future__ import annotations

import contextlib
import dataclasses
import io
from typing import Any

import torch
import warp
from mjlab.envs import ManagerBasedRlEnv
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.managed.env import ManagedEnv
from trainer.engines.mjlab.env_cfg import env_cfg
from trainer.engines.mjlab.terms import walk
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.state import RobotState

_PHYSICS = ("qpos", "qvel", "qacc_warmstart", "time")


class MjlabEnv(ManagedEnv):
    """E environments of one task in mjlab, on the task's device.

    Args:
        task: What is learned.
        num_envs: E.
        seed: Seed of everything random here.
        difficulty: Fixes the terrains' difficulty, in [0, 1], instead of the curriculum, for evaluation.
        auto_reset: Begin a new episode where one ends.
    """

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        *,
        seed: int = 0,
        difficulty: float | None = None,
        auto_reset: bool = True,
    ) -> None:
        cfg = env_cfg(task.config, num_envs, seed=seed, difficulty=difficulty)
        if not auto_reset:
            cfg.terminations = {}  # an episode that has ended goes on, as in the native engine
        warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)  # it tells of every kernel
        with contextlib.redirect_stdout(io.StringIO()):  # and mjlab of every term
            self.simulation = ManagerBasedRlEnv(cfg, str(task.device))
        self._walk = walk(self.simulation)
        self._data: Any = self.simulation.sim.data
        super().__init__(self._walk.running, auto_reset=auto_reset)
        self.simulation.reset()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""
        reward = self.simulation.step(actions.detach())[1]
        outcome = self._walk.managed.last_outcome
        assert outcome is not None
        return self.running.observations, reward.clone(), outcome.done, self.running.extras(outcome)

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues: bit for bit on a CPU."""
        engine = {name: getattr(self._data, name)[:].clone() for name in _PHYSICS}
        if self._walk.managed.motors is not None:
            engine["motors"] = self._walk.managed.motors.clone()
        engine |= {"tile_of": self.running.tile_of.clone(), "dynamics": self._walk.managed.dynamics.clone()}
        state = {name: value.clone() for name, value in vars(self.state).items()}
        return {"engine": engine, "state": state, **self.running.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of the same task, size and seed.

        Raises:
            ValueError: It is of another size or of another engine.
        """
        engine, data = state.get("engine", {}), self._data
        if "qpos" not in engine or engine["qpos"].shape != data.qpos.shape:
            raise ValueError(f"environment: expected the state of {self.num_envs} environments of `p3 train` in mjlab")
        if {field.name for field in dataclasses.fields(RobotState)} != set(state["state"]):
            raise ValueError(
                "environment: robots of an earlier version, whose run can be evaluated and played, not continued"
            )
        for name in _PHYSICS:
            getattr(data, name)[:] = engine[name].to(self.device)
        everyone = torch.arange(self.num_envs, device=self.device)
        self._walk.managed.dynamics[:] = engine["dynamics"].to(self.device)
        self._walk.robots.set_dynamics(everyone, self._walk.managed.dynamics)
        if "motors" in engine:
            self._walk.managed.motors = engine["motors"].to(self.device, copy=True)
            self._walk.robots.set_motors(everyone, self._walk.managed.motors)
        robots = RobotState(**{name: value.to(self.device, copy=True) for name, value in state["state"].items()})
        self.running.load_state_dict(state, robots, engine["tile_of"].to(self.device))
        self.simulation.episode_length_buf[:] = self.episode.step

    def close(self) -> None:
        """Releases what the simulation holds."""
        self.simulation.close()
