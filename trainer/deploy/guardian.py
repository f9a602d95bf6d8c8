"""A second process that damps the robot when the controller is gone: killed, hung, or ended with the motors stiff.

The controller feeds it through a pipe: `a` in every control step with stiff motors, `d` in every one without, `q` at
its end. The pipe's end (the controller was killed) or a gap after an `a` (it hangs) makes the guardian publish damping;
it goes on until the controller says `d` again, or for `DAMPED_SECONDS` where nobody is left to say it.

Run by the controller as `python -m trainer.deploy.guardian INTERFACE DOMAIN MODE_MACHINE DAMPING TIMEOUT`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from trainer.deploy.bus import Bus, BusError
from trainer.deploy.motor_commands import damping_command
from trainer.deploy.unitree import LOW_COMMAND_TOPIC, command_to_wire, message_types

PERIOD = 0.004
DAMPED_SECONDS = 10.0
"""How long an orphaned guardian publishes. The motors' last command is damping then, and they keep it."""
READY = b"ready\n"
_PRIORITY = 20
_ARMED, _DAMPED, _QUIT = b"a", b"d", b"q"


def ask_for_priority() -> str | None:
    """Asks for a real-time priority for this thread and those it starts: DDS's have to keep up with it.

    Returns:
        Why not, where it is refused.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    except (OSError, AttributeError) as error:
        return str(error)
    return None


class GuardianLost(RuntimeError):
    """The guardian has ended; without it no motor may be stiff."""


class Guardian:
    """The controller's end: starts the process and feeds it.

    Args:
        interface: Network interface of the controller's bus.
        domain: Likewise.
        mode_machine: What the robot says of itself; a damping command must repeat it.
        damping: N m s/rad.
        timeout: Longest gap between two steps with stiff motors, s.

    Raises:
        BusError: It does not start.
    """

    def __init__(self, interface: str, domain: int, mode_machine: int, damping: float, timeout: float) -> None:
        words = [interface, str(domain), str(mode_machine), str(damping), str(timeout)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "trainer.deploy.guardian", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # what ends the controller's terminal must not end this
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._pipe = self._process.stdin.fileno()
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._pipe, False)
        ready = select.select([self._stdout], [], [], 15.0)[0]
        if not ready or self._stdout.readline() != READY:
            self._process.kill()
            raise BusError("the guardian process did not start; nothing would damp the robot if this one were killed")

    @property
    def pid(self) -> int:
        """Number of the guardian's process."""
        return self._process.pid

    def feed(self, armed: bool) -> None:
        """Says that the controller is alive; to be called in every control step.

        Raises:
            GuardianLost: It is not.
        """
        try:
            os.write(self._pipe, _ARMED if armed else _DAMPED)
        except BlockingIOError:
            pass  # it has much to read, so it is not starving
        except OSError as error:
            raise GuardianLost("the guardian process has ended") from error

    def close(self) -> None:
        """Ends it; the last command on the wire must be damping by now."""
        try:
            os.write(self._pipe, _QUIT)
            self._stdin.close()
        except OSError:
            pass  # it has ended already
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._stdout.close()


def main(arguments: Sequence[str]) -> int:
    """Runs the guardian's process."""
    interface, domain, mode_machine, damping, timeout = arguments
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the controller; this one ends when its work is done
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ask_for_priority()  # the controller says where it is refused
    bus = Bus(interface, int(domain))
    writer = bus.writer(LOW_COMMAND_TOPIC, message_types()[0])
    wire = command_to_wire(damping_command(int(mode_machine), float(damping)))
    end = time.monotonic() + 5.0
    while not writer.listeners() and time.monotonic() < end:  # so that the first damping command already arrives
        time.sleep(0.01)
    sys.stdout.buffer.write(READY)
    sys.stdout.flush()
    armed, damping_now, orphaned, since = False, False, False, 0.0
    while True:
        wait = PERIOD if damping_now else float(timeout) if armed else None
        if orphaned:
            time.sleep(PERIOD)
        elif select.select([0], [], [], wait)[0]:
            said = os.read(0, 4096)
            if _QUIT in said:
                return 0
            if not said:
                orphaned = damping_now = True
                since = time.monotonic()
            else:
                armed = said[-1:] == _ARMED
                damping_now = damping_now and armed
        elif armed:
            damping_now = True
        if damping_now:
            writer.write(wire)
        if orphaned and time.monotonic() - since > DAMPED_SECONDS:
            return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BusError as error:
        sys.exit(f"guardian: {error}")
