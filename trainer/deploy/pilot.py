"""From states to motor commands: the mode's targets, limited, as a `LowCmd_`. Knows no network and no clock of its own.

The same readings, wishes, commands and scans give the same bytes: that is what a replay of a log relies on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from trainer.deploy.g1 import MODE_MACHINE, MOTORS, by_motor, check_contract
from trainer.deploy.machine import Machine, Mode
from trainer.deploy.motor_commands import damping_command, stiff_command
from trainer.deploy.policy import Policy
from trainer.deploy.reading import Reading
from trainer.deploy.safety import Limits, TargetLimiter, violation

_STANDING_ERROR = 0.35


@dataclass(frozen=True)
class Decision:
    """What one control step ends in."""

    mode: Mode
    command: np.ndarray
    """A LOW_COMMAND record with its checksum."""
    targets: np.ndarray | None = None
    """[29] rad: what the policy wanted, before limits."""
    std: np.ndarray | None = None
    """[29] rad: what the latent's uncertainty does to the targets, where the policy was exported with it."""


class Pilot:
    """The controller without its network.

    Args:
        policy: With `joint_order` being MOTORS.
        limits: Limits of readings and targets.
        say: Called with a sentence for everything an operator should know.
        stand_seconds: How long standing up takes.
        damping: Damping of the damping mode, N m s/rad.
        mode_machines: The robot's `mode_machine` must be one of these.

    Raises:
        ValueError: The policy is not for this robot.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        say: Callable[[str], None],
        *,
        stand_seconds: float = 3.0,
        damping: float = 3.0,
        mode_machines: Sequence[int] = MODE_MACHINE,
    ) -> None:
        check_contract(policy.contract)
        if policy.joint_order != MOTORS:
            raise ValueError("policy: expected joint_order to be the motors' order")
        contract = policy.contract
        self.policy, self.limits, self.machine, self._say = policy, limits, Machine(say), say
        self.period = round(1000.0 / contract.control_hz) / 1000.0
        self._stand_seconds, self._damping, self._allowed = stand_seconds, damping, tuple(mode_machines)
        self._stiffness, self._gain = by_motor(contract, contract.stiffness), by_motor(contract, contract.damping)
        self._default = by_motor(contract, contract.default_pos)
        effort = by_motor(contract, contract.effort)
        self.limiter = TargetLimiter(limits, self.period, self._stiffness, self._gain, effort)
        self._mode_machine: int | None = None
        self._sent = self._default
        self._start = self._default
        self._steps = 0

    @property
    def mode(self) -> Mode:
        """The mode that the robot is in now."""
        return self.machine.mode

    def watch(self, reading: Reading) -> bool:
        """Holds every state, not only those of control steps, against the limits. Returns whether it damped."""
        trouble = violation(reading, self.limits)
        if trouble is None and self._mode_machine not in (None, reading.mode_machine):
            trouble = f"mode_machine changed from {self._mode_machine} to {reading.mode_machine}"
        return trouble is not None and self.machine.fail(trouble)

    def meet(self, reading: Reading) -> None:
        """The first state: refuses a robot that is not the one the policy is for.

        Raises:
            ValueError: Its `mode_machine` is another one.
        """
        if reading.mode_machine not in self._allowed:
            raise ValueError(
                f"robot: mode_machine {reading.mode_machine}; the policy's gains are for"
                f" {', '.join(map(str, self._allowed))} (--mode-machine allows others)"
            )
        self._mode_machine = reading.mode_machine

    def wish(self, wish: str, reading: Reading, trouble: str | None = None) -> None:
        """An operator's wish: stand, policy or damping. `trouble` is what else speaks against leaving damping."""
        if wish == "damping":
            self.machine.damping()
        elif wish == "stand" and self.machine.stand(trouble or violation(reading, self.limits)):
            self._start, self._steps = reading.position, 0
            self._sent = reading.position
        elif wish == "policy" and self.machine.policy(trouble or self._not_standing(reading)):
            self.policy.reset()

    def _not_standing(self, reading: Reading) -> str | None:
        if self._steps * self.period < self._stand_seconds:
            return "it is still standing up"
        error = np.abs(reading.position - self._default)
        worst = int(np.argmax(error))
        if error[worst] > _STANDING_ERROR:
            return f"{MOTORS[worst]} is {error[worst]:.2f} rad from the default pose"
        return None

    def step(self, reading: Reading, command: Sequence[float], scan: np.ndarray) -> Decision:
        """One control step. An error of the policy damps, as a violation does.

        Args:
            reading: The newest state.
            command: Forward m/s, left m/s, yaw rate rad/s.
            scan: [S] as `Policy.scan_of` makes it.
        """
        wanted = std = None
        if self.mode is Mode.STAND:
            share = min(self._steps * self.period / self._stand_seconds, 1.0)
            smooth = np.float32(share * share * (3 - 2 * share))
            wanted = self._start + smooth * (self._default - self._start)
            self._steps += 1
        elif self.mode is Mode.POLICY:
            try:
                action = self.policy.act(readings_of(reading, command, scan))
                wanted, std = action.targets, action.std
            except ValueError as error:
                self.machine.fail(str(error))
        return self._decide(reading, wanted, std)

    def _decide(self, reading: Reading, wanted: np.ndarray | None, std: np.ndarray | None) -> Decision:
        if self.mode is not Mode.DAMPING and wanted is not None:
            try:
                self._sent = self.limiter(wanted, self._sent, reading)
            except ValueError as error:
                self.machine.fail(str(error))
        if self.mode is Mode.DAMPING:
            return Decision(Mode.DAMPING, self.damped())
        message = stiff_command(reading.mode_machine, self._sent, self._stiffness, self._gain)
        return Decision(self.mode, message, wanted, std)

    def damped(self) -> np.ndarray:
        """The LOW_COMMAND of the damping mode."""
        return damping_command(self._mode_machine or 0, self._damping)


def readings_of(reading: Reading, command: Sequence[float], scan: np.ndarray) -> dict[str, object]:
    """What `Policy.act` takes."""
    return {
        "ang_vel": reading.ang_vel,
        "quat": reading.quat,
        "command": command,
        "joint_pos": reading.position,
        "joint_vel": reading.velocity,
        "scan": scan,
    }
