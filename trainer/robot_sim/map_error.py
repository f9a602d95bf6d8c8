"""How far the elevation map is from the ground: a robot is led over terrains, with lidar, drift and delay.

`python -m trainer.robot_sim.map_error` prints the table of docs/robot.md.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np

from trainer.deploy.elevation import MapSettings, sampled
from trainer.deploy.g1 import LIDAR_MOUNT, MOTORS
from trainer.deploy.mapping import Mapper
from trainer.deploy.reading import Reading
from trainer.deploy.ros import Cloud, Odometry
from trainer.deploy.rotation import quat_of
from trainer.deploy.unitree import Remote
from trainer.engines.mjcf.model import build_model
from trainer.robot_sim.lidar import CLOUD_MS, ODOMETRY_MS, POINTS, Drift, Lidar
from trainer.tasks.robots import G1
from trainer.tasks.terrains import PIT_FLOOR, Terrain, make_terrain

CASES = (
    ("stairs", 0.2),
    ("stairs", 0.6),
    ("gaps", 0.2),
    ("gaps", 0.6),
    ("single_row_stones", 0.3),
    ("pyramid_stairs", 0.4),
)
_SLICE_MS = 10
_X, _Y = np.meshgrid(np.linspace(-0.8, 0.8, 17), np.linspace(-0.5, 0.5, 11))
SCAN = np.stack([_X.ravel(), _Y.ravel()], axis=1)
"""[187, 2] m: the points of the training's scan."""


@dataclass(frozen=True)
class MapError:
    """The map's error on one terrain, over all control steps of a walk; the scan's frame, that is the robot's."""

    rms: float
    """m, at scan points further than `clear` from an edge."""
    worst: float
    """m, the 99 % quantile there."""
    edge: float
    """m: mean distance between an edge along the way and where the map has it."""
    edge_worst: float
    """m: the 95 % quantile."""
    found: float
    """Share of the edges that the map has at all."""
    milliseconds: float
    """Median time of an update and a fill."""


class Truth:
    """A terrain's exact height."""

    def __init__(self, terrain: Terrain) -> None:
        self._boxes = terrain.boxes

    def height(self, points: np.ndarray) -> np.ndarray:
        """[S] at points [S, 2]."""
        result = np.full(len(points), PIT_FLOOR)
        for x, y, z, half_x, half_y, half_z in self._boxes:
            on = (np.abs(points[:, 0] - x) <= half_x) & (np.abs(points[:, 1] - y) <= half_y)
            result[on] = np.maximum(result[on], z + half_z)
        return result

    def near_edge(self, points: np.ndarray, clear: float) -> np.ndarray:
        """[S] bool: whether the height changes by more than 3 cm within `clear`."""
        here = self.height(points)
        result = np.zeros(len(points), bool)
        for angle in np.arange(8) * np.pi / 4:
            for share in (0.5, 1.0):
                moved = points + share * clear * np.array([np.cos(angle), np.sin(angle)])
                result |= np.abs(self.height(moved) - here) > 0.03
        return result


def measure(
    name: str,
    difficulty: float,
    *,
    speed: float = 0.5,
    drift: float = 0.01,
    delay: float = 0.05,
    noise: float = 0.02,
    seed: int = 0,
    clear: float = 0.1,
    points: int = POINTS,
) -> MapError:
    """Walks a robot along a terrain's course and compares what the policy would be told with the truth.

    Args:
        name: Name of the terrain.
        difficulty: 0 to 1.
        speed: m/s.
        drift: Drift of the odometry, as a share of the way.
        delay: Delay of clouds and odometry, s.
        noise: Noise of a range, m.
        seed: Seed of everything random.
        clear: Distance from edges at which heights count, m.
        points: Number of points of a cloud.
    """
    terrain = make_terrain(name, difficulty, np.random.default_rng(seed))
    truth, model = Truth(terrain), build_model(G1, terrain)
    data = mujoco.MjData(model)
    default = dict(zip(G1.joint_names, G1.default_pos, strict=True))
    for joint in MOTORS:
        data.qpos[model.joint(joint).qposadr[0]] = default[joint]
    position = np.array([default[joint] for joint in MOTORS], np.float32)
    lidar, odometry, mapper = (
        Lidar(model, noise, seed, PIT_FLOOR),
        Drift(drift, seed),
        Mapper(LIDAR_MOUNT, G1.standing_height),
    )
    waiting: deque[tuple[float, Odometry | Cloud, Reading]] = deque()
    seen: list[np.ndarray] = []
    heights, origin = np.zeros((1, 1), np.float32), (0.0, 0.0)
    arrived, errors, edges, missing, times = 0.0, [], [], 0, []
    length = 7.0 if terrain.size[0] > 9 else 3.0
    for tick in range(0, round(1000 * length / speed), _SLICE_MS):
        now = tick * 1e-3
        _place(data, terrain, truth, now, speed)
        mujoco.mj_kinematics(model, data)
        reading = _reading(tick, data, position)
        seen.append(lidar.fire(data, points * _SLICE_MS // CLOUD_MS))
        if tick % ODOMETRY_MS == 0:
            at, turn = odometry(*lidar.pose(data))
            waiting.append((now + delay, Odometry(now, "camera_init", "body", at, quat_of(turn)), reading))
        if tick % CLOUD_MS == 0 and tick:
            at, turn = lidar.pose(data)
            cloud = ((np.concatenate(seen) - at) @ turn).astype(np.float32)
            seen = []
            waiting.append((now + delay, Cloud(now, "body", cloud), reading))
        while waiting and waiting[0][0] <= now:
            _, message, then = waiting.popleft()
            if isinstance(message, Odometry):
                mapper.odometry(message, then)
                mapper.standing = False  # it walks from its first pose on, as the controller tells the map
                arrived = now
            else:
                begin = time.perf_counter()
                mapper.cloud(message)
                heights, origin = mapper.map.filled(), mapper.map.origin
                times.append(time.perf_counter() - begin)
        if tick % 20 == 0 and now > 1.0 and mapper.pose is not None:
            sight = _Sight(mapper, heights, origin, now - arrived + delay)
            errors.append(_height_errors(sight, data, truth, clear))
            close, lost = _edge_errors(sight, data, truth)
            edges += close
            missing += lost
    flat = np.concatenate(errors)
    found = np.array(edges) if edges else np.zeros(1)
    return MapError(
        float(np.sqrt((flat**2).mean())),
        float(np.quantile(np.abs(flat), 0.99)),
        float(found.mean()),
        float(np.quantile(found, 0.95)),
        len(edges) / max(len(edges) + missing, 1),
        1e3 * float(np.median(times)),
    )


class _Sight:
    """The map as the controller reads it at one moment."""

    def __init__(self, mapper: Mapper, heights: np.ndarray, origin: tuple[float, float], age: float) -> None:
        assert mapper.pose is not None
        self._heights, self._origin, self._resolution = heights, origin, MapSettings().resolution
        self._at = mapper.pose[:3] + mapper.velocity * age
        w, x, y, z = mapper.pose[3:].tolist()
        self._yaw = np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z))

    def below(self, points: np.ndarray) -> np.ndarray:
        """[S] how far the ground at points [S, 2] around the pelvis is below it."""
        turn = _turn(self._yaw)
        return self._at[2] - sampled(self._heights, self._origin, self._resolution, self._at[:2] + points @ turn)


