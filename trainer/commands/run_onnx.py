"""`p3 run-onnx`: an exported policy in MuJoCo, from its file alone: no torch, no rsl_rl, one robot, real time.

The loop is the one a robot's process has (`trainer.deploy.Policy`), with a simulator where the robot would be. Gains,
rate, default pose and scan come from the contract in the file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import mujoco
import numpy as np
import tyro

from trainer.config.command_line import parse
from trainer.config.names import did_you_mean
from trainer.deploy import Policy
from trainer.engines.mjcf.model import build_model
from trainer.tasks.contract import Contract
from trainer.tasks.physics import PHYSICS_DT
from trainer.tasks.robots import ROBOTS, RobotSpec
from trainer.tasks.terrains import HALF_EXTENT, PIT_FLOOR, TERRAINS, Terrain, height_map, make_terrain

PLANE = "plane"
_MAP_RESOLUTION = 0.05
"""Metres of a cell of the height map that the scan is looked up in, as in training."""
_MAX_TILT = 0.6
_MIN_HEIGHT = 0.7


class Simulation:
    """One robot on one terrain, read and driven as a robot is: joints by name, targets in, readings out.

    Args:
        robot: Which one.
        terrain: The tile; None for an endless plane.
        contract: Contract of the policy: gains, rate and scan.
        friction: Friction of the feet; the middle of training's range by default.

    Raises:
        ValueError: The contract's rate is not a whole number of physics steps.
    """

    def __init__(self, robot: RobotSpec, terrain: Terrain | None, contract: Contract, friction: float = 0.65) -> None:
        decimation = 1.0 / (contract.control_hz * PHYSICS_DT)
        if abs(decimation - round(decimation)) > 1e-6 or round(decimation) < 1:
            raise ValueError(f"control_hz: expected a divisor of {1 / PHYSICS_DT:g}, got {contract.control_hz:g}")
        self.robot, self.terrain, self.decimation = robot, terrain, round(decimation)
        self.model = build_model(robot, terrain)
        self.data = mujoco.MjData(self.model)
        joints = [self.model.joint(name) for name in robot.joint_names]
        self._qpos = np.array([joint.qposadr[0] for joint in joints])
        self._qvel = np.array([joint.dofadr[0] for joint in joints])
        self._control = np.array([self.model.actuator(name).id for name in robot.joint_names])
        feet = [self.model.body(name).id for name in robot.feet]
        self.model.geom_friction[np.isin(self.model.geom_bodyid, feet), 0] = friction
        for name, stiffness, damping in zip(contract.joint_names, contract.stiffness, contract.damping, strict=True):
            actuator = self.model.actuator(name).id
            self.model.actuator_gainprm[actuator, 0] = stiffness
            self.model.actuator_biasprm[actuator, 1:3] = -stiffness, -damping
        self._default = dict(zip(contract.joint_names, contract.default_pos, strict=True))
        self._points = np.array(contract.scan.points(), np.float32)
        self._map = None
        if terrain is not None:
            heights = height_map(terrain, HALF_EXTENT, _MAP_RESOLUTION)
            self._map = np.pad(heights, 1, constant_values=PIT_FLOOR)
        self.reset()

    def reset(self) -> None:
        """Puts the robot in its stance at the terrain's start, two centimetres up."""
        mujoco.mj_resetData(self.model, self.data)
        x, y, z = (0.0, 0.0, 0.0) if self.terrain is None else self.terrain.spawn
        height = z + self.robot.standing_height + 0.02
        if self.robot.planar:
            self.data.qpos[:2] = x, height
        else:
            self.data.qpos[:7] = x, y, height, 1.0, 0.0, 0.0, 0.0
        self.data.qpos[self._qpos] = [self._default[name] for name in self.robot.joint_names]
        mujoco.mj_forward(self.model, self.data)

    def step(self, targets: np.ndarray) -> None:
        """One control step towards joint targets [J], in the robot's order."""
        self.data.ctrl[self._control] = targets
        # The training's engine starts the contact solver afresh in each control step; so that a rollout is the same.
        self.data.qacc_warmstart[:] = 0.0
        mujoco.mj_step(self.model, self.data, self.decimation)

    @property
    def root(self) -> tuple[np.ndarray, np.ndarray]:
        """Position [3] and orientation [4] (w, x, y, z), float32."""
        qpos = self.data.qpos.astype(np.float32)
        if not self.robot.planar:
            return qpos[:3], qpos[3:7]
        half = np.float32(0.5) * qpos[2]
        quat = np.array([np.cos(half), 0.0, np.sin(half), 0.0], np.float32)
        return np.array([qpos[0], 0.0, qpos[1]], np.float32), quat

    @property
    def yaw(self) -> float:
        """Heading of the robot, rad."""
        w, x, y, z = self.root[1]
        return float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))

    def readings(self, command: Sequence[float]) -> dict[str, Any]:
        """What `Policy.act` takes, but for the scan."""
        _, quat = self.root
        velocity = self.data.qvel
        return {
            "quat": quat,
            "ang_vel": [0.0, velocity[2], 0.0] if self.robot.planar else velocity[3:6],
            "command": command,
            "joint_pos": self.data.qpos[self._qpos],
            "joint_vel": velocity[self._qvel],
        }

    def terrain_heights(self) -> np.ndarray:
        """[S]: at the contract's scan points."""
        position, _ = self.root
        cos, sin = np.float32(np.cos(self.yaw)), np.float32(np.sin(self.yaw))
        x = position[0] + cos * self._points[:, 0] - sin * self._points[:, 1]
        y = position[1] + sin * self._points[:, 0] + cos * self._points[:, 1]
        return self._height_at(x, y)

    def _height_at(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self._map is None:
            return np.zeros(len(x), np.float32)
        cells = []
        for values, half, size in zip((x, y), HALF_EXTENT, self._map.shape, strict=True):
            cell = values * np.float32(1.0 / _MAP_RESOLUTION) + np.float32(half / _MAP_RESOLUTION + 1.0)
            cells.append(np.clip(cell, 0, size - 1).astype(np.int64))
        return self._map[cells[0], cells[1]]

    def fallen(self) -> bool:
        """Tilted beyond 37°, or sunk below 70 % of the standing height."""
        position, (w, x, y, z) = self.root
        tilt = math.hypot(-2 * (x * z - w * y), -2 * (y * z + w * x))
        ground = float(self._height_at(position[:1], position[1:2])[0])
        low = position[2] - ground < _MIN_HEIGHT * self.robot.standing_height
        return tilt > _MAX_TILT or bool(low) or 2 * (x * x + y * y) - 1 > 0


@dataclass
class RunConfig:
    """Run an exported policy in MuJoCo, at its control rate."""

    policy: Annotated[Path, tyro.conf.Positional]
    """Policy file that p3 export wrote."""
    seconds: float = 10.0
    """Seconds to simulate."""
    command: tuple[float, float, float] | None = None
    """Forward m/s, left m/s, yaw rate rad/s; the middle of training's forward range by default."""
    terrain: str = PLANE
    """plane, or a terrain: stairs, gaps, single_row_stones, ...; on a terrain the yaw command keeps the heading."""
    difficulty: float = 0.0
    """Difficulty of the terrain, 0 to 1."""
    seed: int = 0
    """Seed of the terrain's random stones."""
    realtime: bool = True
    """Wait for the clock, as a robot does; otherwise as fast as it goes."""


def main(arguments: Sequence[str], prog: str = "p3 run-onnx") -> int:
    """Runs until the time is up or the robot has fallen, and prints how long the steps took."""
    config = parse(RunConfig, arguments, prog)
    policy, simulation = load(config)
    contract = policy.contract
    print(
        f"{config.policy}: {policy.metadata['p3_task']}, {policy.metadata['p3_method']}, {contract.robot} with"
        f" {len(contract.joint_names)} joints, {contract.control_hz:g} Hz, on {config.terrain}"
    )
    for line in run(policy, simulation, config):
        print(line)
    return 0


def load(config: RunConfig) -> tuple[Policy, Simulation]:
    """The policy and its robot.

    Raises:
        FileNotFoundError, ValueError: The file is missing, damaged or foreign, or a setting cannot be.
    """
    policy = Policy(config.policy)
    robot = _robot(config.policy, policy.contract)
    policy = Policy(config.policy, robot.joint_names)  # the simulation's order
    if config.terrain == PLANE:
        return policy, Simulation(robot, None, policy.contract)
    if config.terrain not in TERRAINS:
        hint = did_you_mean(config.terrain, (PLANE, *TERRAINS))
        raise ValueError(f"--terrain: expected one of {', '.join((PLANE, *TERRAINS))}, got {config.terrain!r}{hint}")
    terrain = make_terrain(config.terrain, config.difficulty, np.random.default_rng(config.seed))
    return policy, Simulation(robot, terrain, policy.contract)


def _robot(path: Path, contract: Contract) -> RobotSpec:
    """The robot of a policy: ours, or that of its task, where an installed package brings it."""
    if contract.robot in ROBOTS:
        return ROBOTS[contract.robot]
    from trainer.tasks.registry import TASKS  # noqa: PLC0415  it brings torch, which ours do not need

    if contract.task in TASKS and TASKS[contract.task].robot.name == contract.robot:
        return TASKS[contract.task].robot
    raise ValueError(
        f"{path}: for the robot {contract.robot!r}; here are {', '.join(ROBOTS)}, and no installed package brings its"
        f" task {contract.task!r}"
    )


def act(policy: Policy, simulation: Simulation, command: Sequence[float]) -> Any:
    """One step of the policy on what the simulation's sensors say."""
    readings = simulation.readings(command)
    readings["scan"] = policy.scan_of(simulation.root[0][2], simulation.terrain_heights())
    return policy.act(readings)


def run(policy: Policy, simulation: Simulation, config: RunConfig) -> list[str]:
    """The control loop; returns what to print."""
    period = 1.0 / policy.contract.control_hz
    ranges = policy.contract.command
    command = list(config.command or (0.5 * (ranges[0][0] + ranges[0][1]), 0.0, 0.0))
    start, steps, late, uncertainty = simulation.root[0], round(config.seconds / period), 0, []
    begin = time.perf_counter()
    fell, done = False, 0
    for done in range(1, steps + 1):
        if simulation.terrain is not None and not simulation.robot.planar:
            command[2] = min(max(-0.8 * simulation.yaw, ranges[2][0]), ranges[2][1])
        action = act(policy, simulation, command)
        simulation.step(action.targets)
        if action.std is not None:
            uncertainty.append(float(action.std.mean()))
        if simulation.fallen():
            fell = True
            break
        if config.realtime:
            left = begin + done * period - time.perf_counter()
            late += left < 0
            time.sleep(max(0.0, left))
    passed, distance = time.perf_counter() - begin, simulation.root[0] - start
    ending = f"fell after {done * period:.2f} s" if fell else f"on its feet for {done * period:.2f} s"
    lines = [f"{ending}, {math.hypot(distance[0], distance[1]):.2f} m from the start", f"policy: {policy.latency()}"]
    lines.append(f"loop: {done / passed:.1f} steps/s" + (f", {late} of {done} late" if config.realtime else ""))
    if uncertainty:
        lines.append(f"std of the targets from the latent: mean {np.mean(uncertainty):.4f} rad")
    return lines
