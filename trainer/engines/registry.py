"""The engines by name."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Protocol

from trainer.algorithms.presets import check_engine
from trainer.tasks import LocomotionTask, TaskConfig

if TYPE_CHECKING:
    from trainer.engines.env import TaskEnv


class EnvMaker(Protocol):
    """`make_env`, or what a launcher has in its place."""

    def __call__(
        self, engine: str, task: TaskConfig, num_envs: int, *, seed: int, device: str, num_threads: int | None
    ) -> TaskEnv:
        """E environments of a task in an engine."""


def make_env(
    engine: str,
    task: TaskConfig,
    num_envs: int,
    *,
    seed: int = 0,
    device: str = "cpu",
    num_threads: int | None = None,
    difficulty: float | None = None,
    auto_reset: bool = True,
) -> TaskEnv:
    """E environments of a task in an engine.

    Args:
        engine: mujoco, mjlab or physx.
        task: What is learned.
        num_envs: E.
        seed: Seed of everything random.
        device: Where the simulation of mjlab runs.
        num_threads: Simulator threads of native MuJoCo; None for one a core.
        difficulty: Fixes the terrains' difficulty, in [0, 1], instead of the curriculum, for evaluation.
        auto_reset: Begin a new episode where one ends.

    Raises:
        ValueError: There is no such engine, or `check_engine` refuses it.
    """
    check_engine(engine, device, task)
    if engine == "isaaclab":
        raise ValueError("--engine: Isaac Sim has to start first: python -m trainer.engines.isaaclab.train")
    if engine == "mujoco":
        from trainer.engines.mujoco.env import MujocoEnv  # noqa: PLC0415  an engine is imported when it is asked for

        return MujocoEnv(
            LocomotionTask(task),
            num_envs,
            seed=seed,
            num_threads=num_threads,
            difficulty=difficulty,
            auto_reset=auto_reset,
        )
    if engine == "physx":
        from trainer.engines.physx.env import make_physx_env  # noqa: PLC0415  as above

        return make_physx_env(LocomotionTask(task), num_envs, seed=seed, difficulty=difficulty, auto_reset=auto_reset)
    if engine != "mjlab":
        raise ValueError(f"--engine: expected mujoco, mjlab or physx, got {engine!r}")
    if importlib.util.find_spec("mjlab") is None:
        raise ImportError("--engine mjlab needs mjlab: pip install 'p3kernels[train]'")
    from trainer.engines.mjlab.env import MjlabEnv  # noqa: PLC0415  as above

    return MjlabEnv(LocomotionTask(task, device), num_envs, seed=seed, difficulty=difficulty, auto_reset=auto_reset)
