"""The robots: joints, motors and stance, by name. Engines read these; none of them is an engine's own convention.

G1 motors: stiffness and damping place each joint at 10 Hz natural frequency and damping ratio 2 of its reflected rotor
inertia, and an action of 1 moves the target by a quarter of what the effort limit would hold; the same values as
mjlab's G1, so that one policy means one thing in every engine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


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
class Mirror:
    """The robot in a mirror that stands in its x-z plane: left and right change places.

    `trainer/tasks/symmetry.py` makes of it what becomes of states, observations and actions.
    """

    joints: tuple[int, ...]
    """For each joint, the one whose place it takes."""
    signs: tuple[float, ...]
    """For each joint, -1 where its angle turns the other way round in the mirror (roll and yaw), else 1."""
    feet: tuple[int, ...]
    """For each foot, the one whose place it takes."""

    @staticmethod
    def of_names(
        joint_names: tuple[str, ...],
        feet: tuple[str, ...],
        signs: dict[str, float],
        sides: Sequence[tuple[str, str]] = (("left_", "right_"),),
    ) -> Mirror:
        """The mirror of a robot whose names tell the sides; a name of no side is its own image.

        Args:
            joint_names: In the robot's order.
            feet: Body names.
            signs: Joint pattern to sign; exactly one has to match each joint.
            sides: Parts of names that stand for each other.

        Raises:
            ValueError: A joint or foot has no counterpart, or no sign of its own.
        """

        def image(name: str, names: tuple[str, ...]) -> int:
            for left, right in sides:
                for here, there in ((left, right), (right, left)):
                    if here in name:
                        other = name.replace(here, there, 1)
                        if other not in names:
                            raise ValueError(f"mirror: {name} has no counterpart {other} among {', '.join(names)}")
                        return names.index(other)
            return names.index(name)

        return Mirror(
            joints=tuple(image(name, joint_names) for name in joint_names),
            signs=by_pattern(joint_names, signs),
            feet=tuple(image(name, feet) for name in feet),
        )


@dataclass(frozen=True)
class RobotSpec:
    """A robot as tasks and engines both see it."""

    name: str
    joint_names: tuple[str, ...]
    motors: tuple[Motor, ...]
    """Motors of the joints, one each."""
    default_pos: tuple[float, ...]
    """The stance that action 0 asks for."""
    action_scale: tuple[float, ...]
    """Radians for an action of 1."""
    standing_height: float
    """Height of the root above the ground in the stance."""
    feet: tuple[str, ...]
    """Names of the feet's bodies."""
    sole: tuple[float, float, float]
    """The sole's centre in the foot's frame."""
    trunk: str
    """The body whose mass is randomised."""
    trunk_bodies: tuple[str, ...] = ()
    """Bodies that must not touch the terrain; the trunk alone by default."""
    sole_points: tuple[tuple[float, float, float], ...] = ()
    """Points of the sole in the foot's frame, the same for every foot; by default its centre alone. Which share of them
    lies off the terrain is what `foot_edge` counts; where the robot has a mirror, they are their own image."""
    joint_range: tuple[tuple[float, float], ...] = ()
    """Radians from and to which each joint turns, as its stops have it; nothing where it is not declared."""
    mjcf: str = ""
    """Path of the MJCF file; nothing for the robots whose files this package knows."""
    planar: bool = False
    """Moves in the x-z plane: three root joints (x, z, pitch) instead of a free one."""
    mirror: Mirror | None = None
    """The robot's left/right symmetry; None for a robot that has none, or whose has not been declared."""

    def __post_init__(self) -> None:
        if not self.sole_points:
            object.__setattr__(self, "sole_points", (self.sole,))
        for field in ("motors", "default_pos", "action_scale", *(["joint_range"] if self.joint_range else [])):
            if len(getattr(self, field)) != len(self.joint_names):
                raise ValueError(f"{self.name}: {field} has {len(getattr(self, field))} entries for {self.num_joints}")
        if self.mirror is not None:
            self._check_mirror(self.mirror)

    def _check_mirror(self, mirror: Mirror) -> None:
        """Mirroring twice is the identity, and the stance and the motors are those of their mirror images."""
        for field, count in (("joints", self.num_joints), ("signs", self.num_joints), ("feet", len(self.feet))):
            if len(getattr(mirror, field)) != count:
                raise ValueError(f"{self.name}: mirror.{field} has {len(getattr(mirror, field))} entries for {count}")
        for field in ("joints", "feet"):
            images = getattr(mirror, field)
            if [images[image] if 0 <= image < len(images) else -1 for image in images] != list(range(len(images))):
                raise ValueError(f"{self.name}: mirror.{field} applied twice is not the identity: {images}")
        for joint, image in enumerate(mirror.joints):
            name, sign = self.joint_names[joint], mirror.signs[joint]
            if sign not in (-1.0, 1.0) or sign != mirror.signs[image]:
                raise ValueError(f"{self.name}: mirror.signs of {name}: expected 1 or -1, the same as its image's")
            if not math.isclose(self.default_pos[joint], sign * self.default_pos[image], abs_tol=1e-9):
                raise ValueError(f"{self.name}: the stance is not symmetric at {name}: default_pos")
            if self.joint_range:
                low, high = self.joint_range[image]
                if self.joint_range[joint] != ((low, high) if sign > 0 else (-high, -low)):
                    raise ValueError(f"{self.name}: joint_range is not symmetric at {name}")
            if self.motors[joint] != self.motors[image] or self.action_scale[joint] != self.action_scale[image]:
                raise ValueError(f"{self.name}: the motors are not symmetric at {name}")
        if self.sole[1] != 0.0:
            raise ValueError(f"{self.name}: sole: a symmetric robot's has y = 0, got {self.sole[1]}")

    @property
    def no_contact(self) -> tuple[str, ...]:
        """Bodies that must not touch the terrain."""
        return self.trunk_bodies or (self.trunk,)

    @property
    def num_joints(self) -> int:
        """J; also the number of actions."""
        return len(self.joint_names)


