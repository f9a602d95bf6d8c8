"""`p3 play`: watch a trained policy, in MuJoCo's viewer or as an mp4 rendered off-screen."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
import tyro

if TYPE_CHECKING:
    from trainer.env import LocomotionEnv


@dataclass
class PlayConfig:
    """Watch a trained policy."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""
    video: Path | None = None
    """Write an mp4 here instead of opening a window; RUN_DIR/play.mp4 where there is no display."""
    latent: Literal["mean", "sample", "policy"] = "mean"
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    seconds: float = 10.0
    """How long."""
    level: int | None = None
    """Terrain level; 0 by default, on terrains."""
    seed: int = 1000
    """Of the episode."""
    checkpoint: Path | None = None
    """A checkpoint file; the run's latest by default."""
    width: int = 640
    """Of the video, pixels."""
    height: int = 480
    """Of the video, pixels."""


def main(arguments: Sequence[str], prog: str = "p3 play") -> int:
    """Shows or records one episode after another."""
    config = tyro.cli(PlayConfig, args=list(arguments), prog=prog)
    video = config.video
    if video is None and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        video = config.run_dir / "play.mp4"
        print(f"no display: rendering to {video}")
    if video is not None:
        os.environ.setdefault("MUJOCO_GL", "egl")
    # MuJoCo reads MUJOCO_GL when it is imported, so these wait until it is set.
    from trainer.env import LocomotionEnv  # noqa: PLC0415
    from trainer.evaluate import action_of, load_policy, terrain_level  # noqa: PLC0415
    from trainer.tasks import make_task  # noqa: PLC0415

    try:
        actor, run, path = load_policy(config.run_dir, config.checkpoint)
        task = make_task(run.task)
        torch.manual_seed(config.seed)
        env = LocomotionEnv(task, 1, seed=config.seed, num_threads=0, level=terrain_level(task, config.level))
        print(f"{path}: {run.task}, {run.method}")
        act = action_of(actor, config.latent)
        if video is None:
            _show(env, act, config.seconds)
        else:
            _record(env, act, config, video)
            print(f"video: {video.resolve()}")
    except (ValueError, OSError, ImportError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0


def _steps(env: LocomotionEnv, act: Callable[..., Any], seconds: float) -> Any:
    """Yields after every control step."""
    observations = env.get_observations()
    for _ in range(round(seconds / env.task.config.control_dt)):
        with torch.inference_mode():
            observations, *_ = env.step(act(observations))
        yield


def _record(env: LocomotionEnv, act: Callable[..., Any], config: PlayConfig, path: Path) -> None:
    import imageio_ffmpeg  # noqa: PLC0415  only a video needs it
    import mujoco  # noqa: PLC0415  after MUJOCO_GL is set

    if path.suffix != ".mp4":
        raise ValueError(f"--video: expected a name ending in .mp4, got {path}")
    if not path.parent.is_dir():
        raise ValueError(f"--video: no directory {path.parent}")
    scene = _Scene(env)
    renderer = mujoco.Renderer(scene.model, config.height, config.width)
    size = (config.width, config.height)
    rate = round(1 / env.task.config.control_dt)
    writer = imageio_ffmpeg.write_frames(str(path), size, fps=rate, macro_block_size=2)
    writer.send(None)
    try:
        for _ in _steps(env, act, config.seconds):
            if scene.refresh():
                renderer.close()
                renderer = mujoco.Renderer(scene.model, config.height, config.width)
            renderer.update_scene(scene.data, scene.camera)
            writer.send(renderer.render().tobytes())
        renderer.close()
    finally:
        writer.close()


def _show(env: LocomotionEnv, act: Callable[..., Any], seconds: float) -> None:
    import mujoco.viewer  # noqa: PLC0415  needs a window system

    scene = _Scene(env)
    with mujoco.viewer.launch_passive(scene.model, scene.data) as viewer:
        begin = time.monotonic()
        for index, _ in enumerate(_steps(env, act, seconds)):
            if not viewer.is_running():
                return
            scene.refresh(fixed_terrain=True)
            viewer.cam.lookat[:] = scene.data.qpos[:3]
            viewer.sync()
            time.sleep(max(0.0, begin + (index + 1) * env.task.config.control_dt - time.monotonic()))


class _Scene:
    """The picture's own model, with meshes and light, posed like environment 0."""

    def __init__(self, env: LocomotionEnv) -> None:
        import mujoco  # noqa: PLC0415  after MUJOCO_GL is set

        self._mujoco, self._env, self._tile = mujoco, env, -1
        self.camera = mujoco.MjvCamera()
        self.camera.distance, self.camera.azimuth, self.camera.elevation = 3.0, 135.0, -15.0
        self.refresh()

    def refresh(self, fixed_terrain: bool = False) -> bool:
        """Poses the picture; True if it had to be another model because the terrain changed."""
        tile = int(self._env.engine.tile_of[0])
        changed = tile != self._tile and not (fixed_terrain and self._tile >= 0)
        if changed:
            self._tile = tile
            self.model = self._env.engine.model_of(0, visual=True)
            self.data = self._mujoco.MjData(self.model)
        self.data.qpos[:] = self._env.engine.qpos_of(0)
        self._mujoco.mj_forward(self.model, self.data)
        position = self._env.state.root_pos[0]
        self.camera.lookat[:] = float(position[0]), float(position[1]), float(position[2]) - 0.2
        return changed
