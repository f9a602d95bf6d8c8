"""A deployment as one figure: what was asked, what was measured, how unsure the policy was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.deploy.g1 import MOTORS, TORQUE_LIMITS
from trainer.deploy.machine import Mode

if TYPE_CHECKING:
    from trainer.deploy.replay import Table

_SHOWN = ("left_hip_pitch_joint", "left_knee_joint", "right_hip_pitch_joint", "right_knee_joint")


def draw(table: Table, path: Path) -> None:
    """Writes the figure.

    Raises:
        ValueError: There is no control step in the table, or matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  only a figure needs it
    except ImportError as error:
        raise ValueError("--plot: needs matplotlib; run: pip install matplotlib") from error
    if not table.time:
        raise ValueError("--plot: the log has no control step")
    found = table.arrays()
    seconds = found["time"] - found["time"][0]
    figure = Figure(figsize=(11, 12), layout="constrained")
    axes: Any = figure.subplots(5, 1, sharex=True)
    for joint in _SHOWN:
        index = MOTORS.index(joint)
        (line,) = axes[0].plot(seconds, found["position"][:, index], label=joint.removesuffix("_joint"))
        axes[0].plot(seconds, found["sent"][:, index], color=line.get_color(), alpha=0.4, linestyle="--")
    axes[0].set_ylabel("position, sent (dashed), rad")
    axes[1].plot(seconds, np.abs(found["torque"] / TORQUE_LIMITS).max(axis=1))
    axes[1].set_ylabel("largest torque, share of peak")
    _, x, y, _ = found["quat"].T
    axes[2].plot(seconds, np.arccos(np.clip(1 - 2 * (x * x + y * y), -1, 1)))
    axes[2].set_ylabel("tilt, rad")
    axes[3].plot(seconds, found["command"], label=("forward m/s", "left m/s", "yaw rate rad/s"))
    axes[3].set_ylabel("command")
    unsure = np.full(len(seconds), np.nan)
    policy = (found["mode"] == Mode.POLICY.value) & np.isfinite(found["std"]).all(axis=1)
    unsure[policy] = found["std"][policy].mean(axis=1)
    axes[4].plot(seconds, unsure)
    axes[4].set_ylabel("std from the latent, mean, rad")
    axes[4].set_xlabel("s")
    for axis in axes:
        for mode, colour in ((Mode.STAND, "0.93"), (Mode.POLICY, "#e3f0e3")):
            within, across = found["mode"] == mode.value, axis.get_xaxis_transform()
            axis.fill_between(seconds, 0, 1, where=within, color=colour, zorder=0, transform=across)
    axes[0].legend(loc="upper right", fontsize="small")
    axes[3].legend(loc="upper right", fontsize="small")
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
