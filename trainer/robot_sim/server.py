"""The simulated robot's end of the protocol: states out, commands in, with delay, loss and faults on request.

It counts in ticks of its own (500 a second) what a test or a user wants to know: when motors became stiff, when they
were damped, how long a command took, whether the robot fell.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from trainer.deploy.bus import Bus
from trainer.deploy.latency import Stopwatch
from trainer.deploy.unitree import (
    LOW_COMMAND_TOPIC,
    LOW_STATE_TOPIC,
    DamagedMessage,
    Remote,
    command_from_wire,
    intact,
    message_types,
    sealed,
    state_to_wire,
)
from trainer.robot_sim.robot import TICK_MS, SimulatedRobot

FAULTS = ("checksum", "frozen", "nan", "joint-limit", "silence", "mode-machine", "tilt")
_PRESS_MS = 200
_LOST_AFTER = 10.0
_AGAIN_AFTER = 0.1
_PATIENCE = 60.0


@dataclass(frozen=True)
class Link:
    """How bad the connection is."""

    loss: float = 0.0
    """Share of messages lost, each way."""
    state_delay_ms: float = 0.0
    command_delay_ms: float = 0.0
    jitter_ms: float = 0.0
    """Standard deviation of the moment at which a state leaves."""


@dataclass
class Report:
    """What the robot has seen; times are the robot's seconds."""

    seconds: float = 0.0
    commands: int = 0
    damaged_commands: int = 0
    writers: int = 0
    """Processes that offered commands at the same time, at most."""
    stiff_at: float | None = None
    moved_at: float | None = None
    """When targets moved after standing: the policy."""
    fell_at: float | None = None
    """When it fell with stiff motors; a damped robot always sinks."""
    fault_at: float | None = None
    damped_at: float | None = None
    """When the motors were damped for good, after having been stiff."""
    ticks_to_damping: int | None = None
    """Ticks (2 ms) from the fault, or from the last stiff command where there was none, to damping."""
    distance: float = 0.0
    """m from where the gantry let go."""
    walked: float = 0.0
    """Seconds on its own feet: since the gantry let go, until damping, a fall or the end."""
    late_ticks: int = 0
    """Ticks that began more than 10 ms late: this machine was too slow."""
    reply: dict[str, float] = field(default_factory=dict)
    """ms of wall time from a state to the command that follows it: median, p99, max, count."""


