"""Reward terms: each a pure function of state, episode and task settings, [E], before its weight.

Weights and their reasons are with the tasks (`g1.py`, `walker.py`). All are rates: the environment multiplies the sum
by the control step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from trainer.tasks.rotation import wrap_angle
from trainer.tasks.state import CONTACT_FORCE, Episode, RobotState


@dataclass(frozen=True)
class RewardContext:
    """Constants of the robot and the task that rewards compare with."""

    default_pos: Tensor
    """[J]."""
    effort: Tensor
    """[J]: N m."""
    posture_weight: Tensor
    """[J]: how much a joint's departure from the stance matters."""
    joint_middle: Tensor
    """[J]: rad, of the joints' ranges; [0] where the robot declares none."""
    joint_reach: Tensor
    """[J]: rad to either side of the middle that a joint has to itself."""
    standing_height: float
    control_dt: float
    progress_ramp: float
    """Seconds."""
    stumble_ratio: float
    edge_drop: float
    """m."""


Term = Callable[[RobotState, Episode, RewardContext], Tensor]


_LOOK_AHEAD = 1.0
"""Metres along its line that a robot is steered to."""
_LIFT = 0.1
"""Metres that a foot is lifted in the middle of its swing."""
_HIGH = 0.25
"""Metres beyond which a foot is lifted for nothing: more than the highest riser."""
WITHIN = 0.9
"""Share of a joint's range, about its middle, that it has to itself: the rest is for what a policy did not foresee."""


def steering_error(state: RobotState, episode: Episode) -> Tensor:
    """[E]: radians to turn left by to a point ahead on the episode's line."""
    known = episode.known("steering_error")  # from the commands of the same step
    if known is not None:
        return known
    cos, sin = episode.heading.cos(), episode.heading.sin()
    x, y = (state.root_pos[:, :2] - episode.line).unbind(-1)
    aside = torch.atan((y * cos - x * sin) / _LOOK_AHEAD)
    return wrap_angle(episode.heading - aside - state.yaw)


