"""The two kinds of `LowCmd_` that are ever sent. Apart from the pilot, so that the guardian needs no policy."""

from __future__ import annotations

import numpy as np

from trainer.deploy.g1 import MOTORS
from trainer.deploy.unitree import ENABLED, MODE_PITCH_ROLL, new_command, sealed

_COUNT = len(MOTORS)


def damping_command(mode_machine: int, damping: float) -> np.ndarray:
    """A LOW_COMMAND that only brakes: no stiffness, no torque, `damping` N m s/rad on every joint."""
    command = new_command()
    command["mode_pr"], command["mode_machine"] = MODE_PITCH_ROLL, mode_machine
    motors = command["motor_cmd"][:_COUNT]
    motors["mode"] = ENABLED
    motors["kd"] = damping
    return sealed(command)


def stiff_command(mode_machine: int, targets: np.ndarray, stiffness: np.ndarray, damping: np.ndarray) -> np.ndarray:
    """A LOW_COMMAND that holds targets [29] rad with the given gains [29]."""
    command = new_command()
    command["mode_pr"], command["mode_machine"] = MODE_PITCH_ROLL, mode_machine
    motors = command["motor_cmd"][:_COUNT]
    motors["mode"] = ENABLED
    motors["q"], motors["kp"], motors["kd"] = targets, stiffness, damping
    return sealed(command)
