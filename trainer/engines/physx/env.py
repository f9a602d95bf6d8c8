"""A task in Isaac Lab on standalone PhysX, as the trainer's environment."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

from trainer.engines.mjcf.model import robot_spec
from trainer.engines.physx import packages
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.robots import G1

if TYPE_CHECKING:
    import numpy as np

    from trainer.engines.isaaclab.env import IsaacLabEnv
    from trainer.engines.physx.stage import Mesh
    from trainer.engines.physx.view import PhysxView


POSITION_ITERATIONS = 32
"""With the 8 of NVIDIA's asset the solver does not converge: legs that bear the robot give way further than their
motors would let them. With 32, as with steps of a millisecond, the robot stands as it does in MuJoCo."""


def make_physx_env(
    task: LocomotionTask, num_envs: int, *, seed: int = 0, difficulty: float | None = None, auto_reset: bool = True
) -> IsaacLabEnv:
    """E environments of a task in PhysX on this machine's CPU. A process has one: a new one ends the one before.

    Args:
        task: What is learned; the G1's.
        num_envs: E.
        seed: Seed of everything random.
        difficulty: Fixes the terrains' difficulty instead of the curriculum.
        auto_reset: Begin a new episode where one ends.

    Raises:
        ValueError: Something is missing; `packages.check` says what.
    """
    install()
    from trainer.engines.isaaclab.env import IsaacLabEnv  # noqa: PLC0415
    from trainer.engines.isaaclab.env_cfg import env_cfg  # noqa: PLC0415
    from trainer.engines.isaaclab.managed_env import ManagedTaskEnv  # noqa: PLC0415  Isaac Lab is importable from here on

    cfg = env_cfg(task.config, num_envs, seed=seed, difficulty=difficulty, auto_reset=auto_reset)
    cfg.scene.robot.actuators.pop("hands")  # of NVIDIA's asset; the MJCF's G1 has none
    cfg.scene.robot.spawn.articulation_props.solver_position_iteration_count = POSITION_ITERATIONS
    with contextlib.redirect_stdout(io.StringIO()):  # Isaac Lab prints every manager
        return IsaacLabEnv(ManagedTaskEnv(cfg), auto_reset=auto_reset)


@functools.cache
def install() -> None:
    """Makes Isaac Lab's environments of this process run on PhysX; before that, nothing of Isaac Lab is imported.

    Raises:
        ValueError: Something is missing; `packages.check` says what.
    """
    packages.activate()
    import warp  # noqa: PLC0415  as above

    from trainer.engines.physx import scene  # noqa: PLC0415  as above

    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)  # it tells of every kernel
    scene.install(_robots)


def _robots(origins: np.ndarray, mesh: Mesh | None, sim_cfg: Any, robot_cfg: Any) -> PhysxView:
    from trainer.engines.physx.view import PhysxView  # noqa: PLC0415  as above

    return PhysxView(robot_spec(G1).compile(), origins, mesh, sim_cfg, robot_cfg)
