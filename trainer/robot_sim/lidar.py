"""A lidar like Livox's Mid-360 on the G1's head, upside down, and lidar odometry that drifts and is late.

Rays are spread as the real one spreads them: never twice the same way, over 360° and from 7° above to 52° below the
horizon as it is mounted. A cloud is what a tenth of a second has seen, in the lidar's frame at its end, as FAST-LIO
publishes it after it has taken out the motion. The odometry's frame is the lidar's own at the start.
"""

from __future__ import annotations

import math
from collections import deque

import mujoco
import numpy as np

from trainer.deploy.bus import Bus
from trainer.deploy.g1 import LIDAR_MOUNT
from trainer.deploy.ros import Cloud, Odometry, cloud_to_wire, odometry_to_wire
from trainer.deploy.rotation import of_angles, quat_of
from trainer.robot_sim.robot import TICK_MS, SimulatedRobot
from trainer.tasks.terrains import PIT_FLOOR

CLOUD_TOPIC, ODOMETRY_TOPIC = "rt/cloud_registered_body", "rt/Odometry"
CLOUD_MS, ODOMETRY_MS = 100, 20
POINTS = 20_000
"""Rays of a cloud."""
_LOW, _HIGH = math.radians(-7.0), math.radians(52.0)  # in the lidar's own frame, whose z points down on the robot
_RANGE = (0.1, 12.0)
_GOLDEN = (0.7548776662466927, 0.5698402909980532)  # the plane's even sequence with the least gaps


class Lidar:
    """Rays into a MuJoCo model.

    Args:
        model: Robot and terrain; only the terrain is seen.
        noise: Standard deviation of a range, m.
        seed: Seed of the noise.
        floor: Height of the pits' floor, m; None where there are none.
    """

    def __init__(self, model: mujoco.MjModel, noise: float = 0.02, seed: int = 0, floor: float | None = None) -> None:
        self._floor = floor
        self._model, self._noise, self._rng = model, noise, np.random.default_rng(seed)
        self._torso = model.body("torso_link").id
        self._at, self._turn = np.array(LIDAR_MOUNT[:3]), of_angles(*LIDAR_MOUNT[3:])
        self._seen = np.zeros(mujoco.mjNGROUP, np.uint8)
        self._seen[0] = 1
        model.geom_group[:] = np.where(model.geom_bodyid == 0, 0, 4)
        self._fired = 0

    def pose(self, data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
        """Position [3] and rotation [3, 3] in the world."""
        torso = data.xmat[self._torso].reshape(3, 3)
        return data.xpos[self._torso] + torso @ self._at, torso @ self._turn

    def fire(self, data: mujoco.MjData, count: int) -> np.ndarray:
        """[P, 3]: world points of the next `count` rays that hit something."""
        at, turn = self.pose(data)
        index = self._fired + np.arange(count)
        self._fired += count
        azimuth = 2 * np.pi * (index * _GOLDEN[0] % 1.0)
        # Evenly by area, not by angle: as many points a solid angle everywhere.
        height = math.sin(_LOW) + (math.sin(_HIGH) - math.sin(_LOW)) * (index * _GOLDEN[1] % 1.0)
        flat = np.sqrt(1 - height * height)
        rays = np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), height], axis=1) @ turn.T
        distance, geometry = np.empty(count), np.empty(count, np.int32)
        mujoco.mj_multiRay(
            self._model, data, at, np.ascontiguousarray(rays).ravel(), self._seen, 1, -1, geometry, distance, None,
            count, _RANGE[1],
        )  # fmt: skip
        distance[geometry < 0] = np.inf
        if self._floor is not None:  # a pit has a floor, though the terrains' boxes leave it out
            with np.errstate(divide="ignore"):
                floor = (self._floor - at[2]) / rays[:, 2]
            distance = np.minimum(distance, np.where(floor > 0, floor, np.inf))
        hit = (distance >= _RANGE[0]) & (distance <= _RANGE[1])
        distance = distance[hit] + self._noise * self._rng.standard_normal(int(hit.sum()))
        return at + distance[:, None] * rays[hit]


class Drift:
    """Lidar odometry: the true way with an error that grows with its length.

    Args:
        share: Drift as a share of the way.
        seed: Seed of its direction.
    """

    def __init__(self, share: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed + 1)
        direction = rng.standard_normal(3)
        self._direction = direction / np.linalg.norm(direction)
        self._share, self._sign = share, float(rng.choice((-1.0, 1.0)))
        self._start: tuple[np.ndarray, np.ndarray] | None = None
        self._last = np.zeros(3)
        self._way = 0.0

    def __call__(self, at: np.ndarray, turn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Position [3] and rotation [3, 3] in the frame of the first call, of a pose in the world."""
        if self._start is None:
            self._start, self._last = (at, turn), at
        step = np.linalg.norm((at - self._last)[:2])
        if step > 0.02:  # the body's swaying is no way
            self._way, self._last = self._way + float(step), at
        error = self._share * self._way
        begin_at, begin_turn = self._start
        yaw = of_angles(0.0, 0.0, 0.2 * self._sign * error)
        return begin_turn.T @ (at + error * self._direction - begin_at), begin_turn.T @ yaw @ turn


class LidarPublisher:
    """Publishes clouds and odometry of a robot; called in every tick.

    Args:
        bus: Where.
        robot: Whose.
        drift: Drift of the odometry, as a share of the way.
        delay_ms: How much later both arrive.
        seed: Seed of noise and drift.
    """

    def __init__(self, bus: Bus, robot: SimulatedRobot, drift: float, delay_ms: float, seed: int = 0) -> None:
        from trainer.deploy.ros_types import Odometry_, PointCloud2_  # noqa: PLC0415  needs cyclonedds

        self._clouds, self._poses = bus.writer(CLOUD_TOPIC, PointCloud2_), bus.writer(ODOMETRY_TOPIC, Odometry_)
        floor = None if robot.terrain is None else PIT_FLOOR
        self._lidar, self._drift = Lidar(robot.model, seed=seed, floor=floor), Drift(drift, seed)
        self._delay = round(delay_ms)
        self._points: list[np.ndarray] = []
        self._waiting: deque[tuple[int, bool, bytes]] = deque()

    def __call__(self, robot: SimulatedRobot) -> None:
        """Publishes what is due after a tick of the robot."""
        self._points.append(self._lidar.fire(robot.data, POINTS * TICK_MS // CLOUD_MS))
        if robot.tick % ODOMETRY_MS == 0:
            at, turn = self._drift(*self._lidar.pose(robot.data))
            pose = Odometry(robot.tick * 1e-3, "camera_init", "body", at, quat_of(turn))
            self._waiting.append((robot.tick + self._delay, False, odometry_to_wire(pose)))
        if robot.tick % CLOUD_MS == 0:
            at, turn = self._lidar.pose(robot.data)
            points = (np.concatenate(self._points) - at) @ turn
            self._points = []
            cloud = Cloud(robot.tick * 1e-3, "body", points.astype(np.float32))
            self._waiting.append((robot.tick + self._delay, True, cloud_to_wire(cloud)))
        while self._waiting and self._waiting[0][0] <= robot.tick:
            _, is_cloud, wire = self._waiting.popleft()
            (self._clouds if is_cloud else self._poses).write(wire)
