"""The robots of a running simulation in mjlab: their `RobotState`, and what is written to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from trainer.engines.ground import Ground
from trainer.engines.mjcf.reading import StateReader
from trainer.engines.mjlab.robot import ENTITY
from trainer.tasks.outcome import Start
from trainer.tasks.robots import RobotSpec
from trainer.tasks.state import RobotState

if TYPE_CHECKING:
    from mjlab.envs import ManagerBasedRlEnv

DYNAMICS_FIELDS = ("geom_friction", "body_mass", "body_inertia", "body_ipos", "body_subtreemass")
"""Fields of the model that `RobotBatch.set_dynamics` writes, for each environment its own."""

MOTOR_FIELDS = ("actuator_gainprm", "actuator_biasprm", "actuator_forcerange")
"""Fields of the model that `RobotBatch.set_motors` writes, for each environment its own."""


class RobotBatch:
    """E robots in a simulation.

    Args:
        env: Whose scene has one robot of `robot_cfg`.
        robot: Which.
        middles: [T, 3]: where in the world the tiles have their middles.
    """

    def __init__(self, env: ManagerBasedRlEnv, robot: RobotSpec, middles: Tensor) -> None:
        self._env, self._middles = env, middles
        # Any: mjlab's bridges to Warp have the fields of mjwarp's Data and Model, which a type checker cannot see.
        self._data: Any = env.sim.data
        self._model: Any = env.sim.model
        self.reader = StateReader(env.sim.mj_model, robot, prefix=f"{ENTITY}/")
        device = env.device
        self._foot_geoms = torch.from_numpy(self.reader.foot_geoms).to(device)
        self._chain = torch.tensor(self.reader.trunk_chain, device=device)
        motors = [env.sim.mj_model.actuator(f"{ENTITY}/{name}").id for name in robot.joint_names]
        self._motors = torch.tensor(motors, device=device)
        entity = env.scene[ENTITY]
        self._entity = entity
        self._joints = torch.tensor(entity.find_joints(robot.joint_names, preserve_order=True)[0], device=device)

    def read(self, ground: Ground, tile: Tensor, dynamics: Tensor) -> RobotState:
        """The robots [E] as the simulation has them, as copies; tile [E], dynamics [E, 5]."""
        data, origin = self._data, self._middles[tile]
        # The simulation writes into its arrays; what was read must stay.
        qpos, qvel, sensors = (array[:].clone() for array in (data.qpos, data.qvel, data.sensordata))
        return self.reader.read(qpos, qvel, sensors, ground, tile, dynamics, origin)

    def set_targets(self, targets: Tensor) -> None:
        """Joint targets [E, J] for the next physics steps."""
        self._entity.set_joint_position_target(targets, joint_ids=self._joints)

    def push(self, env_ids: Tensor, velocity: Tensor) -> None:
        """Adds velocity [K, 2] (world x, y) to the roots of env_ids [K]."""
        qvel = self._data.qvel
        qvel[env_ids, :2] = qvel[env_ids, :2] + velocity

    def place(self, env_ids: Tensor, start: Start) -> None:
        """Puts the robots env_ids [K] at rest where their episodes begin."""
        half = 0.5 * start.yaw
        zero = torch.zeros_like(half)
        turn = torch.stack([half.cos(), zero, zero, half.sin()], -1)
        origin = self._middles[start.tile]
        still = torch.zeros(len(env_ids), 6, device=half.device)
        self._entity.write_root_state_to_sim(torch.cat([start.root_pos + origin, turn, still], -1), env_ids)
        self._entity.write_joint_state_to_sim(
            start.joint_pos, torch.zeros_like(start.joint_pos), joint_ids=self._joints, env_ids=env_ids
        )
        terrain = self._env.scene.terrain
        if terrain is not None and terrain.terrain_origins is not None:
            terrain.env_origins[env_ids] = start.root_pos + origin  # for viewers

    def set_dynamics(self, env_ids: Tensor, dynamics: Tensor) -> None:
        """Friction of the feet, mass and centre of mass of the trunk: dynamics [K, 5] for env_ids [K]."""
        model, trunk = self._model, self.reader.trunk
        base = {name: self._env.sim.get_default_field(name) for name in DYNAMICS_FIELDS}
        friction, mass, offset = dynamics[:, 0], dynamics[:, 1], dynamics[:, 2:]
        model.geom_friction[env_ids[:, None], self._foot_geoms, 0] = friction[:, None].expand(-1, len(self._foot_geoms))
        model.body_mass[env_ids, trunk] = base["body_mass"][trunk] + mass
        scale = 1.0 + mass / base["body_mass"][trunk]
        model.body_inertia[env_ids, trunk] = base["body_inertia"][trunk] * scale[:, None]
        model.body_ipos[env_ids, trunk] = base["body_ipos"][trunk] + offset
        model.body_subtreemass[env_ids[:, None], self._chain] = base["body_subtreemass"][self._chain] + mass[:, None]

    def set_motors(self, env_ids: Tensor, motors: Tensor) -> None:
        """Factors motors [K, 3, J] on torque, stiffness and damping for env_ids [K]."""
        model, rows = self._model, env_ids[:, None]
        gain, bias, limit = (self._env.sim.get_default_field(name) for name in MOTOR_FIELDS)
        strength, stiffness, damping = motors.unbind(1)
        motor = self._motors
        model.actuator_gainprm[rows, motor, 0] = gain[motor, 0] * strength * stiffness
        model.actuator_biasprm[rows, motor, 1] = bias[motor, 1] * strength * stiffness
        model.actuator_biasprm[rows, motor, 2] = bias[motor, 2] * strength * damping
        model.actuator_forcerange[rows, motor] = limit[motor] * strength[..., None]
