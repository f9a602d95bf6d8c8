"""The `unitree_hg` messages declared for CycloneDDS. Instances carry bytes; the declared members describe the type.

CycloneDDS's own Python serialiser takes milliseconds for the 35 motors of a message; `trainer.deploy.unitree` takes
microseconds, and a test holds the two to the same bytes.
"""
# No `from __future__ import annotations`: CycloneDDS reads the annotations as objects.

from dataclasses import dataclass
from typing import Any

from cyclonedds.idl import IdlStruct, annotations, types

from trainer.deploy.unitree import SLOTS


def declared(message: Any) -> Any:
    """Makes a class with members a message as ROS 2 and Unitree declare theirs: final, members in their order."""
    return dataclass(_annotated(message))


def _annotated(message: Any) -> Any:
    return annotations.final(annotations.autoid("sequential")(message))


def carried(message: Any) -> Any:
    """Makes a class with members a message whose content is `wire`, its bytes in CDR.

    A decorator and not a base class: CycloneDDS takes every base of a message for a message.
    """
    message = _annotated(message)

    def __init__(self: Any, wire: bytes) -> None:
        self.wire = wire

    def serialize(self: Any, buffer: Any = None, endianness: Any = None, use_version_2: bool | None = None) -> bytes:
        if use_version_2:
            raise ValueError("use_version_2: expected the first version of CDR, which these bytes are in")
        return self.wire

    def deserialize(cls: Any, data: bytes, has_header: bool = True, use_version_2: bool | None = None) -> Any:
        return cls(bytes(data))

    message.__init__, message.serialize = __init__, serialize
    message.deserialize = message.deserialize_key = classmethod(deserialize)
    return message


@declared
class MotorCmd_(IdlStruct, typename="unitree_hg.msg.dds_.MotorCmd_"):
    """What one motor shall do."""

    mode: types.uint8
    q: types.float32
    dq: types.float32
    tau: types.float32
    kp: types.float32
    kd: types.float32
    reserve: types.uint32


@carried
class LowCmd_(IdlStruct, typename="unitree_hg.msg.dds_.LowCmd_"):
    """What all motors shall do."""

    mode_pr: types.uint8
    mode_machine: types.uint8
    motor_cmd: types.array[MotorCmd_, SLOTS]
    reserve: types.array[types.uint32, 4]
    crc: types.uint32


@declared
class IMUState_(IdlStruct, typename="unitree_hg.msg.dds_.IMUState_"):
    """Orientation (w, x, y, z), angular velocity and acceleration of the pelvis."""

    quaternion: types.array[types.float32, 4]
    gyroscope: types.array[types.float32, 3]
    accelerometer: types.array[types.float32, 3]
    rpy: types.array[types.float32, 3]
    temperature: types.int16


@declared
class MotorState_(IdlStruct, typename="unitree_hg.msg.dds_.MotorState_"):
    """What one motor measures."""

    mode: types.uint8
    q: types.float32
    dq: types.float32
    ddq: types.float32
    tau_est: types.float32
    temperature: types.array[types.int16, 2]
    vol: types.float32
    sensor: types.array[types.uint32, 2]
    motorstate: types.uint32
    reserve: types.array[types.uint32, 4]


@carried
class LowState_(IdlStruct, typename="unitree_hg.msg.dds_.LowState_"):
    """What the robot measures."""

    version: types.array[types.uint32, 2]
    mode_pr: types.uint8
    mode_machine: types.uint8
    tick: types.uint32
    imu_state: IMUState_
    motor_state: types.array[MotorState_, SLOTS]
    wireless_remote: types.array[types.uint8, 40]
    reserve: types.array[types.uint32, 4]
    crc: types.uint32
