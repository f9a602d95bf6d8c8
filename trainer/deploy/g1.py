"""Unitree's G1 with 29 joints: the order of its motors, what they bear, and whether a policy's contract fits it."""

from __future__ import annotations

import math
import re

import numpy as np

from trainer.tasks.contract import CONVENTIONS, Contract
from trainer.tasks.robots import G1

_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
MOTORS = (
    *(f"{side}_{joint}_joint" for side in ("left", "right") for joint in _LEG),
    *(f"waist_{axis}_joint" for axis in ("yaw", "roll", "pitch")),
    *(f"{side}_{joint}_joint" for side in ("left", "right") for joint in _ARM),
)
"""Joint of motor 0, 1, …, as Unitree numbers them."""
MODE_MACHINE = (5,)
"""`mode_machine` of the G1 that the gains are for: 29 joints, waist free, hips of the second gear ratio."""
LIDAR_MOUNT = (0.0003, 0.0, 0.428, math.pi, 0.051, 0.0)
"""x, y, z (m), roll, pitch, yaw (rad) of the head's lidar in the torso's frame: it hangs upside down."""

# Public peak speeds (rad/s) and peak torques (N m) of Unitree's description of the robot.
_SPEEDS = {
    ".*_hip_(pitch|yaw)|waist_yaw": 32.0,
    ".*_hip_roll|.*_knee": 20.0,
    ".*_wrist_(pitch|yaw)": 22.0,
    ".*_ankle_.*|waist_(roll|pitch)|.*_shoulder_.*|.*_elbow|.*_wrist_roll": 37.0,
}
_TORQUES = {
    ".*_hip_(pitch|yaw)|waist_yaw": 88.0,
    ".*_hip_roll|.*_knee": 139.0,
    ".*_ankle_.*|waist_(roll|pitch)": 50.0,
    ".*_shoulder_.*|.*_elbow|.*_wrist_roll": 25.0,
    ".*_wrist_(pitch|yaw)": 5.0,
}
_SCAN_FRAME = "root, turned by its yaw alone"
_SCAN_VALUE = "root height - standing height - terrain height"
_LARGEST_STIFFNESS = 300.0


def _by_motor(table: dict[str, object]) -> list[object]:
    return [next(v for pattern, v in table.items() if re.fullmatch(f"(?:{pattern})_joint", name)) for name in MOTORS]


POSITION_LIMITS = np.array([G1.joint_range[G1.joint_names.index(name)] for name in MOTORS], np.float32)
"""[29, 2] rad."""
VELOCITY_LIMITS = np.array(_by_motor({**_SPEEDS}), np.float32)
"""[29] rad/s."""
TORQUE_LIMITS = np.array(_by_motor({**_TORQUES}), np.float32)
"""[29] N m."""


def check_contract(contract: Contract) -> None:
    """Refuses a policy that is not for this robot or that was made under other conventions.

    Raises:
        ValueError: Naming what does not fit.
    """
    if contract.robot != "g1":
        raise ValueError(f"policy: it is for the robot {contract.robot!r}; this controller drives 'g1'")
    if len(contract.joint_names) != len(MOTORS):
        raise ValueError(f"policy: it drives {len(contract.joint_names)} joints; this G1 has {len(MOTORS)}")
    if missing := [name for name in MOTORS if name not in contract.joint_names]:
        raise ValueError(f"policy: it has no joint {missing[0]!r}, which is a motor of this G1")
    period = 1000.0 / contract.control_hz
    if abs(period - round(period)) > 1e-6 or not 1 <= round(period) <= 100:
        raise ValueError(f"policy: control_hz {contract.control_hz:g}: expected a whole number of milliseconds a step")
    for term in contract.proprio:
        expected = CONVENTIONS.get(term.name)
        if expected is None:
            raise ValueError(f"policy: it needs the observation {term.name!r}; there are {', '.join(CONVENTIONS)}")
        if term.convention != expected:
            raise ValueError(
                f"policy: observation {term.name!r} is {term.convention!r} to it and {expected!r} here:"
                " a stale contract; export the policy again"
            )
    if (contract.scan.frame, contract.scan.value) != (_SCAN_FRAME, _SCAN_VALUE):
        raise ValueError(f"policy: scan of {contract.scan.value!r}, {contract.scan.frame!r}: a stale contract")
    _check_joints(contract)


def _check_joints(contract: Contract) -> None:
    for motor, name in enumerate(MOTORS):
        column = contract.joint_names.index(name)
        low, high = POSITION_LIMITS[motor]
        if not low <= contract.default_pos[column] <= high:
            raise ValueError(
                f"policy: joint {name!r}: default_pos {contract.default_pos[column]:g} is outside [{low:g}, {high:g}]"
            )
        if contract.effort[column] > TORQUE_LIMITS[motor] * (1 + 1e-4):
            raise ValueError(
                f"policy: joint {name!r}: effort {contract.effort[column]:g} N m; the motor bears"
                f" {TORQUE_LIMITS[motor]:g}"
            )
        if not 0 < contract.stiffness[column] <= _LARGEST_STIFFNESS or not contract.damping[column] > 0:
            raise ValueError(
                f"policy: joint {name!r}: stiffness {contract.stiffness[column]:g} and damping"
                f" {contract.damping[column]:g}: expected positive ones, stiffness up to {_LARGEST_STIFFNESS:g}"
            )


def by_motor(contract: Contract, values: tuple[float, ...]) -> np.ndarray:
    """[29] float32: the contract's values in the order of the motors."""
    return np.array([values[contract.joint_names.index(name)] for name in MOTORS], np.float32)
