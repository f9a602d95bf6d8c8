"""A robot from scratch, and a task for it: names and numbers, no code of an engine."""

from __future__ import annotations

from pathlib import Path

from trainer.tasks.locomotion import TaskConfig
from trainer.tasks.randomization import Dynamics
from trainer.tasks.robots import Mirror, Motor, RobotSpec

_LEGS = tuple(f"{end}_{side}" for end in ("front", "rear") for side in ("left", "right"))
_JOINTS = tuple(f"{leg}_{joint}" for leg in _LEGS for joint in ("hip", "knee"))
_FEET = tuple(f"{leg}_foot" for leg in _LEGS)

DOG = RobotSpec(
    name="dog",
    joint_names=_JOINTS,
    motors=(Motor(armature=0.005, stiffness=25.0, damping=0.8, effort=20.0),) * len(_JOINTS),
    default_pos=(0.6, -1.2) * len(_LEGS),  # the stance: what an action of 0 asks for
    action_scale=(0.3,) * len(_JOINTS),  # radians for an action of 1
    standing_height=0.35,
    feet=_FEET,
    sole=(0.0, 0.0, -0.02),
    trunk="trunk",
    mjcf=str(Path(__file__).with_name("dog.xml")),
    # Left and right change places, and all joints pitch, so no angle changes its sign
    mirror=Mirror.of_names(_JOINTS, _FEET, {".*": 1.0}),
)

TROT = TaskConfig(
    name="dog-trot",
    robot=DOG,
    rewards={
        "track_velocity": 2.0,
        "progress": 2.0,
        "track_yaw_rate": 0.5,
        "alive": 0.5,
        "upright": 0.5,
        "vertical_velocity": -0.2,
        "tilt_rate": -0.05,
        "energy": -1e-3,
        "action_rate": -0.02,
        "slip": -0.1,
    },
    command_x=(0.3, 0.8),
    command_y=(0.0, 0.0),
    max_tilt=0.7,
    min_height=0.5,
    dynamics=Dynamics(added_mass=(-0.5, 1.0)),
)
