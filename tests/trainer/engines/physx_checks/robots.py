"""What the checks share: environments without randomisation, and a robot's twin in native MuJoCo."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from trainer.engines.mjcf.model import robot_spec
from trainer.engines.registry import make_env
from trainer.evaluation.episodes import PLANE, trial_task
from trainer.tasks import make_task
from trainer.tasks.robots import G1

PHYSICS_DT = 0.005
GRAVITY = 9.81


def plain_env(
    num_envs: int, terrain: str = PLANE, difficulty: float | None = None, *, seed: int = 3, **others: Any
) -> Any:
    """An environment of `g1-flat` or `g1-parkour` without randomisation, noise and pushes; nothing begins anew."""
    config = make_task("g1-flat" if terrain == PLANE else "g1-parkour").config
    task = trial_task(config, terrain, 0.0, 20.0, pushes=False)
    return make_env("physx", task.config, num_envs, seed=seed, difficulty=difficulty, auto_reset=False, **others)


def physics_step(env: Any, targets: Tensor | None = None) -> None:
    """One physics step as Isaac Lab makes it, with targets [E, J] in PhysX's order."""
    scene = env.simulation.scene
    if targets is not None:
        scene["robot"].set_joint_position_target(targets)
    scene.write_data_to_sim()
    env.simulation.sim.step(render=False)
    scene.update(PHYSICS_DT)


def lift(env: Any, height: float) -> None:
    """Puts all robots `height` m higher."""
    robot = env.simulation.reader.robot
    pose = robot.data.root_link_pose_w.clone()
    pose[:, 2] += height
    robot.write_root_link_pose_to_sim(pose)
    env.simulation.scene.update(0.0)


class Twin:
    """The G1 in native MuJoCo, at the pose that PhysX has."""

    def __init__(self, view: Any) -> None:
        self.view, self.model = view, robot_spec(G1).compile()
        self.data = mujoco.MjData(self.model)
        names = view.shared_metatype.dof_names
        self.dofs = [int(self.model.joint(name).dofadr[0]) for name in names]
        self.qpos = [int(self.model.joint(name).qposadr[0]) for name in names]
        self.bodies = [self.model.body(name).id for name in view.shared_metatype.link_names]

    def pose(self, robot: int = 0) -> None:
        """Takes over root and joints of a robot, at rest."""
        root = self.view.get_root_transforms()[robot].double().numpy()
        self.data.qpos[:3], self.data.qpos[3:7] = root[:3], root[[6, 3, 4, 5]]
        self.data.qpos[self.qpos] = self.view.get_dof_positions()[robot].double().numpy()
        self.data.qvel[:] = 0.0
        mujoco.mj_forward(self.model, self.data)

    def mass_matrix(self) -> np.ndarray:
        """[J, J] of the joints, in PhysX's order, without the rotors' inertia."""
        columns = []
        for dof in self.dofs:
            unit, column = np.zeros(self.model.nv), np.zeros(self.model.nv)
            unit[dof] = 1.0
            mujoco.mj_mulM(self.model, self.data, column, unit)
            columns.append(column[self.dofs])
        return np.stack(columns, 1) - np.diag(self.model.dof_armature[self.dofs])


def total_force(env: Any) -> Tensor:
    """[E, 3]: of all contacts of each robot."""
    return env.simulation.scene["contact_forces"].data.net_forces_w.sum(1)


def momentum(view: Any) -> Tensor:
    """[E, 3]: linear momentum of each robot, kg m/s; PhysX's velocities are those of the centres of mass."""
    return (view.get_masses()[..., None] * view.get_link_velocities()[..., :3]).sum(1)


def settle(env: Any, control_steps: int) -> None:
    """Steps with action 0."""
    with torch.no_grad():
        for _ in range(control_steps):
            env.step(torch.zeros(env.num_envs, env.num_actions))