def _turn(yaw: float) -> np.ndarray:
    cos, sin = np.cos(yaw), np.sin(yaw)
    return np.array([[cos, sin], [-sin, cos]])


def _place(data: mujoco.MjData, terrain: Terrain, truth: Truth, now: float, speed: float) -> None:
    """A walk: steady ahead, with a gait's swaying of height, roll and pitch."""
    x, y, _ = terrain.spawn
    x += speed * now
    along = np.stack([np.linspace(x - 0.3, x + 0.3, 13), np.full(13, y)], axis=1)
    heights = truth.height(along)
    solid = heights[heights > PIT_FLOOR + 0.2]
    ground = float(solid.mean()) if len(solid) else 0.0
    stride = 2 * np.pi * 1.5 * now
    data.qpos[:3] = x, y + 0.02 * np.sin(stride / 2), ground + G1.standing_height + 0.015 * np.sin(stride)
    roll, pitch, yaw = 0.03 * np.sin(stride / 2), 0.04 * np.sin(stride + 1.0), 0.05 * np.sin(stride / 2 + 0.5)
    mujoco.mju_euler2Quat(data.qpos[3:7], np.array([roll, pitch, yaw]), "XYZ")


def _reading(tick: int, data: mujoco.MjData, position: np.ndarray) -> Reading:
    zero = np.zeros(len(MOTORS), np.float32)
    quat = data.qpos[3:7].astype(np.float32)
    return Reading(tick, 5, quat, np.zeros(3, np.float32), position, zero, zero, Remote(frozenset()))


def _true_below(data: mujoco.MjData, truth: Truth, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w, x, y, z = data.qpos[3:7]
    yaw = float(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))
    places = data.qpos[:2] + points @ _turn(yaw)
    return data.qpos[2] - truth.height(places), places


def _height_errors(sight: _Sight, data: mujoco.MjData, truth: Truth, clear: float) -> np.ndarray:
    """What the policy is told minus the truth, m, away from edges; clipped as the scan is."""
    standing = G1.standing_height
    told = np.clip(sight.below(SCAN) - standing, -1, 1)
    true, places = _true_below(data, truth, SCAN)
    return (told - np.clip(true - standing, -1, 1))[~truth.near_edge(places, clear)]


def _edge_errors(sight: _Sight, data: mujoco.MjData, truth: Truth) -> tuple[list[float], int]:
    """Distances between the true edges on the line ahead and those of the map; and how many the map has not."""
    line = np.stack([np.arange(0.0, 0.9, 0.01), np.zeros(90)], axis=1)
    true, _ = _true_below(data, truth, line)
    told = sight.below(line)
    errors, missing = [], 0
    for index in np.flatnonzero(np.abs(np.diff(true)) > 0.03):
        low, high = sorted((true[index], true[index + 1]))
        middle = 0.5 * (low + min(high, low + 0.5))
        crossing = np.flatnonzero((told[:-1] > middle) != (told[1:] > middle))
        crossing = crossing[np.sign(np.diff(told)[crossing]) == np.sign(true[index + 1] - true[index])]
        distance = np.abs(crossing - index) * 0.01
        if len(distance) and distance.min() <= 0.15:
            errors.append(float(distance.min()))
        elif 5 < index < 84:  # one at the line's end may be just outside
            missing += 1
    return errors, missing


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--speed", type=float, default=0.5)
    parser.add_argument("--drift", type=float, default=0.01)
    parser.add_argument("--delay", type=float, default=0.05)
    parser.add_argument("--noise", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args(arguments))
    print("| terrain | difficulty | RMS, cm | 99 %, cm | edges, cm | edges 95 %, cm | edges found | ms an update |")
    print("|---|---|---|---|---|---|---|---|")
    for name, difficulty in CASES:
        error = measure(name, difficulty, **options)
        print(
            f"| {name} | {difficulty} | {100 * error.rms:.1f} | {100 * error.worst:.1f} | {100 * error.edge:.1f} |"
            f" {100 * error.edge_worst:.1f} | {100 * error.found:.0f} % | {error.milliseconds:.1f} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
