"""The elevation map as a process of its own, so that the control loop never waits for it, and the loop's end of it.

Clouds and odometry come over DDS as ROS 2 publishes them. The odometry's frame may lie as it likes (FAST-LIO's is that
of the lidar when it was started, upside down on a G1): the robot's own IMU turns it upright at the first message.
Heights and the pelvis' pose go to the controller through shared memory.

Run by the controller as `python -m trainer.deploy.mapping SETTINGS`, JSON of `Source`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker, shared_memory
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer.deploy.bus import Bus
from trainer.deploy.elevation import ElevationMap, MapSettings, sampled
from trainer.deploy.reading import Reading, reading_of
from trainer.deploy.ros import Cloud, Odometry, cloud_from_wire, odometry_from_wire
from trainer.deploy.rotation import matrix_of, of_angles, quat_of, torso_in_pelvis
from trainer.deploy.unitree import LOW_STATE_TOPIC, DamagedMessage, message_types, state_from_wire

if TYPE_CHECKING:
    from trainer.deploy.policy import Policy

POSE_AGE, MAP_AGE = 0.5, 1.0
"""Longest time without odometry and without a cloud, s."""
_SAME_MOMENT = 0.06
_SMOOTHING = 0.3
_HEAD = 24
_WALKS = 16  # written by the controller
_POSE, _GRID = 0, 1  # the two counters of the shared memory: odd while it is written


@dataclass(frozen=True)
class Source:
    """Where the map comes from."""

    interface: str
    domain: int
    cloud_topic: str
    odometry_topic: str
    mount: tuple[float, float, float, float, float, float]
    """x, y, z (m), roll, pitch, yaw (rad) of the odometry's child frame in the torso's."""
    standing_height: float
    memory: str = ""


class Locator:
    """Where the pelvis and the lidar are in a frame that is upright.

    Args:
        mount: Mount of the lidar, as in `Source`.
    """

    def __init__(self, mount: Sequence[float]) -> None:
        self._mount_at, self._mount = np.array(mount[:3]), of_angles(*mount[3:])
        self._upright: np.ndarray | None = None

    @property
    def upright(self) -> np.ndarray:
        """[3, 3]: turns the odometry's frame into the map's."""
        assert self._upright is not None
        return self._upright

    def locate(self, odometry: Odometry, reading: Reading) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Position [3] and rotation [3, 3] of the lidar, then of the pelvis, in the map's frame."""
        waist_at, waist = torso_in_pelvis(reading.position)
        sensor_at, sensor = waist_at + waist @ self._mount_at, waist @ self._mount  # in the pelvis
        turned = matrix_of(odometry.quat)
        if self._upright is None:
            self._upright = matrix_of(reading.quat) @ sensor @ turned.T
        lidar_at, lidar = self._upright @ odometry.position, self._upright @ turned
        pelvis = lidar @ sensor.T
        return lidar_at, lidar, lidar_at - pelvis @ sensor_at, pelvis


class Mapper:
    """Clouds and odometry into a map. Feed it from DDS, from a callback of your own, or from a file.

    Args:
        mount: Mount of the lidar, as in `Source`.
        standing_height: Height of the pelvis above the ground in the stance, m: the lidar never sees below the feet.
        settings: Settings of the map.
    """

    def __init__(self, mount: Sequence[float], standing_height: float, settings: MapSettings | None = None) -> None:
        self.map = ElevationMap(settings)
        self._locator = Locator(mount)
        self._standing = standing_height
        self._past: deque[tuple[float, np.ndarray, np.ndarray, np.ndarray, str]] = deque(maxlen=200)
        self.standing = True
        """Whether the robot is in its stance: the ground under it, which no ray reaches, is then where its feet are."""
        self.pose: np.ndarray | None = None
        """[7] of the pelvis: position, orientation (w, x, y, z)."""
        self.velocity = np.zeros(3)
        """[3] m/s of the pelvis in the map's frame."""

    def odometry(self, odometry: Odometry, reading: Reading) -> None:
        """Takes in a pose; `reading` is the robot's state at about that time."""
        lidar_at, lidar, pelvis_at, pelvis = self._locator.locate(odometry, reading)
        if self._past and odometry.stamp > self._past[-1][0] and self.pose is not None:
            velocity = (pelvis_at - self.pose[:3]) / (odometry.stamp - self._past[-1][0])
            self.velocity = self.velocity + _SMOOTHING * (velocity - self.velocity)
        self.pose = np.concatenate([pelvis_at, quat_of(pelvis)])
        self._past.append((odometry.stamp, lidar_at, lidar, pelvis_at, odometry.frame))
        if self.standing:
            self.map.seed(pelvis_at[0], pelvis_at[1], pelvis_at[2] - self._standing)

    def cloud(self, cloud: Cloud) -> bool:
        """Takes in a cloud, in the lidar's frame or in the odometry's; False where no pose of its moment is known."""
        if not self._past:
            return False
        stamp, lidar_at, lidar, pelvis_at, frame = min(self._past, key=lambda entry: abs(entry[0] - cloud.stamp))
        if abs(stamp - cloud.stamp) > _SAME_MOMENT:
            return False
        upright = self._locator.upright
        points = cloud.points @ upright.T if cloud.frame == frame else cloud.points @ lidar.T + lidar_at
        self.map.move(pelvis_at[0], pelvis_at[1])
        self.map.update(points, lidar_at, cloud.stamp)
        return True


