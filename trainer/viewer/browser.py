"""The page: a viser server, and the loop that steps the robot in real time and shows it."""

from __future__ import annotations

import contextlib
import errno
import io
import socket
import sys
import time
from collections.abc import Iterator

import viser

from trainer.viewer.clock import Clock
from trainer.viewer.panel import Panel
from trainer.viewer.plots import Plots
from trainer.viewer.scene import Scene
from trainer.viewer.session import Session

PANEL_EVERY = 0.2
"""Seconds between two updates of texts and plots: faster than anybody reads, and a plot is all of its points."""
_IDLE = 0.02


class BrowserViewer:
    """A session on a page.

    Args:
        server: Listens already.
        session: What is watched.
        title: Title of the page's panel.
        plain: Whether the scene is drawn without shadows and reflections.
    """

    def __init__(self, server: viser.ViserServer, session: Session, title: str, plain: bool = False) -> None:
        self.server, self.session, self.clock = server, session, Clock(session.dt)
        self.steps = 0
        self._shown = -1.0
        gui = server.gui
        gui.configure_theme(show_share_button=False, show_logo=False)
        gui.set_panel_label(title)
        gui.main_panel.dock_right()
        gui.main_panel.set_width(300)
        self.panel = Panel(gui, session)
        charts = gui.add_panel()
        with charts.add_tab("Uncertainty", viser.Icon.CHART_LINE):
            self.plots = Plots(gui, session.task.config.robot.joint_names, session.dt, session.proprio_latent)
        charts.dock_left()
        charts.set_width(340)
        self.scene = Scene(server, session.env, plain)

    def run(self, seconds: float | None = None) -> None:
        """Goes on for so many seconds on the clock, or until it is interrupted."""
        end = None if seconds is None else time.monotonic() + seconds
        self.clock.restart()
        while end is None or time.monotonic() < end:
            self.advance()

    def advance(self) -> None:
        """One turn of the loop: what was asked for on the page, a control step unless paused, a frame unless late."""
        panel, session = self.panel, self.session
        restart = panel.take_restart()
        if restart is not None:
            session.restart(difficulty=restart.difficulty, terrain=restart.terrain)
            self._shown = -1.0
        session.latent = panel.latent.value
        session.drive(panel.command())
        self.scene.follow = panel.follow.value
        self.scene.show(robot=panel.robot.value, scan=panel.scan.value)
        if panel.take_step():
            session.step()
            self.steps += 1
            self.plots.add(self.steps * session.dt, session.spread())
            due = self.clock.tick()
        else:
            time.sleep(_IDLE)
            self.clock.restart()
            due = restart is not None
        if due:
            self.scene.draw()
        if due and time.monotonic() - self._shown >= PANEL_EVERY:
            self._shown = time.monotonic()
            panel.show(session, self.clock)
            self.plots.draw()


def serve(session: Session, title: str, *, host: str, port: int, seconds: float | None, plain: bool) -> None:
    """Serves the page, says where, and goes on until Ctrl-C.

    Raises:
        ValueError: It cannot be served at this address.
    """
    check_address(host, port)
    with _quiet():
        server = viser.ViserServer(host=host, port=port, label=title, verbose=False)
    try:
        viewer = BrowserViewer(server, session, title, plain)
        port = server.get_port()
        print(f"viewer: http://{'localhost' if host in ('127.0.0.1', '0.0.0.0') else host}:{port} (Ctrl-C ends it)")
        if host == "127.0.0.1":
            print(f"from another machine: ssh -L {port}:localhost:{port} THIS-MACHINE, then the same address")
        sys.stdout.flush()
        viewer.run(seconds)
    except KeyboardInterrupt:
        pass
    finally:
        with _quiet():
            server.stop()
    print("viewer: closed")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """viser tells in its own way where it listens and that it stopped, whatever it is asked to."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def check_address(host: str, port: int) -> None:
    """Refuses an address that nothing can listen at: viser would wait for its own server for ever.

    A port that is taken is no obstacle, since the next free one is used.
    """
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--host: {host!r} is no address of this machine ({error})") from error
    with socket.socket(kind, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(address)
        except PermissionError as error:
            raise ValueError(f"--port: {port} may not be used ({error.strerror}); try 8080") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"--host: cannot serve at {host!r}: {error.strerror}") from error
