"""MuJoCo's own viewer."""

from __future__ import annotations

import threading

import mujoco.viewer

from trainer.viewer.clock import Clock
from trainer.viewer.picture import Picture
from trainer.viewer.session import Session


def show(session: Session, seconds: float | None) -> None:
    """Opens the window and steps the session in real time, for `seconds` or until the window is closed."""
    picture = Picture(session.env)
    steps = None if seconds is None else round(seconds / session.dt)
    others = set(threading.enumerate())
    # MuJoCo's own panels cover most of a small window; Tab and Shift-Tab bring them.
    viewer = mujoco.viewer.launch_passive(picture.model, picture.data, show_left_ui=False, show_right_ui=False)
    drawing = set(threading.enumerate()) - others
    clock = Clock(session.dt)
    try:
        with viewer.lock():
            viewer.cam.distance, viewer.cam.azimuth = picture.camera.distance, picture.camera.azimuth
            viewer.cam.elevation = picture.camera.elevation
        while viewer.is_running() and steps != 0:
            session.step()
            with viewer.lock():
                picture.refresh()
                viewer.cam.lookat[:] = picture.camera.lookat
            if clock.tick():
                viewer.sync()
            steps = None if steps is None else steps - 1
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()
        # It closes in its own time; a process that ends before it has crashes in the window system's clean-up.
        for thread in drawing:
            thread.join(timeout=10.0)
