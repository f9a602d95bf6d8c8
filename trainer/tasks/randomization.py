"""What differs between robots and episodes: the paper's table of dynamics and observation noise."""

from __future__ import annotations

from dataclasses import dataclass

Range = tuple[float, float]


@dataclass(frozen=True)
class Dynamics:
    """Ranges drawn uniformly for every episode."""

    friction: Range = (0.3, 1.0)
    """Friction of the feet on the terrain."""
    restitution: Range = (0.0, 0.1)
    """Restitution of the robot on the terrain, where contacts have one: in PhysX, not in MuJoCo."""
    added_mass: Range = (-1.0, 3.0)
    """Mass added to the trunk, kg."""
    com_xy: Range = (-0.05, 0.05)
    """Shift of the trunk's centre of mass, m."""
    com_z: Range = (-0.01, 0.01)
    push_velocity: Range = (-0.5, 0.5)
    """Added to the root's velocity in x and in y, m/s."""
    push_interval: Range = (5.0, 10.0)
    """Seconds between pushes."""
    action_delay: Range = (0.0, 0.0)
    """Seconds from an action to the motors, in whole physics steps (5 ms); beyond the paper's table, as all below."""
    motor_strength: Range = (1.0, 1.0)
    """Factor on what a motor gives: its torque and its limit, a joint each."""
    stiffness: Range = (1.0, 1.0)
    """Factor on the gain of the joint's position, a joint each."""
    damping: Range = (1.0, 1.0)
    """Factor on the gain of the joint's velocity, a joint each."""


@dataclass(frozen=True)
class ObservationNoise:
    """Half-widths of uniform noise."""

    ang_vel: float = 0.05
    gravity: float = 0.05
    joint_pos: float = 0.01
    joint_vel: float = 0.1
    scan: float = 0.01
