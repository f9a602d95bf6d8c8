"""The control loop over DDS: states in, commands out, a watchdog on both, and a guardian beside it.

The loop is paced by the robot's own clock (`tick`, ms): a control step is due when it has passed the next multiple of
the period, so the policy's rate is the robot's, whatever this machine's clock or a simulator's speed. This machine's
clock is the watchdog's alone.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trainer.deploy.bus import Bus, BusError, Writer
from trainer.deploy.g1 import MOTORS
from trainer.deploy.ground import Ground
from trainer.deploy.guardian import Guardian, GuardianLost
from trainer.deploy.latency import Latency, Stopwatch
from trainer.deploy.log import Given, Kind, Recorder, Result
from trainer.deploy.machine import Mode
from trainer.deploy.operator import Keyboard, Operator
from trainer.deploy.pilot import Decision, Pilot
from trainer.deploy.reading import Reading, reading_of
from trainer.deploy.unitree import (
    LOW_COMMAND_TOPIC,
    LOW_STATE_TOPIC,
    DamagedMessage,
    command_to_wire,
    intact,
    message_types,
    state_from_wire,
)

_POLL = 0.004
_LISTEN = 0.5
_CLOCK_CHECK = 0.4
_GUARDIAN_GAP = 2.5
"""Control periods without a sign of life after which the guardian damps."""
_LAST_WORD = 0.25
"""Seconds of damping commands before a controller is gone."""
_GONE = 10.0
"""Seconds of this machine without a state after which there is no robot any more."""


@dataclass
class Counts:
    """What the loop has seen."""

    states: int = 0
    damaged: int = 0
    """States with a wrong checksum or size."""
    stale: int = 0
    """States whose tick had been seen before."""
    steps: int = 0
    missed: int = 0
    """Control steps that were due and for which no state came in time."""
    unsent: int = 0
    delay: Stopwatch = field(default_factory=Stopwatch)
    """From a state's arrival to its command's departure."""

    def latency(self) -> Latency:
        """Latency of `delay`."""
        return self.delay.summary()


class Controller:
    """Everything between the network and the pilot.

    Args:
        bus: The robot's network.
        pilot: Decides.
        operator: Wishes and the velocity command.
        ground: The scan.
        say: Called with what an operator should know.
        domain: DDS domain of the bus.
        recorder: The log, if there is one.
        dry_run: Nothing is sent; what would be is told to `say` once a second.
        time_scale: Seconds of this machine in a second of the robot: more than 1 for a simulator that runs slower.
        check_state: Refuse states with a wrong checksum.
        keep_heading: Turn back to the heading at the policy's start with this gain, 1/s; 0 for not.
    """

    def __init__(
        self,
        bus: Bus,
        pilot: Pilot,
        operator: Operator,
        ground: Ground,
        say: Callable[[str], None],
        *,
        domain: int,
        recorder: Recorder | None = None,
        dry_run: bool = False,
        time_scale: float = 1.0,
        check_state: bool = True,
        keep_heading: float = 0.0,
    ) -> None:
        self._bus, self.pilot, self._operator, self._ground, self._say = bus, pilot, operator, ground, say
        self._domain, self._recorder, self._dry_run, self._scale = domain, recorder, dry_run, time_scale
        self._check_state, self._keep_heading = check_state, keep_heading
        command_type, state_type = message_types()
        self._states = bus.reader(LOW_STATE_TOPIC, state_type)
        self._others = bus.reader(LOW_COMMAND_TOPIC, command_type)
        self._command_type = command_type
        self._writer: Writer | None = None
        self._guardian: Guardian | None = None
        self.counts = Counts()
        self._reading: Reading | None = None
        self._arrived = self._fresh = 0.0
        self._step_index = -1
        self._heading = 0.0
        self._ended = False
        self._told = 0.0

    def connect(self, seconds: float = 10.0) -> None:
        """Waits for the robot and refuses one that is not to be driven: another controller's, or of another kind.

        Raises:
            BusError: No robot, another controller, or a clock that does not run in milliseconds.
            ValueError: The robot is not the one the policy is for.
        """
        end = time.monotonic() + seconds
        while self._reading is None:
            if time.monotonic() > end:
                reason = f"; {self.counts.damaged} states came, damaged" if self.counts.damaged else ""
                raise BusError(
                    f"no {LOW_STATE_TOPIC} on {self._bus.interface!r} (domain {self._domain}) in {seconds:g} s{reason}"
                )
            self._states.wait(0.05)
            self._receive()
        self.pilot.meet(self._reading)
        self._check_clock()
        end = time.monotonic() + _LISTEN
        while time.monotonic() < end:
            if self._others.take():
                raise BusError(f"another controller publishes {LOW_COMMAND_TOPIC}; end it first")
            time.sleep(0.02)
        if self._dry_run:
            return
        self._writer = self._bus.writer(LOW_COMMAND_TOPIC, self._command_type)
        gap = _GUARDIAN_GAP * self.pilot.period * self._scale
        damping = float(self.pilot.damped()["motor_cmd"]["kd"][0])
        self._guardian = Guardian(self._bus.interface, self._domain, self._reading.mode_machine, damping, gap)

    def _check_clock(self) -> None:
        """The robot's clock must run in milliseconds: it paces the loop. A slowed simulator's speed is its own."""
        assert self._reading is not None
        if self._scale != 1.0:
            return
        first, begin = self._reading.tick, time.monotonic()
        end = begin + _CLOCK_CHECK
        while time.monotonic() < end:
            self._states.wait(0.05)
            self._receive()
        rate = (self._reading.tick - first) / (time.monotonic() - begin)
        if not 300 <= rate <= 1500:
            raise BusError(
                f"the robot's tick runs at {rate:.0f} a second, expected 1000: this robot's firmware counts otherwise,"
                " or a simulator runs at another speed (--time-scale)"
            )

    def run(self, keyboard: Keyboard, seconds: float | None = None) -> None:
        """The loop, until the operator ends it or `seconds` of the robot's time are over. Always ends in damping."""
        gc.collect()
        gc.freeze()
        gc.disable()  # a collection in the loop would be a missed step
        try:
            assert self._reading is not None
            self._arrived = self._fresh = time.monotonic()
            first = None
            while not self._ended:
                self._states.wait(_POLL)
                self._turn(keyboard)
                if first is None:  # the state of the connection is older than the guardian's start
                    first = self._reading.tick if self.counts.steps else None
                    continue
                if seconds is not None and (self._reading.tick - first) * 1e-3 >= seconds:
                    self._say(f"{seconds:g} s are over")
                    break
        except BaseException as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            gc.enable()
            gc.unfreeze()
            self._finish()

    def _turn(self, keyboard: Keyboard) -> None:
        """What one wake-up of the loop does."""
        news = self._receive()
        now = time.monotonic()
        if self._others.take():
            self._fail(f"another process publishes {LOW_COMMAND_TOPIC}")
        age = (now - self._fresh) / self._scale
        if age > self.pilot.limits.state_age:
            self._fail(f"no fresh, intact state for {1e3 * age:.0f} ms")
            if now - self._arrived > self.pilot.period * self._scale:
                self._arrived = now
                self._send(Decision(Mode.DAMPING, self.pilot.damped()))  # a robot that is heard no more may still hear
                self._feed()
            for wish in self._operator.keys(keyboard.read()):
                self._ended = self._ended or wish == "quit"
            if now - self._fresh > max(_GONE, 2 * self.pilot.limits.state_age * self._scale):
                self._say(f"no state for {now - self._fresh:.0f} s: the robot is gone")
                self._ended = True
            return
        if not news:
            return
        assert self._reading is not None
        self._operate(keyboard, self._reading)
        index = self._reading.tick // round(1e3 * self.pilot.period)
        if index <= self._step_index:
            return
        if 0 <= self._step_index < index - 1:
            self.counts.missed += index - self._step_index - 1
        self._step_index = index
        self._step(self._reading, now)

    def _receive(self) -> bool:
        """Takes in what has come; True where there is a fresh, intact state among it."""
        news = False
        for sample in self._states.take():
            now = time.monotonic()
            self.counts.states += 1
            self._log(Kind.STATE, sample.wire, now)
            try:
                state = state_from_wire(sample.wire)
            except DamagedMessage:
                self.counts.damaged += 1
                continue
            if self._check_state and not intact(state):
                self.counts.damaged += 1
                continue
            reading = reading_of(state)
            if self._reading is not None and reading.tick <= self._reading.tick:
                self.counts.stale += 1
                continue
            self._reading, self._arrived, self._fresh, news = reading, now, now, True
            if self.pilot.watch(reading):
                self._send(Decision(Mode.DAMPING, self.pilot.damped()))
        return news

    def _operate(self, keyboard: Keyboard, reading: Reading) -> None:
        wishes = self._operator.remote(reading.remote) + self._operator.keys(keyboard.read())
        for wish in wishes:
            if wish == "quit":
                self._ended = True
                wish = "damping"  # noqa: PLW2901  the last of its wishes
            before = self.pilot.mode
            trouble = self._ground.trouble(time.monotonic()) if wish == "policy" else None
            self._log(Kind.WISH, json.dumps([wish, trouble]).encode())
            self.pilot.wish(wish, reading, trouble)
            if self.pilot.mode is Mode.POLICY and before is not Mode.POLICY:
                self._heading = reading.yaw

    def _step(self, reading: Reading, arrived: float) -> None:
        if self.pilot.mode is Mode.POLICY and (trouble := self._ground.trouble(arrived)):
            self._fail(trouble)
        command = self._command(reading)
        self._ground.standing(self.pilot.mode is not Mode.POLICY)
        scan = self._ground.scan(reading)
        self._log(Kind.STEP, Given(command, scan).pack(), arrived)
        decision = self.pilot.step(reading, command, scan)
        self._send(decision)
        done = time.monotonic()
        self.counts.steps += 1
        self.counts.delay.add(done - self._arrived)
        self._feed()
        self._log(Kind.RESULT, result_of(decision).pack(), done)
        if (pose := self._ground.pose()) is not None:
            self._log(Kind.POSE, np.asarray(pose, "<f8").tobytes(), done)
        if self._dry_run and done - self._told > 1.0:
            self._told = done
            self._say(_described(decision))
        took = (done - arrived) / self._scale
        if took > self.pilot.limits.loop_time:
            self._fail(f"a control step took {1e3 * took:.0f} ms")

    def _command(self, reading: Reading) -> tuple[float, float, float]:
        forward, left, turn = self._operator.command
        if self._keep_heading and self.pilot.mode is Mode.POLICY:
            error = (self._heading - reading.yaw + np.pi) % (2 * np.pi) - np.pi
            low, high = self.pilot.policy.contract.command[2]
            turn = min(max(self._keep_heading * float(error), low), high)
        return forward, left, turn

    def _fail(self, reason: str) -> None:
        if self.pilot.machine.fail(reason):
            self._log(Kind.FAULT, reason.encode())
            self._send(Decision(Mode.DAMPING, self.pilot.damped()))

    def _send(self, decision: Decision) -> None:
        wire = command_to_wire(decision.command)
        if self._writer is not None and not self._writer.write(wire):
            self.counts.unsent += 1
        self._log(Kind.COMMAND, wire)

    def _feed(self) -> None:
        if self._guardian is None:
            return
        try:
            self._guardian.feed(self.pilot.mode is not Mode.DAMPING)
        except GuardianLost as error:
            self._guardian = None
            self._fail(str(error))
            self._ended = True

    def _finish(self) -> None:
        """Damping as the last word, for a while: messages may be lost, or the robot may be busy for longer than one."""
        self.pilot.machine.damping("the end")
        end = time.monotonic() + _LAST_WORD
        while time.monotonic() < end:
            self._send(Decision(Mode.DAMPING, self.pilot.damped()))
            time.sleep(_POLL)
        if self._guardian is not None:
            self._guardian.close()

    def _log(self, kind: Kind, data: bytes, now: float | None = None) -> None:
        if self._recorder is not None:
            self._recorder.add(kind, time.monotonic() if now is None else now, data)


def result_of(decision: Decision) -> Result:
    """A decision as it is logged."""
    none = np.full(len(MOTORS), np.nan, np.float32)
    targets, std = decision.targets, decision.std
    return Result(decision.mode.value, none if targets is None else targets, none if std is None else std)


def _described(decision: Decision) -> str:
    motors = decision.command["motor_cmd"]
    if decision.mode is Mode.DAMPING:
        return f"would send: damping, kd {motors['kd'][0]:g} on every joint"
    targets = " ".join(f"{value:+.2f}" for value in motors["q"][:29])
    return f"would send: {decision.mode.name.lower()}, targets {targets}"
