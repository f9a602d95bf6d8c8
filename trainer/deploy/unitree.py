"""Unitree's `unitree_hg` messages: their public layout, their checksum, and a codec that is quick enough for 500 Hz.

Type names, member names and topic names are those of Unitree's SDK, so that a robot, `unitree_mujoco` and the SDK's own
tools understand what is sent. A message is held as its bytes in memory order, which its checksum is of, with a numpy
view on it; the wire form (CDR, little endian) differs from that by one gap alone, before the first motor.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np

LOW_COMMAND_TOPIC = "rt/lowcmd"
LOW_STATE_TOPIC = "rt/lowstate"
SLOTS = 35
"""Motors in a message; a G1 uses the first 29."""
MODE_PITCH_ROLL = 0
"""`mode_pr`: ankles and waist are commanded as pitch and roll, not as their linkage's motors A and B."""
ENABLED = 1

_MOTOR_COMMAND = np.dtype(
    [
        ("mode", "u1"),
        ("gap", "u1", 3),
        ("q", "<f4"),
        ("dq", "<f4"),
        ("tau", "<f4"),
        ("kp", "<f4"),
        ("kd", "<f4"),
        ("reserve", "<u4"),
    ]
)
LOW_COMMAND = np.dtype(
    [
        ("mode_pr", "u1"),
        ("mode_machine", "u1"),
        ("gap", "u1", 2),
        ("motor_cmd", _MOTOR_COMMAND, SLOTS),
        ("reserve", "<u4", 4),
        ("crc", "<u4"),
    ]
)
_MOTOR_STATE = np.dtype(
    [
        ("mode", "u1"),
        ("gap", "u1", 3),
        ("q", "<f4"),
        ("dq", "<f4"),
        ("ddq", "<f4"),
        ("tau_est", "<f4"),
        ("temperature", "<i2", 2),
        ("vol", "<f4"),
        ("sensor", "<u4", 2),
        ("motorstate", "<u4"),
        ("reserve", "<u4", 4),
    ]
)
LOW_STATE = np.dtype(
    [
        ("version", "<u4", 2),
        ("mode_pr", "u1"),
        ("mode_machine", "u1"),
        ("gap", "u1", 2),
        ("tick", "<u4"),
        ("quaternion", "<f4", 4),
        ("gyroscope", "<f4", 3),
        ("accelerometer", "<f4", 3),
        ("rpy", "<f4", 3),
        ("imu_temperature", "<i2"),
        ("imu_gap", "u1", 2),
        ("motor_state", _MOTOR_STATE, SLOTS),
        ("wireless_remote", "u1", 40),
        ("reserve", "<u4", 4),
        ("crc", "<u4"),
    ]
)
_CDR_LITTLE_ENDIAN = b"\x00\x01\x00\x00"
# Before the first motor's `mode`, one byte, a structure in memory has a gap of two bytes that CDR has not; both then go
# on at the next multiple of four. So the wire lacks four bytes from here on:
_COMMAND_GAP, _STATE_GAP = 2, 70
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


class DamagedMessage(ValueError):
    """A message of another size, byte order or encoding than its type has."""


