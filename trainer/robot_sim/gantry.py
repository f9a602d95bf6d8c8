"""The gantry: a soft rope and a hand on the torso, as an operator uses them before a policy may walk.

It holds the robot above the ground until its joints have been stiff and still for a moment (it stands in its pose),
sets it down on its feet, and goes slack when the targets move again: the policy has taken over.
"""

from __future__ import annotations

import mujoco
import numpy as np

_RISE = 0.10
_STIFFNESS, _DAMPING = np.array([800.0, 800.0, 6000.0]), np.array([200.0, 200.0, 800.0])
_TURNING, _TURNING_DAMPING = 200.0, 20.0
_STILL_MS, _LOWER_MS, _SLACK_AFTER_MS, _SLACKEN_MS = 300, 1500, 600, 400
_MOVING = 1e-4


class Gantry:
    """Forces on the torso.

    Args:
        model: The robot's.
        feet_down: Where the torso is when the robot stands in its stance, [3] m.
    """

    def __init__(self, model: mujoco.MjModel, feet_down: np.ndarray) -> None:
        self._model = model
        self._body = model.body("torso_link").id
        self._weight = float(model.body_subtreemass[0]) * 9.81
        self._anchor = feet_down
        self._velocity = np.empty(6)
        self.slack = False
        """Whether it holds nothing any more."""
        self._last: np.ndarray | None = None
        self._still_since: int | None = None
        self.lowered_at: int | None = None
        """Tick at which the feet begin to go down."""
        self.moved_at: int | None = None
        """Tick at which the targets moved after that."""

    def see(self, tick: int, kp: np.ndarray, targets: np.ndarray) -> None:
        """What the motors are told: from it the gantry knows what the operator sees."""
        stiff = bool((kp > 0).all())
        moving = self._last is None or float(np.abs(targets - self._last).max()) > _MOVING
        self._last = targets if stiff else None
        if not stiff:
            self._still_since = None
            return
        if moving:
            self._still_since = None
            if self.lowered_at is not None and tick > self.lowered_at + _LOWER_MS and self.moved_at is None:
                self.moved_at = tick
        elif self._still_since is None:
            self._still_since = tick
        elif self.lowered_at is None and tick - self._still_since > _STILL_MS:
            self.lowered_at = tick

    def pull(self, data: mujoco.MjData, tick: int) -> None:
        """Sets the forces of the moment."""
        share = 1.0
        if self.moved_at is not None:
            share = 1.0 - min(max((tick - self.moved_at - _SLACK_AFTER_MS) / _SLACKEN_MS, 0.0), 1.0)
        force = data.xfrc_applied[self._body]
        if share == 0.0:
            self.slack = True
            force[:] = 0.0
            return
        down = 0.0 if self.lowered_at is None else min((tick - self.lowered_at) / _LOWER_MS, 1.0)
        goal = self._anchor + np.array([0.0, 0.0, _RISE * (1.0 - down)])
        mujoco.mj_objectVelocity(
            self._model, data, mujoco.mjtObj.mjOBJ_BODY, self._body, self._velocity, 0
        )  # angular, then linear
        spring = _STIFFNESS * (goal - data.xipos[self._body]) - _DAMPING * self._velocity[3:]
        # The rope carries the weight; on the ground it carries a part of it, so that the feet are loaded.
        spring[2] += self._weight * (1.0 - 0.6 * down)
        spring[2] = max(spring[2], 0.0)
        turn = np.empty(3)
        mujoco.mju_quat2Vel(turn, data.xquat[self._body], 1.0)
        force[:3] = share * spring
        force[3:] = share * (-_TURNING * turn - _TURNING_DAMPING * self._velocity[:3])
