"""The engines by name."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from trainer.tasks import LocomotionTask, TaskConfig
from trainer.tasks.actuation import MOTOR_FACTORS, randomizes_motors

if TYPE_CHECKING:
    from trainer.engines.env import TaskEnv

EngineName = Literal["mujoco", "mjlab", "isaaclab", "physx"]


class EnvMaker(Protocol):
    """`make_env`, or what a launcher has in its place."""

    def __call__(
        self, engine: str, task: TaskConfig, num_envs: int, *, seed: int, device: str, num_threads: int | None
    ) -> TaskEnv:
        """E environments of a task in an engine."""


def check_engine(engine: str, device: str, task: TaskConfig | None = None) -> None:
    """Says early what cannot be.

    Raises:
        ValueError: There is no such device, or the engine does not run on it, or not this task.
    """
    if engine in ("mujoco", "physx") and device != "cpu":
        name = "native MuJoCo" if engine == "mujoco" else "standalone PhysX"
        raise ValueError(f"--device: {name} runs on the CPU, got {device!r}; a GPU needs --engine mjlab")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"--device: expected cpu, cuda:0, ..., got {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device: {device}, but torch finds no CUDA device here")
    if engine != "mujoco" and task is not None and task.robot.name != "g1":
        raise ValueError(f"--engine: {engine} runs the G1's tasks, not {task.name}")
    if engine in ("isaaclab", "physx") and task is not None and randomizes_motors(task.dynamics):
        names = ", ".join(f"dynamics.{name}" for name in MOTOR_FACTORS)
        raise ValueError(f"--engine: in {engine} motors are as they are; {names} have to be 1,1")


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
        seed: Of everything random.
        device: Where the simulation of mjlab runs.
        num_threads: Simulator threads of native MuJoCo; None for one a core.
        difficulty: Fixes the terrains' difficulty, in [0, 1], instead of the curriculum, for evaluation.
        auto_reset: Begin a new episode where one ends.

    Raises:
        ValueError: As for `check_engine`, or there is no such engine.
    """
    check_engine(engine, device, task)
    if engine == "isaaclab":
        raise ValueError("--engine: Isaac Sim has to start first: python -m trainer.engines.isaaclab.train")
    if engine == "mujoco":
        from trainer.engines.env import LocomotionEnv  # noqa: PLC0415  an engine is imported when it is asked for

        return LocomotionEnv(
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
