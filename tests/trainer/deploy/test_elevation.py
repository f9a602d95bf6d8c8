"""The elevation map: its bookkeeping by hand-made clouds, its error by a simulated lidar, its messages on the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers.trainer.robot_pair import needs_dds

from trainer.deploy.elevation import ElevationMap, MapSettings, sampled
from trainer.deploy.mapping import Locator, Mapper
from trainer.deploy.reading import Reading
from trainer.deploy.ros import Cloud, Odometry, cloud_from_wire, cloud_to_wire, odometry_from_wire, odometry_to_wire
from trainer.deploy.rotation import matrix_of, of_angles, quat_of, torso_in_pelvis
from trainer.deploy.unitree import DamagedMessage, Remote
from trainer.robot_sim.map_error import measure

CELLS = MapSettings().cells
LIDAR = np.array([0.0, 0.0, 1.2])


def surface(height, x=(-1.9, 1.9), y=(-1.9, 1.9), count=40_000, seed=0, noise=0.0):
    """Points on a level rectangle."""
    rng = np.random.default_rng(seed)
    points = np.stack([rng.uniform(*x, count), rng.uniform(*y, count), np.full(count, height)], axis=1)
    points[:, 2] += noise * rng.standard_normal(count)
    return points


def at(found: ElevationMap, *places):
    return sampled(found.filled(), found.origin, found.settings.resolution, np.array(places, float))


def test_a_level_floor_is_level_and_sure():
    found = ElevationMap()
    found.move(0.0, 0.0)
    for cloud in range(5):
        found.update(surface(0.3, noise=0.02, seed=cloud), LIDAR, 0.1 * cloud)
    known = found.known()
    inside = known[5:-5, 5:-5]
    assert np.isfinite(inside).mean() > 0.99
    assert np.nanstd(inside) < 0.01  # 2 cm of noise, some points a cell, five clouds
    assert abs(np.nanmean(inside) - 0.3) < 0.005
    assert np.sqrt(np.median(found.variance()[np.isfinite(known)])) < 0.01


def test_cells_keep_their_place_when_the_map_moves():
    """Heights are a function of the place, and every cell that stays keeps its height, whichever way the map goes."""
    found = ElevationMap()
    found.move(0.0, 0.0)
    points = surface(0.0, count=300_000)
    points[:, 2] = 0.1 * points[:, 0] + 0.05 * points[:, 1]
    found.update(points, LIDAR, 0.0)
    places = np.array([[0.5, 0.5], [-0.3, 0.7], [0.2, -0.6]])
    before = at(found, *places)
    assert np.allclose(before, 0.1 * places[:, 0] + 0.05 * places[:, 1], atol=0.01)
    for x, y in ((0.37, 0.0), (0.37, -0.55), (-0.71, 0.42), (0.0, 0.0)):
        found.move(x, y)
        assert np.array_equal(at(found, *places), before)
    found.move(1.0, 0.0)
    assert np.isnan(found.known()[-20:]).all()  # what has come in is unknown
    assert np.isfinite(found.known()[2:55, 15:82]).mean() > 0.95  # within every place it has been at
    found.move(100.0, 0.0)
    assert np.isnan(found.known()).all()
    found.move(0.0, 0.0)
    assert np.isnan(found.known()).all()  # forgotten, not remembered wrongly


def test_a_changed_height_replaces_the_old_one():
    found = ElevationMap()
    found.move(0.0, 0.0)
    found.update(surface(0.0), LIDAR, 0.0)
    found.update(surface(0.2, x=(0.2, 0.8), y=(-0.4, 0.4), count=5000), LIDAR, 0.1)
    assert at(found, (0.5, 0.0), (-0.5, 0.0)) == pytest.approx([0.2, 0.0], abs=0.01)


def test_rays_forget_what_stood_in_their_way():
    """A person stood there and has gone; the ground behind is seen through where they stood."""
    found = ElevationMap()
    found.move(0.0, 0.0)
    found.update(surface(0.8, x=(0.9, 1.0), y=(-0.2, 0.2), count=2000), LIDAR, 0.0)
    assert np.nanmax(found.known()) == pytest.approx(0.8, abs=0.01)
    found.update(surface(0.0, x=(1.05, 1.9), y=(-0.2, 0.2), count=8000), LIDAR, 0.1)
    assert np.nanmax(found.known()) < 0.1


def test_holes_are_filled_as_the_training_has_them():
    found = ElevationMap()
    found.move(0.0, 0.0)
    near, far = surface(0.0, x=(-1.9, 0.8)), surface(0.0, x=(1.2, 1.9), count=10_000)
    rng = np.random.default_rng(1)
    wall = np.stack([np.full(15_000, 1.2), rng.uniform(-1.9, 1.9, 15_000), rng.uniform(-0.4, 0.0, 15_000)], axis=1)
    cloud = np.concatenate([near, far, wall])
    cloud = cloud[~((np.abs(cloud[:, 0] + 1.0) < 0.15) & (np.abs(cloud[:, 1]) < 0.15))]  # nobody looked there
    found.update(rng.permutation(cloud), LIDAR, 0.0)
    gap = at(found, *((x, y) for x in (0.9, 1.0, 1.1) for y in (-0.5, 0.0, 0.5)))
    assert (gap < -0.9).all(), gap  # rays went below the platforms: a pit
    assert abs(at(found, (-1.0, 0.0))[0]) < 0.02  # nothing was seen: as high as its surroundings
    assert np.isfinite(found.filled()).all()


def test_hidden_ground_belongs_to_the_lower_side():
    """Behind an edge that goes down there is a shadow; the lower tread reaches back to the riser."""
    found = ElevationMap()
    found.move(0.0, 0.0)
    found.update(np.concatenate([surface(0.0, x=(-1.9, 0.6)), surface(-0.15, x=(0.76, 1.9))]), LIDAR, 0.0)
    filled = at(found, *((x, 0.0) for x in (0.5, 0.66, 0.72, 0.9)))
    assert filled == pytest.approx([0.0, -0.15, -0.15, -0.15], abs=0.02)


def test_the_ground_under_the_feet_is_where_they_stand():
    found = ElevationMap()
    found.seed(2.0, -1.0, 0.4)
    assert at(found, (2.0, -1.0), (2.5, -0.8)) == pytest.approx([0.4, 0.4])
    assert found.filled().shape == (CELLS, CELLS)
    found.update(surface(0.2, x=(2.2, 2.8), y=(-1.2, -0.6), count=8000), np.array([2.0, -1.0, 1.6]), 0.0)
    found.seed(2.0, -1.0, 0.3)  # set down from a gantry: what was assumed follows, what was measured stays
    assert at(found, (2.0, -1.0), (2.5, -0.8)) == pytest.approx([0.3, 0.2], abs=0.01)


def test_points_that_are_not_finite_are_passed_over():
    found = ElevationMap()
    found.move(0.0, 0.0)
    cloud = surface(0.1)
    cloud[::3, 1] = np.nan
    cloud[1::3, 2] = np.inf
    found.update(cloud, LIDAR, 0.0)
    assert np.nanmax(np.abs(found.known() - 0.1)) < 1e-3
    found.update(np.empty((0, 3)), LIDAR, 0.1)


@pytest.mark.parametrize(("name", "difficulty"), [("stairs", 0.4), ("gaps", 0.4)])
def test_the_error_under_a_simulated_lidar(name, difficulty):
    """0.5 m/s, 1 % drift, 50 ms late, 2 cm of range noise: 3 cm RMS away from edges, edges within 5 cm on average."""
    error = measure(name, difficulty)
    assert error.rms <= 0.03
    assert error.edge <= 0.05
    assert error.found >= 0.95


def test_a_map_without_odometry_compensation_would_be_seen():
    """The measure can fail: odometry that drifts by a tenth places edges worse."""
    good, bad = measure("stairs", 0.4, points=4000), measure("stairs", 0.4, points=4000, drift=0.3)
    assert bad.rms > 1.3 * good.rms


def reading(quat=(1.0, 0.0, 0.0, 0.0), waist=(0.0, 0.0, 0.0)):
    position = np.zeros(29, np.float32)
    position[12:15] = waist
    zero = np.zeros(29, np.float32)
    return Reading(0, 5, np.array(quat, np.float32), np.zeros(3, np.float32), position, zero, zero, Remote(frozenset()))


def test_rotations():
    rng = np.random.default_rng(0)
    for _ in range(50):
        quat = rng.standard_normal(4)
        quat /= np.linalg.norm(quat)
        quat = quat if quat[0] >= 0 else -quat
        assert np.allclose(quat_of(matrix_of(quat)), quat, atol=1e-9)
    assert np.allclose(of_angles(0.0, 0.0, math.pi / 2) @ [1, 0, 0], [0, 1, 0], atol=1e-12)
    assert np.allclose(of_angles(math.pi, 0.0, 0.0) @ [0, 0, 1], [0, 0, -1], atol=1e-12)


def test_the_odometrys_frame_may_lie_as_it_likes():
    """A lidar upside down, a bent waist and a turned robot: the pelvis is found, its axes upright."""
    mount = (0.01, 0.0, 0.43, math.pi, 0.05, 0.0)
    pelvis_quat = quat_of(of_angles(0.05, -0.1, 0.7))
    state = reading(pelvis_quat, (0.2, 0.1, -0.1))
    waist_at, waist = torso_in_pelvis(state.position)
    pelvis_at, pelvis = np.array([3.0, -2.0, 0.76]), matrix_of(pelvis_quat)
    sensor = waist @ of_angles(*mount[3:])
    sensor_at = pelvis_at + pelvis @ (waist_at + waist @ np.array(mount[:3]))
    frame = of_angles(2.0, 0.3, -1.0)  # of the odometry, any
    told = Odometry(0.0, "odom", "body", frame.T @ sensor_at, quat_of(frame.T @ pelvis @ sensor))
    lidar_at, lidar, found_at, found = Locator(mount).locate(told, state)
    assert np.allclose(found, pelvis, atol=1e-6)
    assert np.allclose(found_at, pelvis_at, atol=1e-6)
    assert np.allclose(lidar_at, sensor_at, atol=1e-6)
    assert np.allclose(lidar, pelvis @ sensor, atol=1e-6)


def test_a_cloud_needs_a_pose_of_its_time():
    mapper = Mapper((0.0, 0.0, 0.43, 0.0, 0.0, 0.0), 0.76)
    cloud = Cloud(1.0, "body", surface(-1.2).astype(np.float32))
    assert not mapper.cloud(cloud)
    mapper.odometry(Odometry(0.5, "odom", "body", np.array([0.0, 0.0, 1.2]), np.array([1.0, 0, 0, 0])), reading())
    assert not mapper.cloud(cloud)
    mapper.odometry(Odometry(1.01, "odom", "body", np.array([0.0, 0.0, 1.2]), np.array([1.0, 0, 0, 0])), reading())
    assert mapper.cloud(cloud)
    world = Cloud(1.02, "odom", surface(0.0, seed=1).astype(np.float32))  # registered in the odometry's frame
    assert mapper.cloud(world)
    assert abs(np.nanmedian(mapper.map.known())) < 0.01


def test_messages_round_trip():
    points = np.random.default_rng(0).normal(size=(1000, 3)).astype(np.float32)
    cloud = cloud_from_wire(cloud_to_wire(Cloud(12.25, "livox_frame", points)))
    assert (cloud.stamp, cloud.frame) == (12.25, "livox_frame")
    assert np.array_equal(cloud.points, points)
    sent = Odometry(3.5, "camera_init", "body", np.arange(3.0), np.array([0.5, 0.5, -0.5, 0.5]), np.ones(3))
    back = odometry_from_wire(odometry_to_wire(sent))
    assert (back.stamp, back.frame, back.child) == (3.5, "camera_init", "body")
    for name in ("position", "quat", "linear"):
        assert np.array_equal(getattr(back, name), getattr(sent, name))
    for data in (b"", cloud_to_wire(cloud)[:200], b"\x00\x00" + cloud_to_wire(cloud)[2:]):
        with pytest.raises(DamagedMessage):
            cloud_from_wire(data)


@needs_dds
def test_cyclonedds_writes_the_same_bytes():
    from trainer.deploy import ros_types as ros

    points = np.random.default_rng(1).normal(size=(7, 3)).astype("<f4")
    header = ros.Header_(ros.Time_(7, 250_000_000), "livox")
    fields = [ros.PointField_(name, 4 * index, 7, 1) for index, name in enumerate("xyz")]

    class Message:
        def __init__(self, **members):
            vars(self).update(members)

    plain = Message(
        header=header, height=1, width=7, fields=fields, is_bigendian=False, point_step=12, row_step=84,
        data=list(points.tobytes()), is_dense=True,
    )  # fmt: skip
    assert ros.PointCloud2_.__idl__.serialize(plain, use_version_2=False) == cloud_to_wire(Cloud(7.25, "livox", points))
    pose = ros.PoseWithCovariance_(ros.Pose_(ros.Point_(1, 2, 3), ros.Quaternion_(0.1, 0.2, 0.3, 0.9)), [0.0] * 36)
    twist = ros.TwistWithCovariance_(ros.Twist_(ros.Vector3_(4, 5, 6), ros.Vector3_(0, 0, 0)), [0.0] * 36)
    plain = Message(header=header, child_frame_id="body", pose=pose, twist=twist)
    ours = Odometry(7.25, "livox", "body", np.array([1.0, 2, 3]), np.array([0.9, 0.1, 0.2, 0.3]), np.array([4.0, 5, 6]))
    assert ros.Odometry_.__idl__.serialize(plain, use_version_2=False) == odometry_to_wire(ours)
    assert ros.PointCloud2_.__idl_typename__ == "sensor_msgs.msg.dds_.PointCloud2_"
    assert ros.Odometry_.__idl_typename__ == "nav_msgs.msg.dds_.Odometry_"
