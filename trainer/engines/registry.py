"""The engines by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from trainer.tasks import LocomotionTask, TaskConfig

if TYPE_CHECKING:
    from trainer.env import TaskEnv

EngineName = Literal["mujoco"]


def check_engine(engine: str, device: str) -> None:
    """Says early what cannot be.

    Raises:
        ValueError: The engine does not run on the device.
    """
    if engine == "mujoco" and device != "cpu":
        raise ValueError(f"--device: native MuJoCo runs on the CPU, got {device!r}")


def make_env(
    engine: str,
    task: TaskConfig,
    num_envs: int,
    *,
    seed: int = 0,
    device: str = "cpu",
    num_threads: int | None = None,
    level: int | None = None,
    auto_reset: bool = True,
) -> TaskEnv:
    """E environments of a task in an engine.

    Args:
        engine: mujoco.
        task: What is learned.
        num_envs: E.
        seed: Of everything random.
        device: Where it is simulated: the CPU.
        num_threads: Simulator threads of native MuJoCo; None for one a core.
        level: Fixes the terrain level instead of the curriculum, for evaluation.
        auto_reset: Begin a new episode where one ends.

    Raises:
        ValueError: As for `check_engine`, or there is no such engine.
    """
    check_engine(engine, device)
    if engine != "mujoco":
        raise ValueError(f"--engine: expected mujoco, got {engine!r}")
    from trainer.env import LocomotionEnv  # noqa: PLC0415  an engine is imported when it is asked for

    return LocomotionEnv(
        LocomotionTask(task), num_envs, seed=seed, num_threads=num_threads, level=level, auto_reset=auto_reset
    )