def checksum(memory: bytes) -> int:
    """CRC-32 of a message in memory order: polynomial 0x04C11DB7 over its 32-bit words but the last, no reflection.

    zlib's CRC is the reflected one: of bit-reversed bytes it is this one, bit-reversed and inverted.
    """
    words = np.frombuffer(memory, "<u4", count=len(memory) // 4 - 1).byteswap().tobytes()
    reflected = zlib.crc32(words.translate(_REVERSED_BITS)) ^ 0xFFFFFFFF
    return int.from_bytes(reflected.to_bytes(4, "little").translate(_REVERSED_BITS), "big")


def new_command() -> np.ndarray:
    """A LOW_COMMAND of zeros, to be filled; a scalar record whose fields are views."""
    return np.zeros((), LOW_COMMAND)


def new_state() -> np.ndarray:
    """A LOW_STATE of zeros, to be filled."""
    return np.zeros((), LOW_STATE)


def sealed(message: np.ndarray) -> np.ndarray:
    """The same message, with its checksum written into it."""
    message["crc"] = checksum(message.tobytes())
    return message


def intact(message: np.ndarray) -> bool:
    """Whether the message's checksum is right."""
    return int(message["crc"]) == checksum(message.tobytes())


@dataclass(frozen=True)
class _Wire:
    """A message between its memory and CDR bytes with their header."""

    kind: np.dtype
    gap: int
    """Where the memory has bytes for alignment that CDR has elsewhere."""
    name: str

    def pack(self, message: np.ndarray) -> bytes:
        """CDR with its header."""
        memory, gap = message.tobytes(), self.gap
        return b"".join((_CDR_LITTLE_ENDIAN, memory[:gap], memory[gap + 2 : gap + 3], b"\0", memory[gap + 6 :]))

    def unpack(self, data: bytes) -> np.ndarray:
        """The message of CDR bytes.

        Raises:
            DamagedMessage: They are not one.
        """
        if data[:2] != _CDR_LITTLE_ENDIAN[:2]:
            raise DamagedMessage(
                f"{self.name}: expected little-endian CDR (0x0001), got the encoding 0x{data[:2].hex()}"
            )
        size, gap = self.kind.itemsize - 4, self.gap
        body = data[4 : 4 + size]
        if len(body) != size:
            raise DamagedMessage(f"{self.name}: expected {size} bytes, got {len(body)}")
        memory = b"".join((body[:gap], b"\0\0", body[gap : gap + 1], b"\0\0\0", body[gap + 2 :]))
        return np.frombuffer(memory, self.kind)[0]


_COMMAND_WIRE, _STATE_WIRE = _Wire(LOW_COMMAND, _COMMAND_GAP, "LowCmd_"), _Wire(LOW_STATE, _STATE_GAP, "LowState_")
command_to_wire, command_from_wire = _COMMAND_WIRE.pack, _COMMAND_WIRE.unpack
"""A LOW_COMMAND to its bytes and back."""
state_to_wire, state_from_wire = _STATE_WIRE.pack, _STATE_WIRE.unpack
"""A LOW_STATE to its bytes and back."""


@dataclass(frozen=True)
class Remote:
    """The wireless remote, from the 40 bytes that come with every state."""

    pressed: frozenset[str]
    """Names of the buttons that are down, as Unitree's remote has them printed."""
    left_x: float = 0.0
    """Sticks, −1 to 1: x to the right, y forward."""
    left_y: float = 0.0
    right_x: float = 0.0
    right_y: float = 0.0


_BUTTONS = ("R1", "L1", "start", "select", "R2", "L2", "F1", "F2", "A", "B", "X", "Y", "up", "right", "down", "left")


def remote_of(data: bytes) -> Remote:
    """Decodes `wireless_remote`: two bytes of head, sixteen buttons, then lx, rx, ry, L2 and ly as floats."""
    bits = data[2] | data[3] << 8
    pressed = frozenset(name for index, name in enumerate(_BUTTONS) if bits >> index & 1)
    lx, rx, ry, _, ly = np.nan_to_num(np.frombuffer(data, "<f4", count=5, offset=4), posinf=0.0, neginf=0.0).tolist()
    return Remote(pressed, *(min(max(stick, -1.0), 1.0) for stick in (lx, ly, rx, ry)))


def remote_bytes(remote: Remote) -> bytes:
    """`wireless_remote` of a remote; what a simulated robot sends."""
    if unknown := remote.pressed - set(_BUTTONS):
        raise ValueError(f"remote: no button {sorted(unknown)[0]!r}; there are {', '.join(_BUTTONS)}")
    bits = sum(1 << _BUTTONS.index(name) for name in remote.pressed)
    sticks = np.array([remote.left_x, remote.right_x, remote.right_y, 0.0, remote.left_y], "<f4").tobytes()
    return (b"\0\0" + bits.to_bytes(2, "little") + sticks).ljust(40, b"\0")


def message_types() -> tuple[Any, Any]:
    """LowCmd_ and LowState_ as types of CycloneDDS, made on demand: the rest of this module works without it."""
    from trainer.deploy.unitree_types import LowCmd_, LowState_  # noqa: PLC0415  needs cyclonedds

    return LowCmd_, LowState_
