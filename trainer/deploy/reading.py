"""A robot's state as the controller sees it: plain arrays by motor, from a `LowState_`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.deploy.g1 import MOTORS
from trainer.deploy.unitree import Remote, remote_of

_COUNT = len(MOTORS)


@dataclass(frozen=True)
class Reading:
    """One state of the robot. Arrays are by motor, [29] float32."""

    tick: int
    """The robot's clock, ms."""
    mode_machine: int
    quat: np.ndarray
    """[4] (w, x, y, z): pelvis to world."""
    ang_vel: np.ndarray
    """[3] rad/s in the pelvis' frame."""
    position: np.ndarray
    velocity: np.ndarray
    torque: np.ndarray
    remote: Remote

    @property
    def yaw(self) -> float:
        """Heading by the IMU, rad; its zero is where the robot was switched on."""
        w, x, y, z = self.quat.tolist()
        return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))

    @property
    def tilt(self) -> float:
        """Angle between the pelvis' axis and the vertical, rad."""
        _, x, y, _ = (self.quat / max(float(np.linalg.norm(self.quat)), 1e-9)).tolist()
        return float(np.arccos(min(max(1 - 2 * (x * x + y * y), -1.0), 1.0)))


def reading_of(state: np.ndarray) -> Reading:
    """The reading of a LOW_STATE record; arrays are copies."""
    motors = state["motor_state"]
    return Reading(
        tick=int(state["tick"]),
        mode_machine=int(state["mode_machine"]),
        quat=state["quaternion"].copy(),
        ang_vel=state["gyroscope"].copy(),
        position=motors["q"][:_COUNT].copy(),
        velocity=motors["dq"][:_COUNT].copy(),
        torque=motors["tau_est"][:_COUNT].copy(),
        remote=remote_of(state["wireless_remote"].tobytes()),
    )