class _Shared:
    """The memory between the two processes: a head of float64, then the heights."""

    def __init__(self, cells: int, name: str | None = None) -> None:
        size = 8 * _HEAD + 4 * cells * cells
        self.memory = shared_memory.SharedMemory(name, create=name is None, size=size)
        if name is not None:  # the one who made it removes it; Python would do so twice
            resource_tracker.unregister(self.memory._name, "shared_memory")  # type: ignore[attr-defined]
        self.head: Any = np.ndarray(_HEAD, np.float64, self.memory.buf)
        self.heights: Any = np.ndarray((cells, cells), np.float32, self.memory.buf, offset=8 * _HEAD)

    def write_pose(self, pose: np.ndarray, velocity: np.ndarray) -> None:
        self.head[_POSE] += 1
        self.head[2] = time.monotonic()
        self.head[3:10], self.head[10:13] = pose, velocity
        self.head[_POSE] += 1

    def write_grid(self, heights: np.ndarray, origin: tuple[float, float]) -> None:
        self.head[_GRID] += 1
        self.head[13], self.head[14:16] = time.monotonic(), origin
        self.heights[:] = heights
        self.head[_GRID] += 1

    def read_pose(self) -> np.ndarray:
        """[11]: time, position, orientation, velocity."""
        return self._consistent(_POSE, self.head[2:13].copy)

    def read_grid(self) -> tuple[float, tuple[float, float], np.ndarray]:
        return self._consistent(
            _GRID, lambda: (float(self.head[13]), (float(self.head[14]), float(self.head[15])), self.heights.copy())
        )

    def _consistent(self, counter: int, read: Any) -> Any:
        while True:
            before = float(self.head[counter])
            result = read()
            if before % 2 == 0 and self.head[counter] == before:
                return result
            time.sleep(1e-4)

    def close(self, remove: bool) -> None:
        self.head = self.heights = None
        self.memory.close()
        if remove:
            self.memory.unlink()


