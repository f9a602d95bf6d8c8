"""`sensor_msgs/PointCloud2` and `nav_msgs/Odometry` as ROS 2 puts them on the wire: bytes to arrays and back."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from trainer.deploy.unitree import DamagedMessage

_HEADER = b"\x00\x01\x00\x00"
_FLOAT32 = 7  # PointField.FLOAT32


@dataclass(frozen=True)
class Cloud:
    """A point cloud."""

    stamp: float
    """s, by the sender's clock."""
    frame: str
    points: np.ndarray
    """[P, 3] float32, m."""


@dataclass(frozen=True)
class Odometry:
    """Where a frame is in another, and how fast it moves."""

    stamp: float
    frame: str
    child: str
    position: np.ndarray
    """[3] m."""
    quat: np.ndarray
    """[4] (w, x, y, z); ROS itself has w last."""
    linear: np.ndarray = field(default_factory=lambda: np.zeros(3))
    """[3] m/s in the child's frame; zeros where the sender does not tell."""


class _Take:
    """Reads CDR, little endian; alignment counts from the first byte after the header."""

    def __init__(self, data: bytes) -> None:
        if data[:2] != _HEADER[:2]:
            raise DamagedMessage(f"expected little-endian CDR (0x0001), got the encoding 0x{data[:2].hex()}")
        self._data, self._at = memoryview(data)[4:], 0

    def value(self, form: str) -> float:
        size = struct.calcsize(form)
        self._at += -self._at % size
        try:
            result = struct.unpack_from(f"<{form}", self._data, self._at)[0]
        except struct.error as error:
            raise DamagedMessage(f"cut off after {len(self._data)} bytes") from error
        self._at += size
        return result

    def count(self) -> int:
        return int(self.value("I"))

    def text(self) -> str:
        return bytes(self.raw(self.count())).rstrip(b"\0").decode(errors="replace")

    def raw(self, size: int) -> memoryview:
        if self._at + size > len(self._data):
            raise DamagedMessage(f"cut off after {len(self._data)} bytes")
        self._at += size
        return self._data[self._at - size : self._at]

    def doubles(self, count: int) -> np.ndarray:
        self._at += -self._at % 8
        return np.frombuffer(self.raw(8 * count), "<f8")


class _Put:
    """Writes what `_Take` reads."""

    def __init__(self) -> None:
        self._data = bytearray()

    def value(self, form: str, value: float) -> None:
        self._data += bytes(-len(self._data) % struct.calcsize(form)) + struct.pack(f"<{form}", value)

    def text(self, text: str) -> None:
        data = text.encode() + b"\0"
        self.value("I", len(data))
        self._data += data

    def raw(self, data: bytes) -> None:
        self._data += data

    def doubles(self, values: np.ndarray) -> None:
        self._data += bytes(-len(self._data) % 8) + np.asarray(values, "<f8").tobytes()

    def done(self) -> bytes:
        return _HEADER + bytes(self._data)


def _take_stamp(take: _Take) -> float:
    seconds = take.value("i")
    return seconds + 1e-9 * take.value("I")


def _put_stamp(put: _Put, stamp: float) -> None:
    put.value("i", int(stamp))
    put.value("I", round((stamp - int(stamp)) * 1e9) % 1_000_000_000)


def cloud_from_wire(data: bytes) -> Cloud:
    """The points of a PointCloud2 with float32 fields x, y and z.

    Raises:
        DamagedMessage: It is cut off, or its points have no such fields.
    """
    take = _Take(data)
    stamp, frame = _take_stamp(take), take.text()
    height, width = take.count(), take.count()
    offsets = {}
    for _ in range(take.count()):
        name, offset, kind = take.text(), take.count(), take.value("B")
        take.count()
        if kind == _FLOAT32:
            offsets[name] = offset
    big_endian = take.value("B")
    step, _ = take.count(), take.count()
    content = take.raw(take.count())
    if missing := [name for name in "xyz" if name not in offsets]:
        raise DamagedMessage(f"PointCloud2: it has no float32 field {missing[0]!r}")
    if len(content) < height * width * step:
        raise DamagedMessage(f"PointCloud2: {len(content)} bytes for {height * width} points of {step}")
    order = ">" if big_endian else "<"
    layout = np.dtype(
        {"names": list("xyz"), "formats": [f"{order}f4"] * 3, "offsets": [offsets[n] for n in "xyz"], "itemsize": step}
    )
    table = np.frombuffer(content, layout, count=height * width)
    return Cloud(stamp, frame, np.stack([table[name] for name in "xyz"], axis=1).astype(np.float32))


def cloud_to_wire(cloud: Cloud) -> bytes:
    """A PointCloud2 with fields x, y and z."""
    put = _Put()
    _put_stamp(put, cloud.stamp)
    put.text(cloud.frame)
    points = np.ascontiguousarray(cloud.points, "<f4")
    put.value("I", 1)
    put.value("I", len(points))
    put.value("I", 3)
    for index, name in enumerate("xyz"):
        put.text(name)
        put.value("I", 4 * index)
        put.value("B", _FLOAT32)
        put.value("I", 1)
    put.value("B", 0)
    put.value("I", 12)
    put.value("I", 12 * len(points))
    put.value("I", points.nbytes)
    put.raw(points.tobytes())
    put.value("B", 1)
    return put.done()


def odometry_from_wire(data: bytes) -> Odometry:
    """An Odometry message.

    Raises:
        DamagedMessage: It is cut off.
    """
    take = _Take(data)
    stamp, frame, child = _take_stamp(take), take.text(), take.text()
    pose = take.doubles(7)
    take.doubles(36)
    twist = take.doubles(6)
    return Odometry(stamp, frame, child, pose[:3].copy(), pose[[6, 3, 4, 5]], twist[:3].copy())


def odometry_to_wire(odometry: Odometry) -> bytes:
    """An Odometry message without covariances."""
    put = _Put()
    _put_stamp(put, odometry.stamp)
    put.text(odometry.frame)
    put.text(odometry.child)
    put.doubles(np.concatenate([odometry.position, odometry.quat[[1, 2, 3, 0]], np.zeros(36)]))
    put.doubles(np.concatenate([odometry.linear, np.zeros(3), np.zeros(36)]))
    return put.done()
