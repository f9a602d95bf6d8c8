"""The ROS 2 messages of `trainer.deploy.ros` declared for CycloneDDS. Instances carry bytes, as Unitree's do."""
# No `from __future__ import annotations`: CycloneDDS reads the annotations as objects.

from cyclonedds.idl import IdlStruct, types

from trainer.deploy.unitree_types import carried, declared


@declared
class Time_(IdlStruct, typename="builtin_interfaces.msg.dds_.Time_"):
    """A moment."""

    sec: types.int32
    nanosec: types.uint32


@declared
class Header_(IdlStruct, typename="std_msgs.msg.dds_.Header_"):
    """When and in which frame."""

    stamp: Time_
    frame_id: str


@declared
class PointField_(IdlStruct, typename="sensor_msgs.msg.dds_.PointField_"):
    """A member of every point."""

    name: str
    offset: types.uint32
    datatype: types.uint8
    count: types.uint32


@carried
class PointCloud2_(IdlStruct, typename="sensor_msgs.msg.dds_.PointCloud2_"):
    """Points."""

    header: Header_
    height: types.uint32
    width: types.uint32
    fields: types.sequence[PointField_]
    is_bigendian: bool
    point_step: types.uint32
    row_step: types.uint32
    data: types.sequence[types.uint8]
    is_dense: bool


@declared
class Vector3_(IdlStruct, typename="geometry_msgs.msg.dds_.Vector3_"):
    """A direction."""

    x: types.float64
    y: types.float64
    z: types.float64


@declared
class Point_(IdlStruct, typename="geometry_msgs.msg.dds_.Point_"):
    """A place."""

    x: types.float64
    y: types.float64
    z: types.float64


@declared
class Quaternion_(IdlStruct, typename="geometry_msgs.msg.dds_.Quaternion_"):
    """An orientation, w last."""

    x: types.float64
    y: types.float64
    z: types.float64
    w: types.float64


@declared
class Pose_(IdlStruct, typename="geometry_msgs.msg.dds_.Pose_"):
    """Place and orientation."""

    position: Point_
    orientation: Quaternion_


@declared
class PoseWithCovariance_(IdlStruct, typename="geometry_msgs.msg.dds_.PoseWithCovariance_"):
    """A pose and how sure it is."""

    pose: Pose_
    covariance: types.array[types.float64, 36]


@declared
class Twist_(IdlStruct, typename="geometry_msgs.msg.dds_.Twist_"):
    """Linear and angular velocity."""

    linear: Vector3_
    angular: Vector3_


@declared
class TwistWithCovariance_(IdlStruct, typename="geometry_msgs.msg.dds_.TwistWithCovariance_"):
    """A twist and how sure it is."""

    twist: Twist_
    covariance: types.array[types.float64, 36]


@carried
class Odometry_(IdlStruct, typename="nav_msgs.msg.dds_.Odometry_"):
    """Where a frame is in another."""

    header: Header_
    child_frame_id: str
    pose: PoseWithCovariance_
    twist: TwistWithCovariance_