class MapGround:
    """The ground as the map's process sees it; `trainer.deploy.ground.Ground` says what the methods are for.

    Args:
        policy: Whose scan it is.
        source: Where the map comes from; the memory's name is added.
        time_scale: Seconds of this machine in one of the robot.
        latency: How much older a pose is than its arrival, s of the robot's.
    """

    def __init__(self, policy: Policy, source: Source, time_scale: float = 1.0, latency: float = 0.05) -> None:
        self._policy, self._scale, self._latency = policy, time_scale, latency
        self._resolution = MapSettings().resolution
        self._shared = _Shared(MapSettings().cells)
        self._points = np.array(policy.contract.scan.points())
        words = json.dumps(dataclasses.asdict(dataclasses.replace(source, memory=self._shared.memory.name)))
        self._process = subprocess.Popen([sys.executable, "-m", "trainer.deploy.mapping", words])
        self._source = source
        self._grid_count = -1.0
        self._grid: tuple[float, tuple[float, float], np.ndarray] = (0.0, (0.0, 0.0), np.zeros((1, 1), np.float32))

    def standing(self, stands: bool) -> None:
        """What `Ground.standing` asks for."""
        self._shared.head[_WALKS] = float(not stands)

    def announce(self) -> str:
        """What `Ground.announce` asks for."""
        return f"elevation map from {self._source.cloud_topic} and {self._source.odometry_topic}; no map, no policy"

    def trouble(self, now: float) -> str | None:
        """What `Ground.trouble` asks for."""
        if self._process.poll() is not None:
            return "the process of the elevation map has ended"
        for name, at, limit in (
            (self._source.odometry_topic, self._shared.head[2], POSE_AGE),
            (self._source.cloud_topic, self._shared.head[13], MAP_AGE),
        ):
            age = (now - at) / self._scale
            if at == 0:
                return f"nothing has come on {name} yet"
            if age > limit:
                return f"nothing has come on {name} for {age:.1f} s"
        return None

    def scan(self, reading: Reading) -> np.ndarray:
        """What `Ground.scan` asks for."""
        if self._shared.head[2] == 0 or self._shared.head[13] == 0:
            return np.zeros(len(self._points), np.float32)  # `trouble` keeps the policy from starting on it
        if self._shared.head[_GRID] != self._grid_count:
            self._grid_count = self._shared.head[_GRID]
            self._grid = self._shared.read_grid()
        arrived, *pose = self._shared.read_pose().tolist()
        age = (time.monotonic() - arrived) / self._scale + self._latency
        return scan_at(
            self._policy, np.array(pose[:7]), np.array(pose[7:]), float(reading.ang_vel[2]), age,
            self._grid[2], self._grid[1], self._resolution, self._points,
        )  # fmt: skip

    def pose(self) -> np.ndarray | None:
        """What `Ground.pose` asks for."""
        return None if self._shared.head[2] == 0 else self._shared.read_pose()[1:8]

    def close(self) -> None:
        """What `Ground.close` asks for."""
        self._process.terminate()
        self._process.wait(5.0)
        self._shared.close(remove=True)


def scan_at(
    policy: Policy,
    pose: np.ndarray,
    velocity: np.ndarray,
    turning: float,
    age: float,
    heights: np.ndarray,
    origin: tuple[float, float],
    resolution: float,
    points: np.ndarray,
) -> np.ndarray:
    """[S]: the policy's scan from a filled map, for a pose [7] that is `age` seconds old."""
    now = pose[:3] + velocity * age
    w, x, y, z = pose[3:].tolist()
    yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)) + turning * age
    cos, sin = np.cos(yaw), np.sin(yaw)
    places = now[:2] + points @ np.array([[cos, sin], [-sin, cos]])
    return policy.scan_of(float(now[2]), sampled(heights, origin, resolution, places))


def main(arguments: Sequence[str]) -> int:
    """The process: until the controller ends it, or is gone."""
    source = Source(**json.loads(arguments[0]))
    with contextlib.suppress(OSError, AttributeError):  # it has the control loop's priority, and may be late
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    from trainer.deploy.ros_types import Odometry_, PointCloud2_  # noqa: PLC0415  needs cyclonedds

    bus = Bus(source.interface, source.domain)
    states = bus.reader(LOW_STATE_TOPIC, message_types()[1], depth=1)
    poses, clouds = bus.reader(source.odometry_topic, Odometry_), bus.reader(source.cloud_topic, PointCloud2_, depth=2)
    mapper = Mapper(source.mount, source.standing_height)
    shared = _Shared(mapper.map.settings.cells, source.memory)
    parent, reading = os.getppid(), None
    while os.getppid() == parent:
        poses.wait(0.02)
        try:
            for sample in states.take():
                reading = reading_of(state_from_wire(sample.wire))
            for sample in poses.take():
                if reading is not None:
                    mapper.standing = shared.head[_WALKS] == 0
                    mapper.odometry(odometry_from_wire(sample.wire), reading)
                    assert mapper.pose is not None
                    shared.write_pose(mapper.pose, mapper.velocity)
            for sample in clouds.take():
                if mapper.cloud(cloud_from_wire(sample.wire)):
                    shared.write_grid(mapper.map.filled(), mapper.map.origin)
        except DamagedMessage as error:
            print(f"elevation map: {error}", file=sys.stderr, flush=True)
    shared.close(remove=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
