"""A video of a session, rendered off-screen: mp4, or GIF."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import mujoco

from trainer.viewer.picture import Picture
from trainer.viewer.session import Session

FPS = 25
"""Frames a second. A frame of the G1, 393,000 triangles, takes a software renderer a third of a second of a processor,
and each is drawn; a GIF's frames could not be shorter either: viewers slow down those of less than 20 ms."""
# One palette, of the first second's colours: counting those of all frames would keep all of them in memory. An ordered
# dither keeps still what does not move.
_GIF_FILTER = (
    f"split[frames][first];[first]trim=end_frame={FPS},palettegen=stats_mode=full[palette];"
    "[frames][palette]paletteuse=dither=bayer:bayer_scale=5:diff_mode=rectangle"
)


def record(session: Session, path: Path, seconds: float, width: int, height: int) -> None:
    """Steps the session for `seconds` and writes what it looks like to `path`."""
    picture = Picture(session.env)
    scene = picture.model.vis.global_
    scene.offwidth, scene.offheight = max(scene.offwidth, width), max(scene.offheight, height)
    picture.model.vis.quality.shadowsize = 2048  # MuJoCo's 4096 is most of the time of a software renderer
    rate = round(1 / session.dt)
    skip = max(rate // FPS, 1)
    writer = _writer(path, (width, height), rate / skip)
    renderer = mujoco.Renderer(picture.model, height, width)
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0  # everything once more, for a shimmer on the floor
    bar = _Bar(round(seconds * rate))
    try:
        for index in range(round(seconds * rate)):
            session.step()
            if index % skip == 0:
                picture.refresh()
                renderer.update_scene(picture.data, picture.camera)
                writer.send(renderer.render().tobytes())
            bar.show(index + 1)
    finally:
        bar.close()
        renderer.close()
        writer.close()


class _Bar:
    """How far a video is, on stderr: one line that is written again in a terminal, else a line now and then.

    Without a GPU nearly all of the time is OpenGL in software: the robot's meshes, their edges and shadows.

    Args:
        total: Steps of the whole video.
    """

    def __init__(self, total: int) -> None:
        self._total, self._begin, self._shown = total, time.monotonic(), 0.0
        self._terminal = sys.stderr.isatty()

    def show(self, done: int) -> None:
        """Shows the progress after so many steps."""
        passed = time.monotonic() - self._begin
        if passed - self._shown < (0.2 if self._terminal else 10.0) and done < self._total:
            return
        self._shown = passed
        left = passed / done * (self._total - done)
        filled = "#" * round(30 * done / self._total)
        line = f"[{filled:<30}] {done / self._total:4.0%}, about {left:.0f} s left"
        if self._terminal:
            print(f"\r{line}   ", end="", file=sys.stderr, flush=True)
        elif done < self._total:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Ends the line."""
        if self._terminal and self._shown:
            print(file=sys.stderr)


def _writer(path: Path, size: tuple[int, int], fps: float) -> Any:
    import imageio_ffmpeg  # noqa: PLC0415  only a video needs it

    if path.suffix == ".gif":
        options = {"codec": "gif", "pix_fmt_out": "pal8", "output_params": ["-vf", _GIF_FILTER, "-loop", "0"]}
    else:
        options = {}
    quiet = {"ffmpeg_log_level": "error", "macro_block_size": 2}
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=fps, **quiet, **options)
    writer.send(None)
    return writer
