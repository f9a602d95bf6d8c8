"""A task in an engine, as an rsl_rl environment.

Beyond what rsl_rl asks for, `extras["final_observations"]` has the observations before any reset, so that a time-out
can be bootstrapped from the state it really ended in, and `extras["episodes"]` tells of the episodes that ended.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from trainer.tasks.curriculum import Curriculum
from trainer.tasks.outcome import Outcome
from trainer.tasks.running import RunningTask
from trainer.tasks.state import Episode, RobotState
from trainer.tasks.symmetry import TaskSymmetry


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: its operations in a step are small, and the cores are the simulator's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class TaskEnv(VecEnv, abc.ABC):
    """E environments of one task; which engine simulates them is a subclass's.

    Args:
        running: The task and its episodes.
        auto_reset: Begin a new episode where one ends.
    """

    def __init__(self, running: RunningTask, *, auto_reset: bool) -> None:
        self.running, self.task, self.num_envs = running, running.task, running.num_envs
        self.num_actions, self.max_episode_length = self.task.num_actions, self.task.max_steps
        self.device = str(self.task.device)
        self.cfg: dict[str, Any] = {"task": self.task.config.name, "num_envs": self.num_envs}
        self._auto_reset = auto_reset

    @property
    def state(self) -> RobotState:
        """The robots after the last control step."""
        return self.running.state

    @state.setter
    def state(self, value: RobotState) -> None:
        self.running.state = value

    @property
    def episode(self) -> Episode:
        """The buffers of the running episodes."""
        return self.running.episode

    @property
    def curriculum(self) -> Curriculum | None:
        """The curriculum of the terrains; None on the plane."""
        return self.running.curriculum

    @property
    def generator(self) -> torch.Generator:
        """Generator of everything random, apart from the terrains."""
        return self.running.generator

    @property
    def episode_length_buf(self) -> Tensor:
        """[E]: steps of the running episodes."""
        return self.episode.step

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.episode.step = value.to(torch.int64)

    @property
    def symmetry(self) -> TaskSymmetry:
        """The task in the mirror, for `P3PPO`'s `mirror_share`.

        Raises:
            ValueError: The task's robot declares no symmetry.
        """
        return TaskSymmetry(self.task)

    def get_observations(self) -> TensorDict:
        """The current observation groups."""
        return self.running.observations

    @abc.abstractmethod
    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""

    def _concluded(self, outcome: Outcome) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """What `step` returns of its outcome; episodes that ended begin anew by `_start` where they shall."""
        extras = self.running.extras(outcome)
        if self._auto_reset and outcome.done.any():
            ended = outcome.done.nonzero().squeeze(-1)
            self.running.update_levels(ended, outcome)
            self._start(ended)
        return self.running.observations, outcome.reward, outcome.done, extras

    def _start(self, env_ids: Tensor) -> None:
        """Begins new episodes for env_ids [K]; of an engine whose `step` ends with `_concluded`."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """New episodes everywhere, at the curriculum's levels; in an engine that cannot, when each running one ends."""

    def rest(self, env_ids: Tensor) -> None:
        """Tells that nobody looks at env_ids [K] until they begin anew: native MuJoCo spares itself their physics."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of the same engine, task, size and seed."""
