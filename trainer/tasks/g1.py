"""The G1's tasks. Reward weights are rates per second; the exponentials lie in [0, 1], so their weights compare.

What each is for: the first four are the task, of which `progress` alone tells a robot that stands which way to go, and
`turn_error` one whose trunk swings with its steps that it does not turn as commanded; `alive`, `upright` and the
penalty for a fall make standing better than falling forward with the command, and keep early policies from ending
episodes to avoid the other penalties; the rest shape the gait: without `posture` the arms and the waist wander, without
`air_time` and `clearance` the feet shuffle, without `stance_width` the legs cross, without `joint_limits` and enough
`height` it walks in a crouch with its ankles on their stops, and falls backwards over an edge under its heel. Without
the clock, its stride, `gait` and `lift` no leg moves before the other: both vibrate at 8 Hz, which follows every
command on the plane and climbs nothing.

On courses it is asked to be quick: whoever walks at half a metre a second is pushed twice on its way and falls back
from an edge that momentum carries others over.
"""

from __future__ import annotations

from dataclasses import replace

from trainer.tasks.locomotion import PROPRIO_TERMS, TaskConfig
from trainer.tasks.robots import G1

G1_FLAT = TaskConfig(
    name="g1-flat",
    robot=G1,
    rewards={
        "track_velocity": 2.0,
        "progress": 3.0,
        "track_yaw_rate": 0.75,
        "turn_error": -0.5,
        "alive": 1.0,
        "upright": 0.5,
        "height": -50.0,
        "vertical_velocity": -0.5,
        "tilt_rate": -0.05,
        "energy": -1e-4,
        "torque": -0.02,
        "acceleration": -1e-7,
        "action_rate": -0.01,
        "posture": -0.5,
        "joint_limits": -10.0,
        "air_time": 5.0,
        "slip": -0.2,
        "clearance": -2.0,
        "stumble": -0.5,
        "stance_width": -10.0,
        "gait": 2.0,
        "lift": -15.0,
    },
    fall_penalty=2.0,
    progress_ramp=2.0,
    proprio=PROPRIO_TERMS,
    gait_period=0.8,
    command_x=(0.3, 1.0),
    standing_fraction=0.05,
    stride={".*_hip_pitch_joint": -0.35, ".*_knee_joint": 0.7, ".*_ankle_pitch_joint": -0.35},
    posture={
        ".*_hip_(roll|yaw)_joint": 1.0,
        "waist_.*_joint": 1.0,
        ".*_(shoulder|elbow).*": 0.3,
        ".*_wrist_.*": 0.3,
        ".*_ankle_roll_joint": 0.2,
    },
)

G1_PARKOUR = replace(
    G1_FLAT,
    name="g1-parkour",
    rewards={
        **G1_FLAT.rewards,
        "off_line": -3.0,
        "height": -25.0,
        "vertical_velocity": -0.2,
        "stumble": -1.0,
        "foot_edge": -1.0,
    },
    command_x=(0.8, 1.2),
    command_y=(0.0, 0.0),
    command_yaw=(-0.8, 0.8),
    command_seconds=(20.0, 20.0),
    standing_fraction=0.0,
    keep_heading=True,
    terrains=(
        "pyramid_stairs",
        "inverted_pyramid_stairs",
        "stairs",
        "gaps",
        "dual_row_stones",
        "single_row_stones",
        "sparse_stones",
        "flat",
    ),
    max_tilt=0.9,
    min_height=0.5,
)
