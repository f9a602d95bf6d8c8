"""A task's contract: what a policy trained on it assumes, by name (`trainer/tasks/contract.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer.tasks.contract import CONVENTIONS, Contract, History, Scan, Term
from trainer.tasks.robots import by_pattern
from trainer.tasks.scan import SCAN_COLUMNS, SCAN_ROWS
from trainer.tasks.stride import by_joint

if TYPE_CHECKING:
    from trainer.tasks.locomotion import TaskConfig

ACTION_CLIP = 10.0
"""Actions are cut to ± this: ten times what a motor's quarter effort holds is beyond every joint's range."""
_SIZES = {"clock": 2}
_BY_JOINT = ("joint_pos", "joint_vel", "action")


def contract_of(config: TaskConfig) -> Contract:
    """What a policy trained on the task assumes."""
    robot, noise = config.robot, config.noise
    stride = by_pattern(robot.joint_names, config.stride, default=0.0)
    widths = {name: getattr(noise, name, 0.0) for name in config.proprio}
    terms = [
        Term(
            name=name,
            size=robot.num_joints if name in _BY_JOINT else _SIZES.get(name, 3),
            joints=robot.joint_names if name in _BY_JOINT else (),
            convention=CONVENTIONS[name],
            noise=widths[name],
        )
        for name in config.proprio
    ]
    return Contract(
        robot=robot.name,
        task=config.name,
        joint_names=robot.joint_names,
        default_pos=robot.default_pos,
        stiffness=tuple(motor.stiffness for motor in robot.motors),
        damping=tuple(motor.damping for motor in robot.motors),
        effort=tuple(motor.effort for motor in robot.motors),
        action_scale=robot.action_scale,
        action_clip=ACTION_CLIP,
        control_hz=1.0 / config.control_dt,
        gait_period=config.gait_period,
        stride=stride,
        stride_middle=by_joint(stride, robot.joint_names, robot.feet),
        proprio=tuple(terms),
        history=History(length=config.history),
        scan=Scan(
            x=_centred(SCAN_COLUMNS),
            y=_centred(SCAN_ROWS),
            standing_height=robot.standing_height,
            noise=noise.scan,
        ),
        command=(config.command_x, config.command_y, config.command_yaw),
    )


def _centred(count: int, spacing: float = 0.1) -> tuple[float, ...]:
    """Coordinates of `trainer.tasks.scan.scan_points` along one axis."""
    return tuple(round(spacing * (index - (count - 1) / 2), 6) for index in range(count))
