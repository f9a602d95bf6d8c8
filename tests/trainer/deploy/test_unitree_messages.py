"""Unitree's messages: bytes, checksum and remote, against CycloneDDS's own serialiser and the plain definitions."""

from __future__ import annotations

import struct
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.trainer.robot_pair import needs_dds

from trainer.deploy import unitree
from trainer.deploy.unitree import Remote


def random_message(dtype, seed):
    """Every member random, gaps zero, floats finite."""
    rng = np.random.default_rng(seed)

    def fill(record):
        for name in record.dtype.names:
            if record.dtype[name].base.names:
                for item in record[name]:
                    fill(item)
            elif "gap" not in name:
                kind = record.dtype[name].base
                shape = record[name].shape
                values = rng.normal(size=shape) if kind.kind == "f" else rng.integers(0, 100, shape)
                record[name] = np.asarray(values).astype(kind)

    message = np.zeros((1,), dtype)
    fill(message[0])
    return message[0]


def plain_crc(words):
    """The definition, bit by bit."""
    crc = 0xFFFFFFFF
    for word in words:
        for bit in range(31, -1, -1):
            top = crc >> 31 ^ word >> bit & 1
            crc = (crc << 1 & 0xFFFFFFFF) ^ (0x04C11DB7 if top else 0)
    return crc


@pytest.mark.parametrize("dtype", [unitree.LOW_COMMAND, unitree.LOW_STATE])
def test_the_checksum_is_the_plain_definition(dtype):
    memory = random_message(dtype, 1).tobytes()
    words = struct.unpack(f"<{len(memory) // 4}I", memory)
    assert unitree.checksum(memory) == plain_crc(words[:-1])


def test_the_sizes_are_those_of_the_robots_structures():
    assert unitree.LOW_COMMAND.itemsize == 1004
    assert unitree.LOW_STATE.itemsize == 2092


@pytest.mark.parametrize("byte", [0, 3, 500, 999])
def test_one_flipped_bit_is_seen(byte):
    message = unitree.sealed(random_message(unitree.LOW_COMMAND, 2))
    assert unitree.intact(message)
    damaged = bytearray(message.tobytes())
    damaged[byte] ^= 4
    assert not unitree.intact(np.frombuffer(bytes(damaged), unitree.LOW_COMMAND)[0])


def test_round_trips():
    command, state = random_message(unitree.LOW_COMMAND, 3), random_message(unitree.LOW_STATE, 4)
    assert unitree.command_from_wire(unitree.command_to_wire(command)) == command
    assert unitree.state_from_wire(unitree.state_to_wire(state)) == state


@pytest.mark.parametrize(
    ("data", "words"),
    [(b"", "encoding"), (b"\x00\x00\x00\x00" + bytes(2088), "encoding"), (b"\x00\x01\x00\x00" + bytes(100), "2088")],
)
def test_damaged_bytes_are_refused(data, words):
    with pytest.raises(unitree.DamagedMessage, match=words):
        unitree.state_from_wire(data)


def namespace(record):
    """A record as an object with attributes, nested as the IDL types are."""
    fields = {}
    for name in record.dtype.names:
        if "gap" in name:
            continue
        value = record[name]
        if record.dtype[name].base.names:
            fields[name] = [namespace(item) for item in value]
        else:
            fields[name] = value.tolist()
    return SimpleNamespace(**fields)


@needs_dds
def test_cyclonedds_writes_the_same_bytes():
    command_type, state_type = unitree.message_types()
    command = random_message(unitree.LOW_COMMAND, 5)
    assert command_type.__idl__.serialize(namespace(command), use_version_2=False) == unitree.command_to_wire(command)
    state = random_message(unitree.LOW_STATE, 6)
    plain = namespace(state)
    plain.imu_state = SimpleNamespace(
        quaternion=plain.quaternion,
        gyroscope=plain.gyroscope,
        accelerometer=plain.accelerometer,
        rpy=plain.rpy,
        temperature=plain.imu_temperature,
    )
    assert state_type.__idl__.serialize(plain, use_version_2=False) == unitree.state_to_wire(state)


@needs_dds
def test_type_names_are_unitrees():
    command_type, state_type = unitree.message_types()
    assert command_type.__idl_typename__ == "unitree_hg.msg.dds_.LowCmd_"
    assert state_type.__idl_typename__ == "unitree_hg.msg.dds_.LowState_"
    assert (unitree.LOW_COMMAND_TOPIC, unitree.LOW_STATE_TOPIC) == ("rt/lowcmd", "rt/lowstate")


def test_the_remote():
    remote = Remote(frozenset(("L2", "up", "A")), -0.5, 0.25, 1.0, -1.0)
    data = unitree.remote_bytes(remote)
    assert len(data) == 40
    assert data[2:4] == bytes([1 << 5, 1 << 0 | 1 << 4])  # L2 is bit 5; A is bit 8, up is bit 12
    assert struct.unpack_from("<f", data, 4) == (-0.5,)  # lx
    assert struct.unpack_from("<f", data, 20) == (0.25,)  # ly
    assert unitree.remote_of(data) == remote
    assert unitree.remote_of(bytes(40)) == Remote(frozenset())
    with pytest.raises(ValueError, match="no button 'L9'"):
        unitree.remote_bytes(Remote(frozenset(("L9",))))
    nan = data[:4] + struct.pack("<f", float("nan")) + data[8:]
    assert unitree.remote_of(nan).left_x == 0.0
