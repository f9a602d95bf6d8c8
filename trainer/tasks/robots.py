"""The robots: joints, motors and stance, by name. Engines read these; none of them is an engine's own convention.

G1 motors: stiffness and damping place each joint at 10 Hz natural frequency and damping ratio 2 of its reflected rotor
inertia, and an action of 1 moves the target by a quarter of what the effort limit would hold; the same values as
mjlab's G1, so that one policy means one thing in every engine.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Motor:
    """One kind of joint drive: torque = stiffness (target - position) - damping velocity, within ± effort."""

    armature: float
    stiffness: float
    damping: float
    effort: float

    @staticmethod
    def of_rotor(armature: float, effort: float, frequency: float = 10.0, damping_ratio: float = 2.0) -> Motor:
        """Gains that give the rotor's reflected inertia `armature` (kg m²) the wanted second-order response."""
        omega = 2 * math.pi * frequency
        return Motor(armature, armature * omega**2, 2 * damping_ratio * armature * omega, effort)


@dataclass(frozen=True)
class RobotSpec:
    """A robot as tasks and engines both see it."""

    name: str
    joint_names: tuple[str, ...]
    motors: tuple[Motor, ...]
    """One a joint."""
    default_pos: tuple[float, ...]
    """The stance that action 0 asks for."""
    action_scale: tuple[float, ...]
    """Radians for an action of 1."""
    standing_height: float
    """Of the root above the ground in the stance."""
    feet: tuple[str, ...]
    """Body names."""
    sole: tuple[float, float, float]
    """The sole's centre in the foot's frame."""
    trunk: str
    """The body whose mass is randomised."""
    planar: bool = False
    """Moves in the x-z plane: three root joints (x, z, pitch) instead of a free one."""

    def __post_init__(self) -> None:
        for field in ("motors", "default_pos", "action_scale"):
            if len(getattr(self, field)) != len(self.joint_names):
                raise ValueError(f"{self.name}: {field} has {len(getattr(self, field))} entries for {self.num_joints}")

    @property
    def num_joints(self) -> int:
        """J; also the number of actions."""
        return len(self.joint_names)


def by_pattern(names: tuple[str, ...], table: dict[str, float], default: float | None = None) -> tuple[float, ...]:
    """A value for each name from the one pattern of `table` that matches it.

    Raises:
        ValueError: A name that no pattern, or more than one, matches.
    """
    values = []
    for name in names:
        found = [value for pattern, value in table.items() if re.fullmatch(pattern, name)]
        if not found and default is not None:
            found = [default]
        if len(found) != 1:
            raise ValueError(f"{name}: expected one matching pattern, found {len(found)} in {list(table)}")
        values.append(found[0])
    return tuple(values)


_LEG = ("hip_pitch", "hip_roll", "hip_yaw", "knee", "ankle_pitch", "ankle_roll")
_ARM = ("shoulder_pitch", "shoulder_roll", "shoulder_yaw", "elbow", "wrist_roll", "wrist_pitch", "wrist_yaw")
_G1_JOINTS = (
    *(f"{side}_{joint}_joint" for side in ("left", "right") for joint in _LEG),
    "waist_yaw_joint",
    "waist_roll_joint",
    "waist_pitch_joint",
    *(f"{side}_{joint}_joint" for side in ("left", "right") for joint in _ARM),
)

# Rotor inertias after both gear stages (kg m²) and peak torques (N m) of Unitree's motors.
_ARM_MOTOR = Motor.of_rotor(0.003609725, 25.0)
_HIP_MOTOR = Motor.of_rotor(0.010177520, 88.0)
_KNEE_MOTOR = Motor.of_rotor(0.025101925, 139.0)
_WRIST_MOTOR = Motor.of_rotor(0.00425, 5.0)
_PAIR_MOTOR = Motor.of_rotor(2 * 0.003609725, 50.0)  # ankles and waist: two motors in a parallel linkage


def _g1_motor(joint: str) -> Motor:
    if re.search("ankle|waist_(roll|pitch)", joint):
        return _PAIR_MOTOR
    if re.search("hip_roll|knee", joint):
        return _KNEE_MOTOR
    if re.search("hip_pitch|hip_yaw|waist_yaw", joint):
        return _HIP_MOTOR
    if re.search("wrist_(pitch|yaw)", joint):
        return _WRIST_MOTOR
    return _ARM_MOTOR


_G1_MOTORS = tuple(_g1_motor(joint) for joint in _G1_JOINTS)

G1 = RobotSpec(
    name="g1",
    joint_names=_G1_JOINTS,
    motors=_G1_MOTORS,
    default_pos=by_pattern(
        _G1_JOINTS,
        {
            ".*_hip_pitch_joint": -0.312,
            ".*_knee_joint": 0.669,
            ".*_ankle_pitch_joint": -0.363,
            ".*_elbow_joint": 0.6,
            ".*_shoulder_pitch_joint": 0.2,
            "left_shoulder_roll_joint": 0.2,
            "right_shoulder_roll_joint": -0.2,
        },
        default=0.0,
    ),
    action_scale=tuple(0.25 * motor.effort / motor.stiffness for motor in _G1_MOTORS),
    standing_height=0.76,
    feet=("left_ankle_roll_link", "right_ankle_roll_link"),
    sole=(0.04, 0.0, -0.037),
    trunk="torso_link",
)

_WALKER_JOINTS = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in ("hip", "knee", "ankle"))
_WALKER_MOTORS = (Motor(0.02, 60.0, 3.0, 60.0), Motor(0.02, 60.0, 3.0, 60.0), Motor(0.01, 30.0, 1.5, 30.0)) * 2

WALKER = RobotSpec(
    name="walker",
    joint_names=_WALKER_JOINTS,
    motors=_WALKER_MOTORS,
    default_pos=(-0.3, 0.6, -0.3) * 2,
    action_scale=(0.5, 0.5, 0.4) * 2,
    standing_height=0.825,
    feet=("left_foot", "right_foot"),
    sole=(0.03, 0.0, -0.06),
    trunk="torso",
    planar=True,
)

ROBOTS = {robot.name: robot for robot in (G1, WALKER)}
