"""`p3 robot-sim`: a G1 in MuJoCo as a process of its own, for `p3 deploy` to drive over the loopback interface."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer.config.command_line import parse
from trainer.config.names import did_you_mean
from trainer.deploy.bus import DOMAIN, LOOPBACK, Bus
from trainer.deploy.unitree import Remote, remote_bytes
from trainer.robot_sim.robot import SimulatedRobot
from trainer.robot_sim.server import FAULTS, Link, Server
from trainer.tasks.terrains import TERRAINS, Terrain, make_terrain

PLANE = "plane"


@dataclass
class RobotSimConfig:
    """A simulated G1 that speaks the robot's protocol on this machine alone. It hangs on a gantry until it stands."""

    domain: int = DOMAIN
    """DDS domain; the same as of p3 deploy."""
    seconds: float | None = None
    """End this time of the robot's after the first command came; without it, on Ctrl-C."""
    terrain: str = PLANE
    """plane, or a terrain: stairs, gaps, single_row_stones, ..."""
    difficulty: float = 0.0
    """Difficulty of the terrain, 0 to 1."""
    seed: int = 0
    """Seed of the terrain's stones, of the sensors' noise and of lost messages."""
    noise: float = 1.0
    """Sensor noise, as a multiple of the usual."""
    loss: float = 0.0
    """Share of messages lost, each way, 0 to 1."""
    state_delay_ms: float = 0.0
    """How much later states arrive."""
    command_delay_ms: float = 0.0
    """How much later commands arrive."""
    jitter_ms: float = 0.0
    """Standard deviation of the moment at which a state leaves."""
    motor_hz: int = 1000
    """Rate of the motors' own PD and of the physics."""
    speed: float = 1.0
    """Robot's seconds in one of this machine; p3 deploy needs --time-scale 1/SPEED then."""
    lockstep: bool = False
    """Wait for a command in every control period: as fast as the machine, and the same on a busy one."""
    gantry: bool = True
    """Hang the robot on a gantry until the policy runs; without, it stands in its stance and falls unless driven."""
    mode_machine: int = 5
    """What the robot says that it is."""
    press: tuple[str, ...] = ()
    """Buttons of the wireless remote, SECONDS:BUTTONS each, as 1:L2+up 6:R1+X; times count from the first command."""
    fault: tuple[str, ...] = ()
    """Faults from a time on, SECONDS:NAME each: checksum, frozen, nan, joint-limit, silence, mode-machine, tilt."""
    lidar: bool = False
    """Publish point clouds and odometry of a simulated lidar."""
    odometry_drift: float = 0.01
    """Error of the odometry's position, as a share of the way."""
    odometry_delay_ms: float = 50.0
    """How much later odometry and clouds arrive."""
    report: Path | None = None
    """Where to write what the robot has seen, as JSON."""
    stop_after_damping: float | None = None
    """End this time after the motors were damped, s."""


def main(arguments: Sequence[str], prog: str = "p3 robot-sim") -> int:
    """Runs the robot until its time is up."""
    config = parse(RobotSimConfig, arguments, prog)
    server = serve(config)
    print(f"a G1 on {config.terrain}, {LOOPBACK}, domain {config.domain}: p3 deploy POLICY --interface lo", flush=True)
    try:
        report = server.run(config.seconds, config.stop_after_damping)
    except KeyboardInterrupt:
        report = server.report
    if config.report is not None:
        config.report.write_text(json.dumps(dataclasses.asdict(report), indent=1))
    print(json.dumps(dataclasses.asdict(report)), flush=True)
    return 0


def serve(config: RobotSimConfig) -> Server:
    """The robot on its bus.

    Raises:
        ValueError, OSError: A setting cannot be; names it.
    """
    presses = tuple((at, frozenset(what.split("+"))) for at, what in map(_timed, config.press))
    for _, buttons in presses:
        remote_bytes(Remote(buttons))
    faults = tuple(_timed(text) for text in config.fault)
    for _, name in faults:
        if name not in FAULTS:
            raise ValueError(f"--fault: expected one of {', '.join(FAULTS)}, got {name!r}")
    for name, low, high in (("loss", 0, 1), ("speed", 1e-3, 10), ("noise", 0, 100), ("jitter_ms", 0, 1000)):
        if not low <= getattr(config, name) <= high:
            raise ValueError(f"--{name.replace('_', '-')}: expected {low} to {high}, got {getattr(config, name)}")
    robot = SimulatedRobot(
        terrain_of(config), config.seed, config.noise, config.motor_hz, config.gantry, config.mode_machine
    )
    bus = Bus(LOOPBACK, config.domain)
    lidar = None
    if config.lidar:
        from trainer.robot_sim.lidar import LidarPublisher  # noqa: PLC0415  only where it is asked for

        lidar = LidarPublisher(
            bus, robot, drift=config.odometry_drift, delay_ms=config.odometry_delay_ms, seed=config.seed
        )

    def say(text: str) -> None:
        print(f"[{robot.tick * 1e-3:8.3f}] {text}", flush=True)

    return Server(
        bus,
        robot,
        Link(config.loss, config.state_delay_ms, config.command_delay_ms, config.jitter_ms),
        say,
        speed=config.speed,
        lockstep=config.lockstep,
        presses=presses,
        faults=faults,
        lidar=lidar,
        seed=config.seed,
    )


def terrain_of(config: RobotSimConfig) -> Terrain | None:
    """The tile; None for the plane.

    Raises:
        ValueError: There is no such terrain or difficulty.
    """
    if config.terrain == PLANE:
        return None
    if config.terrain not in TERRAINS:
        hint = did_you_mean(config.terrain, (PLANE, *TERRAINS))
        raise ValueError(f"--terrain: expected one of {', '.join((PLANE, *TERRAINS))}, got {config.terrain!r}{hint}")
    return make_terrain(config.terrain, config.difficulty, np.random.default_rng(config.seed))


def _timed(text: str) -> tuple[float, str]:
    """SECONDS:WHAT."""
    at, _, what = text.partition(":")
    try:
        seconds = float(at)
    except ValueError:
        seconds = -1.0
    if seconds < 0 or not what:
        raise ValueError(f"expected SECONDS:WHAT, as 1.5:L2+up, got {text!r}")
    return seconds, what