def by_pattern(names: tuple[str, ...], table: dict[str, T], default: T | None = None) -> tuple[T, ...]:
    """A value for each name from the one pattern of `table` that matches it.

    Raises:
        ValueError: A name that no pattern, or more than one, matches; a pattern that matches no name.
    """
    for pattern in table:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise ValueError(f"{pattern}: no name matches this pattern; the names are {', '.join(names)}")
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
_G1_FEET = ("left_ankle_roll_link", "right_ankle_roll_link")

# The public ranges of Unitree's description of the robot, rad.
_G1_RANGES = {
    ".*_hip_pitch_joint": (-2.5307, 2.8798),
    "left_hip_roll_joint": (-0.5236, 2.9671),
    "right_hip_roll_joint": (-2.9671, 0.5236),
    ".*_hip_yaw_joint": (-2.7576, 2.7576),
    ".*_knee_joint": (-0.087267, 2.8798),
    ".*_ankle_pitch_joint": (-0.87267, 0.5236),
    ".*_ankle_roll_joint": (-0.2618, 0.2618),
    "waist_yaw_joint": (-2.618, 2.618),
    "waist_(roll|pitch)_joint": (-0.52, 0.52),
    ".*_shoulder_pitch_joint": (-3.0892, 2.6704),
    "left_shoulder_roll_joint": (-1.5882, 2.2515),
    "right_shoulder_roll_joint": (-2.2515, 1.5882),
    ".*_shoulder_yaw_joint": (-2.618, 2.618),
    ".*_elbow_joint": (-1.0472, 2.0944),
    ".*_wrist_roll_joint": (-1.97222, 1.97222),
    ".*_wrist_(pitch|yaw)_joint": (-1.61443, 1.61443),
}

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
    feet=_G1_FEET,
    sole=(0.04, 0.0, -0.037),
    sole_points=tuple((x, y, -0.037) for x in (-0.045, 0.04, 0.125) for y in (0.025, -0.025)),
    trunk="torso_link",
    trunk_bodies=("pelvis", "torso_link"),
    joint_range=by_pattern(_G1_JOINTS, _G1_RANGES),
    mirror=Mirror.of_names(_G1_JOINTS, _G1_FEET, {".*_(roll|yaw)_joint": -1.0, ".*_(pitch|knee|elbow)_joint": 1.0}),
)

_WALKER_JOINTS = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in ("hip", "knee", "ankle"))
_WALKER_FEET = ("left_foot", "right_foot")
_WALKER_MOTORS = (Motor(0.02, 60.0, 3.0, 60.0), Motor(0.02, 60.0, 3.0, 60.0), Motor(0.01, 30.0, 1.5, 30.0)) * 2

WALKER = RobotSpec(
    name="walker",
    joint_names=_WALKER_JOINTS,
    motors=_WALKER_MOTORS,
    default_pos=(-0.3, 0.6, -0.3) * 2,
    action_scale=(0.5, 0.5, 0.4) * 2,
    standing_height=0.825,
    feet=_WALKER_FEET,
    sole=(0.03, 0.0, -0.06),
    sole_points=tuple((x, 0.0, -0.06) for x in (-0.07, -0.02, 0.03, 0.08, 0.13)),
    trunk="torso",
    joint_range=((-1.6, 0.9), (-0.05, 2.4), (-0.9, 0.6)) * 2,
    planar=True,
    # All of its joints pitch: its legs change places, and no angle changes its sign.
    mirror=Mirror.of_names(_WALKER_JOINTS, _WALKER_FEET, {".*": 1.0}),
)

ROBOTS = {robot.name: robot for robot in (G1, WALKER)}
