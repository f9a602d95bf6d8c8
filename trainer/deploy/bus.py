"""DDS as Unitree's robots speak it: one network interface, default quality of service, nothing at import.

On the loopback interface multicast is off and the only peer is 127.0.0.1: nothing leaves the machine.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

LOOPBACK = "lo"
DOMAIN = 0
"""The G1's; `unitree_mujoco` uses 1 by default."""
_LOOPBACK_SETTINGS = """\
<CycloneDDS><Domain Id="any">
  <General>
    <Interfaces><NetworkInterface name="lo" multicast="false"/></Interfaces>
    <AllowMulticast>false</AllowMulticast>
  </General>
  <Discovery>
    <ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>40</MaxAutoParticipantIndex>
    <Peers><Peer Address="127.0.0.1"/></Peers>
  </Discovery>
</Domain></CycloneDDS>"""
_SETTINGS = """\
<CycloneDDS><Domain Id="any">
  <General><Interfaces><NetworkInterface name="{name}"/></Interfaces></General>
</Domain></CycloneDDS>"""


class BusError(OSError):
    """The network or the DDS library is not as it must be; the message says what to do."""


def check_interface(name: str) -> None:
    """Refuses a network interface that this machine does not have.

    Raises:
        BusError: Naming those it has.
    """
    names = [existing for _, existing in socket.if_nameindex()]
    if name not in names:
        raise BusError(f"--interface: there is no {name!r} here; there are {', '.join(names)}")


def settings_of(interface: str) -> str:
    """CycloneDDS's configuration for one interface."""
    return _LOOPBACK_SETTINGS if interface == LOOPBACK else _SETTINGS.format(name=interface)


class Bus:
    """A participant on one interface.

    Args:
        interface: Name of the network interface; `lo` stays on this machine.
        domain: DDS domain.

    Raises:
        BusError: There is no such interface, or CycloneDDS is missing or does not start.
    """

    def __init__(self, interface: str, domain: int = DOMAIN) -> None:
        check_interface(interface)
        if not 0 <= domain <= 230:
            raise BusError(f"--domain: expected 0 to 230, got {domain}")
        try:
            from cyclonedds.core import DDSException  # noqa: PLC0415  nothing at import
            from cyclonedds.domain import Domain, DomainParticipant  # noqa: PLC0415
        except ImportError as error:
            raise BusError(f"CycloneDDS is not installed ({error}); run: pip install 'p3kernels[deploy]'") from error
        try:
            self._domain = Domain(domain, settings_of(interface))
            self.participant = DomainParticipant(domain)
        except DDSException as error:
            raise BusError(f"DDS does not start on {interface!r}, domain {domain}: {error}") from error
        self.interface = interface

    def writer(self, topic: str, kind: Any) -> Writer:
        """Publishes `kind` on `topic`."""
        return Writer(self, topic, kind)

    def reader(self, topic: str, kind: Any, depth: int = 16, *, reliable: bool = False) -> Reader:
        """Subscribes to `topic`; the newest `depth` messages wait to be taken. `reliable` asks again for lost ones."""
        return Reader(self, topic, kind, depth, reliable)


class Writer:
    """Publishes messages of one topic. Reliable, as Unitree's SDK offers it; never blocks for long."""

    def __init__(self, bus: Bus, topic: str, kind: Any) -> None:
        from cyclonedds.core import DDSException  # noqa: PLC0415
        from cyclonedds.pub import DataWriter  # noqa: PLC0415
        from cyclonedds.qos import Policy, Qos  # noqa: PLC0415
        from cyclonedds.topic import Topic  # noqa: PLC0415

        quality = Qos(
            Policy.Reliability.Reliable(1_000_000),  # 1 ms: a full queue is a lost message, not a pause of the loop
            Policy.History.KeepLast(1),
            Policy.DataRepresentation(use_cdrv0_representation=True),
        )
        self._bus = bus  # a bus that nobody holds takes its readers and writers with it
        self._kind, self._error = kind, DDSException
        self._writer = DataWriter(bus.participant, Topic(bus.participant, topic, kind), quality)

    def write(self, wire: bytes) -> bool:
        """Sends a message's bytes; False where the network did not take them."""
        try:
            self._writer.write(self._kind(wire))
        except self._error:
            return False
        return True

    def listeners(self) -> int:
        """How many readers have been found."""
        return _count(self._writer.get_matched_subscriptions)


class Reader:
    """Takes messages of one topic, oldest first."""

    def __init__(self, bus: Bus, topic: str, kind: Any, depth: int, reliable: bool) -> None:
        from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState, WaitSet  # noqa: PLC0415
        from cyclonedds.qos import Policy, Qos  # noqa: PLC0415
        from cyclonedds.sub import DataReader  # noqa: PLC0415
        from cyclonedds.topic import Topic  # noqa: PLC0415

        quality = Qos(
            # Mostly best effort: an old state is of no use, and a robot may offer no more.
            Policy.Reliability.Reliable(0) if reliable else Policy.Reliability.BestEffort,
            Policy.History.KeepLast(depth),
            Policy.IgnoreLocal.Participant,
            Policy.DataRepresentation(use_cdrv0_representation=True, use_xcdrv2_representation=False),
        )
        self._bus, self._depth = bus, depth
        self._reader = DataReader(bus.participant, Topic(bus.participant, topic, kind), quality)
        self._waiting = WaitSet(bus.participant)
        self._condition = ReadCondition(self._reader, ViewState.Any | InstanceState.Any | SampleState.NotRead)
        self._waiting.attach(self._condition)

    def take(self) -> list[Any]:
        """What has come, oldest first; does not wait."""
        return [sample for sample in self._reader.take(self._depth) if sample.sample_info.valid_data]

    def wait(self, seconds: float) -> None:
        """Returns when something has come, or after `seconds`."""
        self._waiting.wait(max(int(seconds * 1e9), 1))

    def writers(self) -> int:
        """How many writers have been found."""
        return _count(self._reader.get_matched_publications)


def _count(matched: Callable[[], list[Any]]) -> int:
    """How many there are; CycloneDDS counts and lists in two steps and stumbles over one that comes in between."""
    while True:
        try:
            return len(matched())
        except IndexError:
            continue
