"""The log of a deployment, run again through the same code, and as arrays.

A replay gives the pilot the states, wishes, commands and scans of the log and compares what it decides, byte by byte,
with what was sent. It needs neither torch nor MuJoCo.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainer.deploy.controller import result_of
from trainer.deploy.g1 import MOTORS
from trainer.deploy.log import Given, Kind, Record, Result
from trainer.deploy.machine import Mode
from trainer.deploy.pilot import Decision, Pilot
from trainer.deploy.policy import Policy
from trainer.deploy.reading import Reading, reading_of
from trainer.deploy.safety import Limits
from trainer.deploy.unitree import DamagedMessage, command_to_wire, intact, state_from_wire


@dataclass
class Comparison:
    """How a replay went."""

    commands: int = 0
    """Commands that were compared."""
    different: int = 0
    """Commands that are not the log's, byte by byte."""
    targets: int = 0
    """Steps of the policy compared."""
    different_targets: int = 0
    first: str | None = None
    """Where the first difference is."""


@dataclass
class Table:
    """A log as arrays, one row a control step."""

    time: list[float] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    command: list[tuple[float, ...]] = field(default_factory=list)
    position: list[np.ndarray] = field(default_factory=list)
    velocity: list[np.ndarray] = field(default_factory=list)
    torque: list[np.ndarray] = field(default_factory=list)
    quat: list[np.ndarray] = field(default_factory=list)
    wanted: list[np.ndarray] = field(default_factory=list)
    sent: list[np.ndarray] = field(default_factory=list)
    std: list[np.ndarray] = field(default_factory=list)
    scan: list[np.ndarray] = field(default_factory=list)
    pose: list[np.ndarray] = field(default_factory=list)

    def arrays(self) -> dict[str, np.ndarray]:
        """By name; `motors` names the columns of the joints."""
        named = {name: np.array(values) for name, values in vars(self).items()}
        return {**named, "motors": np.array(MOTORS)}


def policy_of(head: dict[str, Any], path: Path | None) -> Policy:
    """The policy of a log.

    Raises:
        ValueError: The file is another one than was deployed.
    """
    path = path or Path(head["policy"])
    policy = Policy(path, MOTORS)
    if hashlib.sha256(path.read_bytes()).hexdigest() != head["policy_sha256"]:
        raise ValueError(f"{path}: not the policy of the log (--policy names another file)")
    return policy


def replay(head: dict[str, Any], records: Sequence[Record], policy: Policy) -> tuple[Comparison, Table]:
    """Runs the records through a pilot of the log's settings."""
    settings = head["settings"]
    pilot = Pilot(
        policy,
        Limits(**settings["limits"]),
        lambda _: None,
        stand_seconds=settings["stand_seconds"],
        damping=settings["damping"],
        mode_machines=settings["mode_machines"],
    )
    run = _Run(pilot, bool(settings["state_checksum"]))
    for record in records:
        run.take(record)
    return run.comparison, run.table


class _Run:
    """A replay under way."""

    def __init__(self, pilot: Pilot, check_state: bool) -> None:
        self._pilot, self._check_state = pilot, check_state
        self.comparison, self.table = Comparison(), Table()
        self._reading: Reading | None = None
        self._decision: Decision | None = None
        self._due: list[bytes] = []

    def take(self, record: Record) -> None:
        """Takes in the next record of the log."""
        pilot, reading = self._pilot, self._reading
        if record.kind is Kind.STATE:
            self._state(record.data)
        elif record.kind is Kind.FAULT:
            pilot.machine.fail(record.data.decode())
        elif reading is None:
            return
        elif record.kind is Kind.WISH:
            wish, trouble = json.loads(record.data)
            pilot.wish(wish, reading, trouble)
        elif record.kind is Kind.STEP:
            given = Given.unpack(record.data)
            self._decision = pilot.step(reading, given.command, given.scan)
            self._due.append(command_to_wire(self._decision.command))
            self._note(record.time, reading, given)
        elif record.kind is Kind.COMMAND:
            # Whatever is sent outside of a step is damping.
            expected = self._due.pop() if self._due else command_to_wire(pilot.damped())
            self.comparison.commands += 1
            if expected != record.data:
                self.comparison.different += 1
                self._differs(f"command at tick {reading.tick}")
        elif record.kind is Kind.RESULT and self._decision is not None:
            self._result(record.data, reading)
        elif record.kind is Kind.POSE:
            self.table.pose.append(np.frombuffer(record.data, "<f8"))

    def _state(self, data: bytes) -> None:
        """As the controller's: damaged and stale states are passed over."""
        try:
            state = state_from_wire(data)
        except DamagedMessage:
            return
        if self._check_state and not intact(state):
            return
        reading = reading_of(state)
        if self._reading is None:
            self._pilot.meet(reading)
        elif reading.tick <= self._reading.tick:
            return
        self._reading = reading
        self._pilot.watch(reading)

    def _result(self, data: bytes, reading: Reading) -> None:
        assert self._decision is not None
        logged, again = Result.unpack(data), result_of(self._decision)
        if logged.mode == Mode.POLICY.value:
            self.comparison.targets += 1
            if logged.pack() != again.pack():
                self.comparison.different_targets += 1
                self._differs(f"targets at tick {reading.tick}")
        self.table.wanted.append(logged.targets)
        self.table.std.append(logged.std)

    def _differs(self, where: str) -> None:
        self.comparison.first = self.comparison.first or where

    def _note(self, time: float, reading: Reading, given: Given) -> None:
        assert self._decision is not None
        table = self.table
        table.time.append(time)
        table.mode.append(self._decision.mode.value)
        table.command.append(given.command)
        table.scan.append(given.scan)
        for name in ("position", "velocity", "torque", "quat"):
            getattr(table, name).append(getattr(reading, name))
        table.sent.append(self._decision.command["motor_cmd"]["q"][: len(MOTORS)].copy())


def story(head: dict[str, Any], records: Sequence[Record]) -> Iterator[str]:
    """What the operator was told."""
    begin = records[0].time if records else 0.0
    for record in records:
        if record.kind is Kind.EVENT:
            yield f"[{record.time - begin:8.3f}] {record.data.decode()}"
