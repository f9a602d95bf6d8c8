"""What the policy is told about the ground: nothing (flat), or the elevation map of another process."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from trainer.deploy.policy import Policy
from trainer.deploy.reading import Reading


class Ground(Protocol):
    """Where the scan comes from."""

    def announce(self) -> str:
        """What the operator must know of it before the start."""
        ...

    def trouble(self, now: float) -> str | None:
        """Why the ground is not known now; None where it is."""
        ...

    def standing(self, stands: bool) -> None:
        """Says whether the robot is in its stance, or hangs in it, rather than walking."""
        ...

    def scan(self, reading: Reading) -> np.ndarray:
        """[S]: as `Policy.scan_of` makes it."""
        ...

    def pose(self) -> np.ndarray | None:
        """[7] position and orientation (w, x, y, z) of the pelvis in the map's frame; None where nothing tells it."""
        ...

    def close(self) -> None:
        """Lets go of processes and memory."""
        ...


class FlatGround:
    """Flat ground at the height on which the robot stands.

    Args:
        policy: Whose scan it is.
    """

    def __init__(self, policy: Policy) -> None:
        scan = policy.contract.scan
        self._scan = policy.scan_of(scan.standing_height, np.zeros(len(scan.points()), np.float32))

    def announce(self) -> str:
        """What `Ground.__init__` asks for."""
        return "NO ELEVATION MAP: the policy is told that the ground is flat everywhere (--map listens for one)"

    def trouble(self, now: float) -> str | None:
        """What `Ground.trouble` asks for."""
        return None

    def standing(self, stands: bool) -> None:
        """What `Ground.standing` asks for."""

    def scan(self, reading: Reading) -> np.ndarray:
        """What `Ground.scan` asks for."""
        return self._scan

    def pose(self) -> np.ndarray | None:
        """What `Ground.pose` asks for."""
        return None

    def close(self) -> None:
        """What `Ground.close` asks for."""
