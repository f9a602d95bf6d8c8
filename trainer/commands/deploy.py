"""`p3 deploy`: an exported policy on a G1, or on anything that speaks its protocol. Needs neither torch nor MuJoCo."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro

from trainer.config.command_line import parse
from trainer.deploy.bus import DOMAIN, Bus, BusError, check_interface
from trainer.deploy.controller import Controller
from trainer.deploy.g1 import LIDAR_MOUNT, MODE_MACHINE, MOTORS, check_contract
from trainer.deploy.ground import FlatGround, Ground
from trainer.deploy.guardian import ask_for_priority
from trainer.deploy.log import Kind, Recorder
from trainer.deploy.operator import HELP, Keyboard, Operator
from trainer.deploy.pilot import Pilot
from trainer.deploy.policy import Policy
from trainer.deploy.safety import Limits


@dataclass
class DeployConfig:
    """Drive a Unitree G1 with an exported policy: damping, stand up, policy, damping. Read docs/robot.md first."""

    policy: Annotated[Path, tyro.conf.Positional]
    """Policy file that p3 export wrote."""
    interface: str
    """Network interface to the robot, as `ip link` names it; lo for p3 robot-sim on this machine."""
    domain: int = DOMAIN
    """DDS domain; 0 is the robot's, 1 is unitree_mujoco's default."""
    dry_run: bool = False
    """Send nothing; print what would be sent."""
    command: tuple[float, float, float] | None = None
    """Forward m/s, left m/s, yaw rate rad/s to begin with; without it the robot is told to stand still."""
    keep_heading: float = 0.0
    """Gain, 1/s, of turning back to the heading at the policy's start; the parkour tasks were trained with 0.8."""
    seconds: float | None = None
    """End after this time of the robot's."""
    stand_seconds: float = 3.0
    """How long standing up takes."""
    damping: float = 3.0
    """Damping of every joint in the mode damping, N m s/rad."""
    limits: Limits = field(default_factory=Limits)
    """Beyond these the robot is damped."""
    mode_machine: tuple[int, ...] = MODE_MACHINE
    """What the robot may say that it is."""
    state_checksum: bool = True
    """Refuse states with a wrong checksum; unitree_mujoco sends none and needs --no-state-checksum."""
    map: bool = False
    """Listen for point clouds and odometry and give the policy an elevation map; without it the ground is flat."""
    cloud_topic: str = "rt/cloud_registered_body"
    """sensor_msgs/PointCloud2; ROS 2 topics carry the prefix rt/ on the wire."""
    odometry_topic: str = "rt/Odometry"
    """nav_msgs/Odometry of the lidar, as FAST-LIO publishes it."""
    lidar_mount: tuple[float, float, float, float, float, float] = LIDAR_MOUNT
    """x, y, z (m) and roll, pitch, yaw (rad) of the odometry's child frame in the torso's; the G1's own lidar."""
    odometry_latency: float = 0.05
    """How much older odometry is than its arrival, s."""
    log: Path | None = None
    """Where to write everything received and sent; by default a new file in logs/."""
    time_scale: float = 1.0
    """Seconds of this machine in one of the robot: 2 for a simulator at half speed."""
    realtime: bool = True
    """Ask the system for a real-time priority (root, or `ulimit -r`); goes on without where it is refused."""
    connect_seconds: float = 10.0
    """How long to wait for the robot."""


def main(arguments: Sequence[str], prog: str = "p3 deploy") -> int:
    """Runs the controller; exit code 0 after an ordered end, 1 after a fault, 2 where it did not start."""
    config = parse(DeployConfig, arguments, prog)
    try:
        policy = prepared(config)
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    try:
        return run(config, policy)
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2


def prepared(config: DeployConfig) -> Policy:
    """The policy, after everything that can be refused without a robot.

    Raises:
        FileNotFoundError, ValueError, BusError: Naming what is wrong.
    """
    for name in ("time_scale", "stand_seconds", "connect_seconds", "damping"):
        if not getattr(config, name) > 0:
            raise ValueError(f"--{name.replace('_', '-')}: expected a positive number, got {getattr(config, name)}")
    check_interface(config.interface)
    contract = Policy(config.policy).contract
    check_contract(contract)
    Operator(contract, config.command)
    return Policy(config.policy, MOTORS)