class Server:
    """Runs the robot on the bus.

    Args:
        bus: Where.
        robot: Which.
        link: The connection's faults.
        say: Called with what happens.
        speed: Robot's seconds in one of this machine.
        lockstep: After the first command, wait for one in every control period; the speed then is the machine's.
        period_ms: Period of the controller, for `lockstep`.
        presses: (s, buttons) of the remote; each is held for 0.2 s. Times count from the first command.
        faults: (s, name of FAULTS); each lasts. Likewise.
        lidar: Called with the robot in every tick; publishes clouds and odometry.
        seed: Seed of loss and jitter.
    """

    def __init__(
        self,
        bus: Bus,
        robot: SimulatedRobot,
        link: Link,
        say: Callable[[str], None],
        *,
        speed: float = 1.0,
        lockstep: bool = False,
        period_ms: int = 20,
        presses: tuple[tuple[float, frozenset[str]], ...] = (),
        faults: tuple[tuple[float, str], ...] = (),
        lidar: Callable[[SimulatedRobot], None] | None = None,
        seed: int = 0,
    ) -> None:
        command_type, state_type = message_types()
        self._writer = bus.writer(LOW_STATE_TOPIC, state_type)
        self._reader = bus.reader(LOW_COMMAND_TOPIC, command_type, reliable=True)  # what is lost is lost on purpose
        self._wire = b""
        self.robot, self._link, self._say, self._lidar = robot, link, say, lidar
        self._speed, self._lockstep, self._period = speed, lockstep, period_ms
        self._presses, self._faults, self._rng = presses, faults, np.random.default_rng(seed)
        self._out: deque[tuple[int, np.ndarray]] = deque()
        self._in: deque[tuple[int, np.ndarray]] = deque()
        self._zero: float | None = None
        self._index = -1
        self._answered = True
        self._alone_since: float | None = None
        self._published = 0.0
        self._replies = Stopwatch()
        self._stiff_tick: int | None = None
        self._fault_tick: int | None = None
        self._frozen: np.ndarray | None = None
        self._origin: np.ndarray | None = None
        self.report = Report()

    def run(self, seconds: float | None = None, stop_after_damping: float | None = None) -> Report:
        """Until `seconds` after the first command, or until `stop_after_damping` seconds after the motors were damped.

        Where no command comes, until `seconds` and a minute are over.
        """
        begin, ticks = time.monotonic(), 0
        ended = False
        while not ended:
            self._receive()
            self._tick()
            ticks += 1
            now = self.robot.tick * 1e-3
            ended = seconds is not None and now >= seconds + (_PATIENCE if self._zero is None else self._zero)
            if stop_after_damping is not None and self.report.damped_at is not None:
                ended = ended or now >= self.report.damped_at + stop_after_damping
            if self._lockstep and self._alone_since is None and self.report.commands:
                self._await_answer()
                begin, ticks = time.monotonic(), 0
                continue
            due = begin + ticks * TICK_MS * 1e-3 / self._speed
            late = time.monotonic() - due
            if late > 0.01:
                self.report.late_ticks += 1
            if late > 0.1:  # a stopped machine is no reason to rush afterwards
                begin, ticks = time.monotonic(), 0
            elif late < 0:
                time.sleep(-late)
        return self._finished()

    def _tick(self) -> None:
        robot = self.robot
        now = robot.tick * 1e-3
        since = -1.0 if self._zero is None else now - self._zero
        pressed = [buttons for at, buttons in self._presses if at <= since < at + 1e-3 * _PRESS_MS]
        robot.remote = Remote(frozenset().union(*pressed))
        while self._in and self._in[0][0] <= robot.tick:
            self._obey(self._in.popleft()[1])
        robot.advance()
        self._out.append((robot.tick + round(self._link.state_delay_ms), robot.state()))
        while self._out and self._out[0][0] <= robot.tick:
            self._publish(self._out.popleft()[1])
        if self._lidar is not None:
            self._lidar(robot)
        self._observe(now)

    def _publish(self, state: np.ndarray) -> None:
        since = -1.0 if self._zero is None else int(state["tick"]) * 1e-3 - self._zero
        names = [name for at, name in self._faults if since >= at]
        if names and self._fault_tick is None:
            self._fault_tick = self.robot.tick
            self.report.fault_at = self.robot.tick * 1e-3
            self._say(f"fault: {', '.join(names)}")
        for name in names:
            state = self._faulty(state, name)
        if "silence" in names or self._rng.random() < self._link.loss:
            return
        if self._link.jitter_ms:
            time.sleep(abs(self._rng.normal(0.0, self._link.jitter_ms)) * 1e-3)
        index = int(state["tick"]) // self._period
        self._wire = state_to_wire(state)
        self._writer.write(self._wire)
        if index > self._index:
            self._index, self._answered, self._published = index, False, time.monotonic()

    def _faulty(self, state: np.ndarray, name: str) -> np.ndarray:
        state = state.copy()
        if name == "checksum":
            state["crc"] ^= 0x10
            return state
        if name == "frozen":
            if self._frozen is None:
                self._frozen = state
            return self._frozen
        if name == "nan":
            state["motor_state"]["q"][3] = np.nan
        elif name == "joint-limit":
            state["motor_state"]["q"][9] = 3.2
        elif name == "mode-machine":
            state["mode_machine"] = 4
        elif name == "tilt":
            state["quaternion"] = np.array([0.7, 0.0, 0.714, 0.0])
        return sealed(state)

    def _receive(self) -> None:
        for sample in self._reader.take():
            self.report.commands += 1
            self._alone_since = None
            if self._zero is None:
                self._zero = self.robot.tick * 1e-3
                self._say("a controller is there")
            if not self._answered:
                self._answered = True
                self._replies.add(time.monotonic() - self._published)
            try:
                command = command_from_wire(sample.wire)
            except DamagedMessage:
                self.report.damaged_commands += 1
                continue
            if not intact(command) or int(command["mode_machine"]) != self.robot.mode_machine:
                self.report.damaged_commands += 1  # a robot ignores these too
                continue
            if self._rng.random() >= self._link.loss:
                self._in.append((self.robot.tick + round(self._link.command_delay_ms), command))

    def _await_answer(self) -> None:
        """Lockstep: no tick before the command that answers the period's first state, unless nobody answers."""
        begin = again = time.monotonic()
        while not self._answered and time.monotonic() < begin + _LOST_AFTER:
            self._reader.wait(0.02)
            self._receive()
            if not self._answered and time.monotonic() > again + _AGAIN_AFTER:
                again = time.monotonic()
                self._writer.write(self._wire)  # the network may have lost it, which is not what lockstep is for
        if not self._answered:
            self._alone_since = time.monotonic()  # on by the clock, until a controller is heard again

    def _obey(self, command: np.ndarray) -> None:
        stiff = bool((command["motor_cmd"]["kp"][:29] > 0).any())
        tick, report = self.robot.tick, self.report
        if stiff:
            if report.stiff_at is None:
                report.stiff_at = tick * 1e-3
                self._say("motors are stiff")
            self._stiff_tick, report.damped_at, report.ticks_to_damping = tick, None, None
        elif self._stiff_tick is not None and report.damped_at is None:
            since = self._stiff_tick if self._fault_tick is None else self._fault_tick
            report.damped_at, report.ticks_to_damping = tick * 1e-3, (tick - since) // TICK_MS
            self._say(f"motors are damped, {report.ticks_to_damping} ticks after")
        self.robot.apply(command)

    def _observe(self, now: float) -> None:
        report, gantry = self.report, self.robot.gantry
        report.seconds = now
        if self.robot.tick % 100 == 0:
            report.writers = max(report.writers, self._reader.writers())
        if gantry is not None and gantry.moved_at is not None and report.moved_at is None:
            report.moved_at = now
            self._say("targets move: the policy runs")
        if gantry is not None and not gantry.slack:
            return
        if self._origin is None:
            self._origin = self.robot.position
            self._say("on its own feet")
        if report.fell_at is None and report.damped_at is None:
            report.walked += TICK_MS * 1e-3
            report.distance = float(np.linalg.norm((self.robot.position - self._origin)[:2]))
        if report.fell_at is None and report.damped_at is None and self.robot.fallen():
            report.fell_at = now
            self._say(f"fell, {report.walked:.2f} s after the gantry let go")

    def _finished(self) -> Report:
        latency = self._replies.summary()
        self.report.reply = {
            "median": latency.median, "p99": latency.p99, "max": latency.max, "count": float(latency.steps)
        }  # fmt: skip
        return self.report
