"""A video of a logged motion: the joints as they were measured, the pelvis where odometry or the IMU had it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from trainer.viewer.offscreen import choose_gl

_SIZE = (960, 720)


def record(table: Mapping[str, np.ndarray], path: Path, hz: float = 50.0) -> None:
    """Writes the video.

    Args:
        table: The arrays of a `trainer.deploy.replay.Table`.
        path: An .mp4 file.
        hz: Rate of the table's rows.

    Raises:
        ValueError: The table is empty.
        NoOffscreenGL: Nothing draws here.
    """
    if not len(table["time"]):
        raise ValueError("--video: the log has no control step")
    choose_gl()  # before MuJoCo is imported
    import mujoco  # noqa: PLC0415

    from trainer.engines.mjcf.model import build_model  # noqa: PLC0415
    from trainer.tasks.robots import G1  # noqa: PLC0415
    from trainer.viewer.video import _writer  # noqa: PLC0415

    model = build_model(G1, None, visual=True)
    data = mujoco.MjData(model)
    joints = [model.joint(str(name)).qposadr[0] for name in table["motors"]]
    placed = len(table["pose"]) == len(table["time"])
    camera = mujoco.MjvCamera()
    camera.type, camera.trackbodyid = mujoco.mjtCamera.mjCAMERA_TRACKING, model.body("pelvis").id
    camera.distance, camera.azimuth, camera.elevation = 3.0, 120.0, -15.0
    renderer = mujoco.Renderer(model, _SIZE[1], _SIZE[0])
    writer = _writer(path, _SIZE, hz)
    try:
        for row in range(len(table["time"])):
            data.qpos[:3] = table["pose"][row][:3] if placed else (0.0, 0.0, G1.standing_height)
            data.qpos[3:7] = table["quat"][row]
            data.qpos[joints] = table["position"][row]
            mujoco.mj_forward(model, data)
            renderer.update_scene(data, camera)
            writer.send(renderer.render().tobytes())
    finally:
        renderer.close()
        writer.close()
