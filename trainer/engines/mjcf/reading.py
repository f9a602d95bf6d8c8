"""From MuJoCo's positions, velocities and sensors to `RobotState`, for every engine that runs our model of a robot."""

from __future__ import annotations

import mujoco
import numpy as np
import torch
from torch import Tensor

from p3kernels.cpu import native
from trainer.engines.ground import Ground
from trainer.engines.mjcf.model import as_slice, sole_sites
from trainer.tasks.robots import RobotSpec
from trainer.tasks.rotation import yaw_of
from trainer.tasks.state import RobotState


class StateReader:
    """Where in a model's arrays the quantities of a robot are.

    Args:
        model: With the motors and sensors of `robot_spec`, and no joints before the robot's.
        robot: Which robot.
        prefix: Before every name of the robot's in the model.
    """

    def __init__(self, model: mujoco.MjModel, robot: RobotSpec, prefix: str = "") -> None:
        def columns(*names: str) -> slice | np.ndarray:
            found = [model.sensor(prefix + name) for name in names]
            return as_slice([column for s in found for column in range(s.adr[0], s.adr[0] + s.dim[0])])

        self.robot = robot
        joints = [model.joint(prefix + name) for name in robot.joint_names]
        self.joint_qpos = as_slice([joint.qposadr[0] for joint in joints])
        self.joint_qvel = as_slice([joint.dofadr[0] for joint in joints])
        self.control = as_slice([model.actuator(prefix + name).id for name in robot.joint_names])
        feet = {model.body(prefix + name).id for name in robot.feet}
        self.foot_geoms = np.array([g for g in range(model.ngeom) if model.geom_bodyid[g] in feet])
        self.trunk = model.body(prefix + robot.trunk).id
        self.trunk_chain = [self.trunk]
        """The trunk and the bodies above it, whose subtrees' masses change with its own."""
        while model.body_parentid[self.trunk_chain[-1]]:
            self.trunk_chain.append(model.body_parentid[self.trunk_chain[-1]])
        feet_range, trunks = range(len(robot.feet)), range(len(robot.no_contact))
        self.foot_pos = columns(*(f"foot_pos{i}" for i in feet_range))
        self._foot_vel = columns(*(f"foot_vel{i}" for i in feet_range))
        self.sole_points = columns(*(f"pos_{name}" for name in sole_sites(robot)))
        self._foot_force = columns(*(f"foot_force{i}" for i in feet_range))
        self._trunk_touch = columns(*(f"trunk_touch{i}" for i in trunks))
        self._torque = columns(*(f"torque_{name}" for name in robot.joint_names))

    def read(
        self,
        qpos: Tensor,
        qvel: Tensor,
        sensors: Tensor,
        ground: Ground,
        tile: Tensor,
        dynamics: Tensor,
        origin: Tensor | None = None,
    ) -> RobotState:
        """The state of K robots.

        Args:
            qpos: [K, nq].
            qvel: [K, nv].
            sensors: [K, nsensordata].
            ground: Height maps of the tiles.
            tile: [K] int64.
            dynamics: [K, 5].
            origin: [K, 3]: of the tiles, where the world has many; None where the tile's frame is the world's.
        """
        count, feet = qpos.shape[0], len(self.robot.feet)
        if self.robot.planar:
            zero = torch.zeros_like(qpos[:, 0])
            root_pos = torch.stack([qpos[:, 0], zero, qpos[:, 1]], -1)
            half = 0.5 * qpos[:, 2]
            root_quat = torch.stack([half.cos(), zero, half.sin(), zero], -1)
            lin_vel = torch.stack([qvel[:, 0], zero, qvel[:, 1]], -1)
            ang_vel = torch.stack([zero, qvel[:, 2], zero], -1)
        else:
            root_pos, root_quat, lin_vel, ang_vel = qpos[:, :3], qpos[:, 3:7], qvel[:, :3], qvel[:, 3:6]
        foot_pos = sensors[:, self.foot_pos].view(count, feet, 3)
        sole_points = sensors[:, self.sole_points].view(count, feet, -1, 3)
        if origin is not None:
            root_pos, foot_pos = root_pos - origin, foot_pos - origin[:, None]
            sole_points = sole_points - origin[:, None, None]
        foot_vel = sensors[:, self._foot_vel].view(count, feet, 3)
        foot_force = -sensors[:, self._foot_force].view(count, feet, 3)  # MuJoCo's is that of the foot on the terrain
        known = self._turned(root_quat, lin_vel, ground.native)
        if ground.native:
            under = ground.feet(tile, foot_pos, sole_points, foot_vel, foot_force)
            foot_ground, sole_drop = under.ground, under.drop
            known |= {"foot_contact": under.contact, "foot_speed": under.speed, "foot_height": under.height}
            known |= {"ground_below": under.ground_below}
        else:
            foot_ground, sole_drop = ground.below_feet(tile, foot_pos, sole_points)
        state = RobotState(
            root_pos=root_pos,
            root_quat=root_quat,
            root_lin_vel=lin_vel,
            root_ang_vel=ang_vel,
            joint_pos=qpos[:, self.joint_qpos],
            joint_vel=qvel[:, self.joint_qvel],
            joint_torque=sensors[:, self._torque],
            foot_pos=foot_pos,
            foot_vel=foot_vel,
            foot_force=foot_force,
            body_contact=(sensors[:, self._trunk_touch] > 1.0).any(-1),
            scan=ground.scan(tile, root_pos, (known["cos_yaw"], known["sin_yaw"])),
            foot_ground=foot_ground,
            sole_drop=sole_drop,
            dynamics=dynamics,
        )
        state.know(**known)
        return state

    def _turned(self, quat: Tensor, velocity: Tensor, in_one_pass: bool) -> dict[str, Tensor]:
        """What follows from orientation [K, 4] and velocity [K, 3], by names of `RobotState`; all, or the heading."""
        known: dict[str, Tensor] = native.orientation(quat, velocity)._asdict() if in_one_pass else {}
        if self.robot.planar:  # on its back, too, it faces forward
            zero = torch.zeros_like(velocity[:, 0])
            known |= {"yaw": zero, "cos_yaw": zero + 1.0, "sin_yaw": zero, "planar_velocity": velocity[:, :2]}
        elif not in_one_pass:
            yaw = yaw_of(quat)
            known |= {"yaw": yaw, "cos_yaw": yaw.cos(), "sin_yaw": yaw.sin()}
        return known
