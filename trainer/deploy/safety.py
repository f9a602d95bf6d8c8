"""What the controller never does and never accepts: limits on readings, and limits on what is sent.

A limit on a reading that is passed ends in damping. A limit on a target cuts the target; how often is counted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trainer.deploy.g1 import MOTORS, POSITION_LIMITS, TORQUE_LIMITS, VELOCITY_LIMITS
from trainer.deploy.reading import Reading


@dataclass(frozen=True)
class Limits:
    """Beyond these the robot is damped. Times are the robot's seconds."""

    state_age: float = 0.03
    """Longest time without a fresh, intact state, s."""
    loop_time: float = 0.03
    """Longest time that a control step may take, s."""
    tilt: float = 1.0
    """Largest angle of the pelvis from upright, rad."""
    position_margin: float = 0.1
    """How far a joint may be beyond its range before it counts, rad: encoders and stops are not exact."""
    velocity_factor: float = 1.5
    """Share of a motor's peak speed that a measured speed may reach; a foot's impact passes the peak for a moment."""
    torque_factor: float = 1.5
    """Share of a motor's peak torque that an estimated torque may reach."""
    target_rate: float = 50.0
    """Fastest that a target may move, rad/s."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not value > 0:
                raise ValueError(f"limits: {name}: expected a positive number, got {value}")


def violation(reading: Reading, limits: Limits) -> str | None:
    """Why the robot must be damped, in words; None where everything is within limits."""
    named = {
        "orientation": reading.quat,
        "angular velocity": reading.ang_vel,
        "joint position": reading.position,
        "joint velocity": reading.velocity,
        "joint torque": reading.torque,
    }
    for name, values in named.items():
        if not np.isfinite(values).all():
            where = "" if len(values) != len(MOTORS) else f" of {MOTORS[int(np.argmin(np.isfinite(values)))]}"
            return f"{name}{where} is not finite"
    norm = float(np.linalg.norm(reading.quat))
    if abs(norm - 1.0) > 0.1:
        return f"orientation is no unit quaternion: its norm is {norm:.2f}"
    if reading.tilt > limits.tilt:
        return f"tilted by {reading.tilt:.2f} rad, the limit is {limits.tilt:.2f}"
    beyond = np.maximum(POSITION_LIMITS[:, 0] - reading.position, reading.position - POSITION_LIMITS[:, 1])
    worst = int(np.argmax(beyond))
    if beyond[worst] > limits.position_margin:
        low, high = POSITION_LIMITS[worst]
        return f"{MOTORS[worst]} at {reading.position[worst]:.3f} rad, its range is {low:.3f} to {high:.3f}"
    for what, unit, values, allowed in (
        ("turns with", "rad/s", reading.velocity, limits.velocity_factor * VELOCITY_LIMITS),
        ("bears", "N m", reading.torque, limits.torque_factor * TORQUE_LIMITS),
    ):
        worst = int(np.argmax(np.abs(values) / allowed))
        if abs(values[worst]) > allowed[worst]:
            return f"{MOTORS[worst]} {what} {abs(values[worst]):.1f} {unit}, the limit is {allowed[worst]:.1f}"
    return None


class TargetLimiter:
    """Cuts targets to what the motors can follow: rate, torque and range, in this order.

    The torque cut changes nothing that a motor would not do itself: beyond it the motor's torque is at its limit.

    Args:
        limits: The rate.
        period: Period of the control steps, s.
        stiffness: [29] N m/rad.
        damping: [29] N m s/rad.
        effort: [29] N m.
    """

    def __init__(
        self, limits: Limits, period: float, stiffness: np.ndarray, damping: np.ndarray, effort: np.ndarray
    ) -> None:
        self._step = np.float32(limits.target_rate * period)
        self._stiffness, self._damping, self._effort = stiffness, damping, effort
        self.cut = 0
        """Targets that were cut by rate or range so far."""

    def __call__(self, targets: np.ndarray, previous: np.ndarray, reading: Reading) -> np.ndarray:
        """[29] rad: the targets, within limits.

        Args:
            targets: [29] what is wanted.
            previous: [29] what was sent last.
            reading: Where the joints are.
        """
        if not np.isfinite(targets).all():
            raise ValueError(f"targets: that of {MOTORS[int(np.argmin(np.isfinite(targets)))]} is not finite")
        slow = np.clip(targets, previous - self._step, previous + self._step)
        # stiffness (target - position) - damping velocity within ± effort
        centre = reading.position + self._damping * reading.velocity / self._stiffness
        reach = self._effort / self._stiffness
        strong = np.clip(slow, centre - reach, centre + reach)
        # A target may lie beyond a stop, as in training: it then asks for torque, which `strong` bounds already.
        inside = np.clip(strong, POSITION_LIMITS[:, 0] - reach, POSITION_LIMITS[:, 1] + reach)
        self.cut += int((slow != targets).sum() + (inside != strong).sum())
        return inside.astype(np.float32, copy=False)
