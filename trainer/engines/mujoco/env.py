"""A task in native MuJoCo, as the trainer's environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.env import TaskEnv
from trainer.engines.mujoco.engine import MujocoEngine
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.running import RunningTask


class MujocoEnv(TaskEnv):
    """E environments of one task in native MuJoCo.

    Args:
        task: What is learned, on the CPU.
        num_envs: E.
        seed: Seed of everything random here: noise, commands, pushes, dynamics, terrains.
        num_threads: Simulator threads; None for one a core.
        difficulty: Fixes the terrains' difficulty, in [0, 1], instead of the curriculum, for evaluation; of several the
            first environments have the first, and so on in equal parts.
        auto_reset: Begin a new episode where one ends. Without it every random number is drawn at the same step
            whatever the policy does, so that policies can be compared on the same ones.
    """

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        *,
        seed: int = 0,
        num_threads: int | None = None,
        difficulty: float | Sequence[float] | None = None,
        auto_reset: bool = True,
    ) -> None:
        super().__init__(RunningTask(task, num_envs, seed=seed, difficulty=difficulty), auto_reset=auto_reset)
        self._num_threads = num_threads
        self.engine = self._make_engine()
        self.begin_anew()

    def _make_engine(self) -> MujocoEngine:
        config = self.task.config
        return MujocoEngine(
            config.robot,
            self.running.tiles,
            self.num_envs,
            control_dt=config.control_dt,
            num_threads=self._num_threads,
        )

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""
        running = self.running
        targets = running.act(actions)
        if running.delay is not None:
            targets = running.delay.schedule(self.engine.decimation)
        pushes = running.draw_pushes()
        if pushes is not None:
            self.engine.push(*pushes)
        state, broken = self.engine.step(targets)
        return self._concluded(running.after_physics(state, broken, self.engine.first_warning()))

    def restart(self, *, difficulty: float | None = None, terrain: str | None = None) -> TensorDict:
        """Begins a new episode everywhere, of this difficulty and on this terrain from now on where they are given.

        Raises:
            ValueError: The task has no such terrain, or the difficulty is not in [0, 1].
        """
        config = self.task.config
        if terrain is not None and terrain not in config.terrains:
            known = f"expected one of {', '.join(config.terrains)}" if config.terrains else f"{config.name} has none"
            raise ValueError(f"terrain: {known}, got {terrain!r}")
        if difficulty is not None and difficulty != self.running.difficulty:
            self.running.set_difficulty(difficulty)
            self.engine = self._make_engine()  # its models are of the tiles
        if terrain is not None and self.curriculum is not None:
            self.curriculum.terrain_type[:] = config.terrains.index(terrain)
        self.begin_anew()
        return self.running.observations

    def begin_anew(self) -> None:
        """New episodes everywhere, at the curriculum's levels."""
        self._start(torch.arange(self.num_envs))

    def _start(self, env_ids: Tensor) -> None:
        """New episodes for env_ids [K], and their first observations."""
        start = self.running.draw_start(env_ids)
        self.running.begin(env_ids, self.engine.reset(env_ids, **vars(start)))

    def rest(self, env_ids: Tensor) -> None:
        """Spares itself env_ids [K], whose episodes are over, until they begin anew."""
        self.engine.rest(env_ids)

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues bit for bit."""
        return {"engine": self.engine.state_dict(), **self.running.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of the same task, size and seed."""
        self.running.load_state_dict(state, self.engine.load_state_dict(state["engine"]), self.engine.tile_of)