def run(config: DeployConfig, policy: Policy) -> int:
    """Connects, and runs the loop."""
    _end_on_signals()
    with contextlib.ExitStack() as stack:
        stack.enter_context(only_controller(config.domain))
        recorder = _recorder(config, policy)
        stack.callback(recorder.close)
        say = _speaker(recorder)
        pilot = Pilot(
            policy,
            config.limits,
            say,
            stand_seconds=config.stand_seconds,
            damping=config.damping,
            mode_machines=config.mode_machine,
        )
        refused = ask_for_priority() if config.realtime else "not asked for"
        if refused:
            say(f"no real-time priority ({refused}): other work on this machine can delay the control loop")
        bus = Bus(config.interface, config.domain)
        ground = _ground(config, policy)
        stack.callback(ground.close)
        controller = Controller(
            bus,
            pilot,
            Operator(policy.contract, config.command),
            ground,
            say,
            domain=config.domain,
            recorder=recorder,
            dry_run=config.dry_run,
            time_scale=config.time_scale,
            check_state=config.state_checksum,
            keep_heading=config.keep_heading,
        )
        say(f"{config.policy}: {policy.contract.task}, {policy.contract.control_hz:g} Hz; log {recorder.path}")
        controller.connect(config.connect_seconds)
        say(f"robot found on {config.interface}" + (", DRY RUN: nothing is sent" if config.dry_run else ""))
        say(ground.announce())
        print(HELP, flush=True)
        try:
            with Keyboard() as keyboard:
                controller.run(keyboard, config.seconds)
        except (KeyboardInterrupt, _Ended):
            say("interrupted")
        counts = controller.counts
        say(
            f"{counts.states} states, {counts.damaged} damaged, {counts.stale} stale; {counts.steps} steps,"
            f" {counts.missed} missed, {counts.unsent} unsent; {pilot.limiter.cut} targets cut"
        )
        say(f"state to command: {counts.latency()}")
        return 1 if pilot.machine.faults else 0


class _Ended(BaseException):
    """SIGTERM or SIGHUP came."""


def _end_on_signals() -> None:
    def end(number: int, _: Any) -> None:
        raise _Ended(signal.Signals(number).name)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    # A shell starts what it puts into the background with SIGINT ignored: whoever sends it means the robot to stop.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def only_controller(domain: int) -> Iterator[None]:
    """Holds this machine's lock on a domain: two controllers that start at once do not hear each other yet.

    Raises:
        BusError: Another process holds it.
    """
    path = Path(tempfile.gettempdir()) / f"p3-deploy-domain-{domain}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BusError(f"another p3 deploy runs on this machine for domain {domain}; end it first") from None
    try:
        yield
    finally:
        os.close(descriptor)


def _ground(config: DeployConfig, policy: Policy) -> Ground:
    if not config.map:
        return FlatGround(policy)
    from trainer.deploy.mapping import MapGround, Source  # noqa: PLC0415  only where it is asked for

    source = Source(
        config.interface,
        config.domain,
        config.cloud_topic,
        config.odometry_topic,
        config.lidar_mount,
        policy.contract.scan.standing_height,
    )
    return MapGround(policy, source, config.time_scale, config.odometry_latency)


def _recorder(config: DeployConfig, policy: Policy) -> Recorder:
    path = config.log or Path("logs") / time.strftime("deploy-%Y%m%d-%H%M%S.p3log")
    if path.exists():
        raise FileExistsError(f"--log: {path} exists")
    settings = {
        "stand_seconds": config.stand_seconds,
        "damping": config.damping,
        "mode_machines": list(config.mode_machine),
        "limits": dataclasses.asdict(config.limits),
        "state_checksum": config.state_checksum,
    }
    head = {
        "policy": str(config.policy),
        "policy_sha256": hashlib.sha256(config.policy.read_bytes()).hexdigest(),
        "motors": list(MOTORS),
        "contract": policy.contract.to_dict(),
        "settings": settings,
    }
    return Recorder(path, head)


def _speaker(recorder: Recorder) -> Callable[[str], None]:
    begin = time.monotonic()

    def say(text: str) -> None:
        now = time.monotonic()
        print(f"[{now - begin:8.3f}] {text}", flush=True)
        recorder.add(Kind.EVENT, now, text.encode())

    return say


def script() -> int:
    """`p3-deploy` of the small distribution of that name, which has no `p3`: the same as `p3 deploy`."""
    return main(sys.argv[1:], prog="p3-deploy")
