"""The simulated G1: motors with their own PD, an IMU, encoders, and a gantry that holds it until the policy runs."""

from __future__ import annotations

import mujoco
import numpy as np

from trainer.deploy.g1 import MOTORS
from trainer.deploy.unitree import ENABLED, Remote, new_state, remote_bytes, sealed
from trainer.engines.mjcf.model import build_model
from trainer.robot_sim.gantry import Gantry
from trainer.tasks.robots import G1
from trainer.tasks.terrains import HALF_EXTENT, PIT_FLOOR, Terrain, height_map

TICK_MS = 2
"""States come every two milliseconds, 500 a second."""
_COUNT = len(MOTORS)
_FRICTION = 0.65
_MAX_TILT, _MIN_HEIGHT = 0.6, 0.7
_POSITION_NOISE, _VELOCITY_NOISE, _GYROSCOPE_NOISE, _ORIENTATION_NOISE = 0.002, 0.1, 0.02, 0.003
"""Standard deviations of the sensors' usual white noise: rad, rad/s, rad/s, and rad about each axis."""


class SimulatedRobot:
    """One G1.

    Args:
        terrain: The tile; None for an endless plane.
        seed: Seed of the sensors' noise.
        noise: Noise of the sensors, as a multiple of the usual.
        motor_hz: Rate of the motors' own PD, and of the physics.
        gantry: Hang it on a gantry first; otherwise it stands in its stance and nothing holds it.
        mode_machine: What it says that it is.
    """

    def __init__(
        self,
        terrain: Terrain | None,
        seed: int = 0,
        noise: float = 0.0,
        motor_hz: int = 1000,
        gantry: bool = True,
        mode_machine: int = 5,
    ) -> None:
        if motor_hz % 500:
            raise ValueError(f"motor_hz: expected a multiple of 500, got {motor_hz}")
        self.terrain, self.noise, self._rng = terrain, noise, np.random.default_rng(seed)
        self.model = build_model(G1, terrain)
        self.model.opt.timestep = 1.0 / motor_hz
        self._substeps = motor_hz // 500
        self.data = mujoco.MjData(self.model)
        joints = [self.model.joint(name) for name in MOTORS]
        self._qpos = np.array([joint.qposadr[0] for joint in joints])
        self._qvel = np.array([joint.dofadr[0] for joint in joints])
        self._motor = np.array([self.model.actuator(name).id for name in MOTORS])
        self._pelvis = self.model.body("pelvis").id
        feet = [self.model.body(name).id for name in G1.feet]
        self.model.geom_friction[np.isin(self.model.geom_bodyid, feet), 0] = _FRICTION
        self.model.actuator_gainprm[self._motor, 0] = 0.0
        self.mode_machine, self.tick = mode_machine, 0
        self.remote = Remote(frozenset())
        self._map = None
        if terrain is not None:
            self._map = np.pad(height_map(terrain, HALF_EXTENT, 0.05), 1, constant_values=PIT_FLOOR)
        x, y, z = (0.0, 0.0, 0.0) if terrain is None else terrain.spawn
        default = dict(zip(G1.joint_names, G1.default_pos, strict=True))
        self.data.qpos[:7] = x, y, z + G1.standing_height, 1.0, 0.0, 0.0, 0.0
        self.data.qpos[self._qpos] = [default[name] for name in MOTORS]
        mujoco.mj_forward(self.model, self.data)
        self.gantry: Gantry | None = None
        if gantry:
            self.gantry = Gantry(self.model, self.data.xipos[self.model.body("torso_link").id].copy())
            self.data.qpos[2] += 0.1
            self.data.qpos[self._qpos] = 0.0
        self._brake()
        mujoco.mj_forward(self.model, self.data)

    def _brake(self) -> None:
        """Before the first command: what the robot does when it is switched on."""
        self.model.actuator_biasprm[self._motor, :3] = 0.0, 0.0, -3.0

    def apply(self, command: np.ndarray) -> None:
        """The motors follow a LOW_COMMAND from now on: torque = tau + kp (q - position) + kd (dq - velocity)."""
        motors = command["motor_cmd"][:_COUNT]
        on = (motors["mode"] == ENABLED).astype(np.float64)
        kp, kd = on * motors["kp"], on * motors["kd"]
        bias = self.model.actuator_biasprm
        bias[self._motor, 0] = on * motors["tau"] + kp * motors["q"] + kd * motors["dq"]
        bias[self._motor, 1], bias[self._motor, 2] = -kp, -kd
        if self.gantry is not None:
            self.gantry.see(self.tick, kp, motors["q"].astype(np.float64))

    def advance(self) -> None:
        """Simulates one tick."""
        for _ in range(self._substeps):
            if self.gantry is not None:
                self.gantry.pull(self.data, self.tick)
            mujoco.mj_step(self.model, self.data)
        self.tick += TICK_MS

    @property
    def position(self) -> np.ndarray:
        """[3] of the pelvis."""
        return self.data.qpos[:3].copy()

    @property
    def quat(self) -> np.ndarray:
        """[4] (w, x, y, z) of the pelvis."""
        return self.data.qpos[3:7].copy()

    def ground_height(self, x: float, y: float) -> float:
        """Ground height of the terrain; 0 on the plane."""
        if self._map is None:
            return 0.0
        cells = [
            int(min(max(value / 0.05 + half / 0.05 + 1.0, 0), size - 1))
            for value, half, size in zip((x, y), HALF_EXTENT, self._map.shape, strict=True)
        ]
        return float(self._map[cells[0], cells[1]])

    def fallen(self) -> bool:
        """Tilted beyond 37° or sunk below 70 % of the standing height, and not held by the gantry."""
        if self.gantry is not None and not self.gantry.slack:
            return False
        _, x, y, _ = self.data.qpos[3:7]
        upright = 1 - 2 * (x * x + y * y)
        low = self.data.qpos[2] - self.ground_height(*self.data.qpos[:2]) < _MIN_HEIGHT * G1.standing_height
        return bool(upright < np.cos(np.arcsin(_MAX_TILT)) or low)

    def state(self) -> np.ndarray:
        """What the sensors say: a LOW_STATE with its checksum."""
        state = new_state()
        state["mode_machine"], state["tick"] = self.mode_machine, self.tick
        motors = state["motor_state"][:_COUNT]
        position, velocity = self.data.qpos[self._qpos], self.data.qvel[self._qvel]
        quat, gyro = self.data.qpos[3:7], self.data.qvel[3:6]
        if self.noise:
            position = position + self.noise * _POSITION_NOISE * self._rng.standard_normal(_COUNT)
            velocity = velocity + self.noise * _VELOCITY_NOISE * self._rng.standard_normal(_COUNT)
            gyro = gyro + self.noise * _GYROSCOPE_NOISE * self._rng.standard_normal(3)
            quat = _turned(quat, self.noise * _ORIENTATION_NOISE * self._rng.standard_normal(3))
        motors["mode"] = ENABLED
        motors["q"], motors["dq"] = position, velocity
        motors["tau_est"] = self.data.actuator_force[self._motor]
        state["quaternion"], state["gyroscope"] = quat, gyro
        upward = self.data.xmat[self._pelvis].reshape(3, 3)[2]
        state["accelerometer"] = 9.81 * upward  # of a pelvis that does not accelerate
        state["wireless_remote"] = np.frombuffer(remote_bytes(self.remote), np.uint8)
        return sealed(state)


def _turned(quat: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The quaternion, turned in its own frame by small angles [3]."""
    small = np.array([1.0, *(0.5 * angles)])
    result = np.empty(4)
    mujoco.mju_mulQuat(result, quat, small / np.linalg.norm(small))
    return result
