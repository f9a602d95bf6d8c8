"""A planar biped on easy courses: the parkour code at a size that learns in minutes on a CPU.

Rocking and shuffling are the easy ways to a velocity for a robot this light: `tilt_rate`, `energy`, `action_rate` and
`slip` make them dear, `air_time` makes steps pay. Diving forward is the first thing it finds where progress pays from
the start and a fall costs nothing: `progress_ramp` and `fall_penalty` spare it that (docs/results.md). Steps that clear
a riser it finds by the clock, as the G1 does.

It senses gravity, joint positions, its last action and the clock: every velocity is hidden, so the encoder has
something to do.
"""

from __future__ import annotations

from trainer.tasks.locomotion import TaskConfig
from trainer.tasks.randomization import Dynamics
from trainer.tasks.robots import WALKER

WALKER_PARKOUR = TaskConfig(
    name="walker-parkour",
    robot=WALKER,
    rewards={
        "track_velocity": 2.0,
        "progress": 1.0,
        "alive": 0.5,
        "upright": 0.5,
        "height": -5.0,
        "vertical_velocity": -0.1,
        "tilt_rate": -0.1,
        "energy": -1e-3,
        "action_rate": -0.05,
        "air_time": 2.5,
        "slip": -0.3,
        "clearance": -1.0,
        "stumble": -1.0,
        "foot_edge": -1.0,
        "gait": 1.5,
        "lift": -10.0,
    },
    fall_penalty=2.0,
    progress_ramp=2.0,
    proprio=("gravity", "command", "joint_pos", "action", "clock"),
    gait_period=0.8,
    stride={".*_hip": -0.35, ".*_knee": 0.7, ".*_ankle": -0.35},
    command_x=(0.8, 1.2),
    command_y=(0.0, 0.0),
    command_yaw=(0.0, 0.0),
    command_seconds=(20.0, 20.0),
    standing_fraction=0.0,
    terrains=("stairs", "gaps", "single_row_stones", "flat"),
    max_tilt=0.9,
    min_height=0.5,
    dynamics=Dynamics(added_mass=(-1.0, 2.0)),
)
