"""The states an operator knows: damping, stand, policy, and back to damping from anywhere."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Mode(Enum):
    """What the motors are doing."""

    DAMPING = 0
    """No stiffness: the robot sinks slowly."""
    STAND = 1
    """Joints go slowly to the default pose, and hold it."""
    POLICY = 2
    """The motors follow the policy's targets."""


class Machine:
    """Which mode the robot is in, and which changes are allowed.

    Args:
        say: Called with a sentence for every transition and every refusal.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self.mode = Mode.DAMPING
        self.faults = 0
        """How often `fail` damped."""
        self.fault: str | None = None
        """Why the robot was damped without having been asked to; an operator clears it by asking for damping."""

    def stand(self, trouble: str | None) -> bool:
        """Asks for the default pose; `trouble` is why that cannot be now. Returns whether it is done."""
        if self.mode is Mode.STAND:
            return False
        if self.mode is Mode.POLICY:
            return self._refuse("stand", "from the policy there is only damping")
        if self.fault:
            return self._refuse("stand", f"damped because {self.fault}; ask for damping first")
        if trouble:
            return self._refuse("stand", trouble)
        return self._enter(Mode.STAND, "asked for")

    def policy(self, trouble: str | None) -> bool:
        """Asks for the policy; as `stand`."""
        if self.mode is Mode.POLICY:
            return False
        if self.mode is Mode.DAMPING:
            return self._refuse("policy", "from damping there is only stand")
        if trouble:
            return self._refuse("policy", trouble)
        return self._enter(Mode.POLICY, "asked for")

    def damping(self, reason: str = "asked for") -> bool:
        """An operator's wish; also clears a fault."""
        if self.fault:
            self._say("fault cleared")
        self.fault = None
        return self.mode is not Mode.DAMPING and self._enter(Mode.DAMPING, reason)

    def fail(self, reason: str) -> bool:
        """Damps because of a violation. Returns whether this changed anything."""
        if self.mode is Mode.DAMPING:
            return False
        self.fault = reason
        self.faults += 1
        return self._enter(Mode.DAMPING, reason)

    def _enter(self, mode: Mode, reason: str) -> bool:
        before, self.mode = self.mode, mode
        self._say(f"{before.name.lower()} -> {mode.name.lower()}: {reason}")
        return True

    def _refuse(self, wish: str, reason: str) -> bool:
        self._say(f"no {wish}: {reason}")
        return False
