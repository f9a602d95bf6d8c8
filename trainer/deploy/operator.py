"""The operator: keys of the terminal and buttons of the wireless remote become wishes and a velocity command."""

from __future__ import annotations

import contextlib
import os
import select
import sys
from collections.abc import Sequence
from typing import Any

from trainer.deploy.unitree import Remote
from trainer.tasks.contract import Contract

HELP = """\
  key     remote        what
  1       L2 + up       stand up slowly to the default pose
  2       R1 + X        the policy takes over
  space   L2 + B        damping, from anywhere; also clears a fault
  w s     left stick    faster forward, slower
  a d     left stick    to the left, to the right
  q e     right stick   turn left, turn right
  0       -             command zero
  x       L2 + select   damping, then end"""

_CHORDS = {
    frozenset(("L2", "up")): "stand",
    frozenset(("R1", "X")): "policy",
    frozenset(("L2", "B")): "damping",
    frozenset(("L2", "select")): "quit",
}
_KEYS = {"1": "stand", "2": "policy", " ": "damping", "x": "quit"}
_MOVES = {"w": (0, 1), "s": (0, -1), "a": (1, 1), "d": (1, -1), "q": (2, 1), "e": (2, -1)}
_DEAD_ZONE = 0.1
_STEPS = 5


class Operator:
    """Collects wishes; keeps the command within what the policy was trained for.

    Args:
        contract: Contract of the policy, for its command ranges.
        command: What to begin with; None for standing still.

    Raises:
        ValueError: `command` is outside the contract's ranges.
    """

    def __init__(self, contract: Contract, command: Sequence[float] | None = None) -> None:
        self._ranges = contract.command
        self.command = [0.0, 0.0, 0.0]
        if command is not None:
            for name, value, (low, high) in zip(("forward", "left", "yaw rate"), command, self._ranges, strict=True):
                if value != 0 and not low - 1e-6 <= value <= high + 1e-6:
                    raise ValueError(f"--command: {name} {value:g}: the policy was trained for {low:g} to {high:g}")
            self.command = [float(value) for value in command]
        self._held: frozenset[str] = frozenset()
        self._steered = False

    def remote(self, remote: Remote) -> list[str]:
        """Wishes of the buttons that have gone down since the last call; sticks set the command."""
        wishes = []
        for chord, wish in _CHORDS.items():
            if chord <= remote.pressed and not chord <= self._held:
                wishes.append(wish)
        self._held = remote.pressed
        sticks = (remote.left_y, -remote.left_x, -remote.right_x)
        if any(abs(stick) > _DEAD_ZONE for stick in sticks):
            self.command = [self._scaled(axis, stick) for axis, stick in enumerate(sticks)]
            self._steered = True
        elif self._steered:  # let go: stop, once; a command from the keyboard stays
            self.command, self._steered = [0.0, 0.0, 0.0], False
        return wishes

    def keys(self, typed: str) -> list[str]:
        """Wishes of what was typed."""
        wishes = []
        for key in typed:
            if key in _KEYS:
                wishes.append(_KEYS[key])
            elif key == "0":
                self.command = [0.0, 0.0, 0.0]
            elif key in _MOVES:
                axis, sign = _MOVES[key]
                self.command[axis] = self._stepped(axis, sign)
        return wishes

    def _scaled(self, axis: int, stick: float) -> float:
        """A stick's deflection, on the part of the training's range that lies on its side; 0 in the middle."""
        if abs(stick) <= _DEAD_ZONE:
            return 0.0
        low, high = self._ranges[axis]
        share = (abs(stick) - _DEAD_ZONE) / (1 - _DEAD_ZONE)
        near, far = (max(low, 0.0), high) if stick > 0 else (min(high, 0.0), low)
        return near + share * (far - near) if far * stick > 0 else 0.0

    def _stepped(self, axis: int, sign: int) -> float:
        low, high = self._ranges[axis]
        value = self.command[axis] + sign * (high - low) / _STEPS
        if low > 0 and value < low - 1e-6:  # between standing and the slowest trained walk there is nothing
            return low if sign > 0 else 0.0
        return min(max(value, low), high)


class Keyboard:
    """The terminal's keys without waiting for Enter; none where standard input is no terminal."""

    def __init__(self) -> None:
        self._saved: Any = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Keyboard:
        if sys.stdin is not None and sys.stdin.isatty():
            import termios  # noqa: PLC0415  Unix only, as the robot's interface is in practice
            import tty  # noqa: PLC0415

            descriptor = sys.stdin.fileno()
            self._saved = termios.tcgetattr(descriptor)
            tty.setcbreak(descriptor)
            self._stack.callback(termios.tcsetattr, descriptor, termios.TCSADRAIN, self._saved)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> str:
        """What was typed since the last call."""
        if self._saved is None or not select.select([sys.stdin], [], [], 0)[0]:
            return ""
        return os.read(sys.stdin.fileno(), 64).decode(errors="ignore")
