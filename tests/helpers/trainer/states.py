"""Robot states by hand, for tests of tasks without an engine."""

from __future__ import annotations

import math

import torch

from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.state import Episode, RobotState


def standing(task: LocomotionTask, count: int = 3) -> RobotState:
    """Robots standing still in their stance on flat ground at height 0."""
    robot = task.config.robot
    feet = len(robot.feet)
    foot_pos = torch.zeros(count, feet, 3)
    foot_pos[:, :, 1] = torch.linspace(0.12, -0.12, feet)
    return RobotState(
        root_pos=torch.tensor([0.0, 0.0, robot.standing_height]).repeat(count, 1),
        root_quat=torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(count, 1),
        root_lin_vel=torch.zeros(count, 3),
        root_ang_vel=torch.zeros(count, 3),
        joint_pos=task.default_pos.repeat(count, 1),
        joint_vel=torch.zeros(count, robot.num_joints),
        joint_torque=torch.zeros(count, robot.num_joints),
        foot_pos=foot_pos,
        foot_vel=torch.zeros(count, feet, 3),
        foot_force=torch.tensor([0.0, 0.0, 160.0]).repeat(count, feet, 1),
        body_contact=torch.zeros(count, dtype=torch.bool),
        scan=torch.zeros(count, 187),
        foot_ground=torch.zeros(count, feet),
        sole_drop=torch.zeros(count, feet, len(robot.sole_points)),
        dynamics=torch.zeros(count, 5),
    )


def fresh_episode(task: LocomotionTask, count: int = 3) -> Episode:
    """An episode at its first step, with command 0."""
    robot = task.config.robot
    return Episode.empty(
        count, robot.num_joints, task.num_actions, len(robot.feet), (task.config.history, task.proprio_size)
    )


def quaternion(axis, angle):
    """Turn by `angle` about `axis`: [4], w first."""
    axis = torch.tensor(axis, dtype=torch.float32)
    return torch.cat([torch.tensor([math.cos(angle / 2)]), math.sin(angle / 2) * axis / axis.norm()])
