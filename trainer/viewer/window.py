"""MuJoCo's own viewer."""

from __future__ import annotations

import mujoco.viewer

from trainer.viewer.clock import Clock
from trainer.viewer.picture import Picture
from trainer.viewer.session import Session


def show(session: Session, seconds: float | None) -> None:
    """Opens the window and steps the session in real time, for `seconds` or until the window is closed."""
    picture = Picture(session.env)
    clock = Clock(session.dt)
    steps = None if seconds is None else round(seconds / session.dt)
    with mujoco.viewer.launch_passive(picture.model, picture.data) as viewer:
        viewer.cam.distance, viewer.cam.azimuth, viewer.cam.elevation = 3.0, 135.0, -15.0
        while viewer.is_running() and steps != 0:
            session.step()
            with viewer.lock():
                picture.refresh()
                viewer.cam.lookat[:] = picture.camera.lookat
            if clock.tick():
                viewer.sync()
            steps = None if steps is None else steps - 1
