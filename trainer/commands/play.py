"""`p3 play`: watch a trained policy, in the browser, in MuJoCo's viewer or as a video."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from trainer.config.command_line import check_writable, parse
from trainer.config.commands import PlayConfig
from trainer.runs.named_checkpoint import read_run_checkpoint
from trainer.viewer.offscreen import choose_gl

VIDEO_SECONDS = 10.0
VIDEO_SUFFIXES = (".mp4", ".gif")


def main(arguments: Sequence[str], prog: str = "p3 play") -> int:
    """Shows or records one episode after another."""
    config = parse(PlayConfig, arguments, prog)
    return _play(config)


def choose_viewer(config: PlayConfig, *, display: bool, terminal: bool) -> str:
    """One of "mujoco", "browser" and "none", as the help of --viewer says.

    Args:
        config: What was asked for.
        display: Whether a window can be opened.
        terminal: Whether somebody is there to read the page's address and to press Ctrl-C.

    Raises:
        ValueError: The options contradict each other.
    """
    if config.viewer != "auto":
        if config.video is not None and config.viewer != "none":
            raise ValueError(f"--video: is rendered off-screen, without --viewer {config.viewer}")
        return config.viewer
    if config.video is not None:
        return "none"
    if display:
        return "mujoco"
    return "browser" if terminal else "none"


def _play(config: PlayConfig) -> int:
    display = _has_display()
    viewer = choose_viewer(config, display=display, terminal=sys.stdout.isatty())
    video = config.video or read_run_checkpoint(config.checkpoint).output("play.mp4")
    if viewer == "none":
        check_writable(video, "--video", VIDEO_SUFFIXES)
        gl = choose_gl()
    elif viewer == "mujoco" and not display:
        raise ValueError("--viewer mujoco: there is no display (DISPLAY and WAYLAND_DISPLAY are not set)")
    # MuJoCo reads MUJOCO_GL when it is imported, so these wait until it is set.
    import torch  # noqa: PLC0415

    from trainer.evaluation.episodes import terrain_difficulty  # noqa: PLC0415
    from trainer.runs.policy import load_candidate  # noqa: PLC0415
    from trainer.tasks import LocomotionTask  # noqa: PLC0415
    from trainer.viewer.session import Session  # noqa: PLC0415

    candidate = load_candidate(config.checkpoint)
    run, path = candidate.config, candidate.path
    if candidate.choice:
        print(candidate.choice, file=sys.stderr)
    task = LocomotionTask(candidate.task)
    torch.manual_seed(config.seed)
    difficulty = terrain_difficulty(task, config.difficulty)
    session = Session(
        candidate.actor, task, latent=config.latent, difficulty=difficulty, terrain=config.terrain, seed=config.seed
    )
    print(f"{path}: {run.task}, {run.method}")
    if viewer == "mujoco":
        from trainer.viewer.window import show  # noqa: PLC0415  needs a window system

        show(session, config.seconds)
    elif viewer == "browser":
        from trainer.viewer.browser import serve  # noqa: PLC0415

        title = f"{run.task}, {run.method}, {path.stem}"
        serve(session, title, host=config.host, port=config.port, seconds=config.seconds, plain=config.plain)
    else:
        from trainer.viewer.video import record  # noqa: PLC0415

        print(f"{'' if display else 'no display: '}rendering to {video}" + (f" by {gl}" if gl else ""))
        record(session, video, config.seconds or VIDEO_SECONDS, config.width, config.height)
        print(f"video: {video.resolve()}")
    return 0


def _has_display() -> bool:
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True