def track_velocity(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """exp(-|error|² / 0.25) of the horizontal velocity in the heading frame."""
    return ((episode.command[:, :2] - state.planar_velocity).square().sum(-1) * -4.0).exp()


def progress(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Velocity along the command as a share of it, in [-1, 1]: a slope where `track_velocity` is flat.

    Too fast counts as much as too slow: 1.5 of the command as a half, or robots hurry over what they could step on.
    Falling forward is no progress: it counts as far as the robot is `upright`, and comes in over the episode's first
    `progress_ramp` seconds, which a robot that only falls does not live to see.
    """
    wanted = episode.command[:, :2]
    along = (wanted * state.planar_velocity).sum(-1) / wanted.square().sum(-1).clamp(min=0.01)
    each = context.control_dt / context.progress_ramp if context.progress_ramp else 1.0
    ramp = (episode.step * each).clamp(max=1.0)
    share = torch.rsub((along - 1.0).abs(), 1.0)
    return share.clamp(min=-1.0) * state.uprightness * episode.is_moving * ramp


def track_yaw_rate(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """exp(-error² / 0.25) of the yaw rate."""
    return ((episode.command[:, 2] - state.root_ang_vel[:, 2]).square() * -4.0).exp()


def turn_error(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Squared error of the yaw rate: a slope where `track_yaw_rate` is flat, as for a trunk that swings with steps."""
    return (episode.command[:, 2] - state.root_ang_vel[:, 2]).square()


def off_line(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Squared angle to a point ahead on the course's middle line: of all terms the only one that sees it from aside."""
    return steering_error(state, episode).square()


def alive(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """1."""
    return torch.ones_like(state.root_pos[:, 0])


def upright(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """exp(-10 tilt²), tilt the horizontal part of gravity in the body frame."""
    return state.uprightness


def height(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Squared error of the root's height above the ground under the loaded feet; 0 in the air."""
    above = state.root_pos[:, 2] - state.ground_below()
    return (above - context.standing_height).square() * state.foot_contact.any(-1)


def vertical_velocity(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """v_z²."""
    return state.root_lin_vel[:, 2].square()


def tilt_rate(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Roll and pitch rates, squared."""
    return state.root_ang_vel[:, :2].square().sum(-1)


def energy(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Σ |torque · velocity|, W."""
    return (state.joint_torque * state.joint_vel).abs().sum(-1)


def torque(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Σ (torque / limit)²."""
    return (state.joint_torque / context.effort).square().sum(-1)


def acceleration(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Σ joint acceleration²."""
    return ((state.joint_vel - episode.joint_vel_before) / context.control_dt).square().sum(-1)


def action_rate(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Σ (change of action)²."""
    return (episode.action - episode.last_action).square().sum(-1)


def posture(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Σ weight · (departure from the stance)²."""
    return (context.posture_weight * (state.joint_pos - context.default_pos).square()).sum(-1)


def joint_limits(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Radians that joints are beyond the middle nine tenths of their ranges."""
    return ((state.joint_pos - context.joint_middle).abs() - context.joint_reach).clamp(min=0.0).sum(-1)


def air_time(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Steps of a walking length: time in the air or on the ground, to 0.4 s, of a robot on exactly one foot."""
    in_contact = episode.contact_time > 0
    single = in_contact.sum(-1) == 1
    mode_time = torch.where(in_contact, episode.contact_time, episode.air_time)
    return mode_time.amin(-1).clamp(max=0.4) * single * episode.is_moving


def gait(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Share of the feet that are on the ground or off it as the clock has it."""
    return ((episode.swing == 0) == state.foot_contact).float().mean(-1)


def lift(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Metres that feet in their swing are lower than an arc of 10 cm above the ground, or higher than 25 cm."""
    foot = state.foot_pos[..., 2]
    low = _LIFT * episode.swing - state.foot_height
    high = foot - state.foot_ground.clamp(min=0.0) - _HIGH  # over a pit, above where one walks: z = 0
    return (low.clamp(min=0.0) + high.clamp(min=0.0) * (episode.swing > 0)).sum(-1)


def slip(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Horizontal speed of feet that bear load."""
    return (state.foot_speed * state.foot_contact).sum(-1)


def clearance(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Swing feet below 8 cm, weighted by their speed."""
    return (torch.rsub(state.foot_height, 0.08).clamp(min=0.0) * state.foot_speed).sum(-1) * episode.is_moving


def stumble(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Feet that are pushed sideways more than they are borne, as by a riser or the side of a stone."""
    sideways, upwards = vector_norm(state.foot_force[..., :2], dim=-1), state.foot_force[..., 2].abs()
    return ((sideways > context.stumble_ratio * upwards) & (sideways > CONTACT_FORCE)).float().sum(-1)


def stance_width(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Feet nearer than 0.16 m sideways, in the heading frame: crossing legs."""
    x, y, _ = (state.foot_pos[:, 0] - state.foot_pos[:, 1]).unbind(-1)
    cos, sin = state.facing
    return torch.rsub((y * cos - x * sin).abs(), 0.16).clamp(min=0.0)


def foot_edge(state: RobotState, episode: Episode, context: RewardContext) -> Tensor:
    """Share of the sole's points off the terrain, summed over loaded feet: 1 for a foot beside its stone."""
    share_off = (state.sole_drop > context.edge_drop).float().mean(-1)
    return (share_off * state.foot_contact).sum(-1)


TERMS: dict[str, Term] = {
    term.__name__: term
    for term in (
        track_velocity,
        progress,
        track_yaw_rate,
        turn_error,
        off_line,
        alive,
        upright,
        height,
        vertical_velocity,
        tilt_rate,
        energy,
        torque,
        acceleration,
        action_rate,
        posture,
        joint_limits,
        air_time,
        slip,
        clearance,
        stumble,
        stance_width,
        foot_edge,
        gait,
        lift,
    )
}
BY_CLOCK = ("gait", "lift")
"""Terms that mean nothing without a clock."""
