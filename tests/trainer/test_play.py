"""`p3 play` renders an mp4 without a display."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def can_render() -> bool:
    program = "import mujoco; mujoco.Renderer(mujoco.MjModel.from_xml_string('<mujoco/>'), 32, 32).render()"
    environment = os.environ | {"MUJOCO_GL": "egl"}
    return (
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, check=False).returncode
        == 0
    )


def p3(*arguments, **environment):
    command = [sys.executable, "-m", "trainer.cli", *map(str, arguments)]
    environment = {k: v for k, v in os.environ.items() if k not in ("DISPLAY", "WAYLAND_DISPLAY")} | environment
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=300, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play") / "run"
    options = ("--num-envs", 4, "--ppo.num-steps-per-env", 4, "--no-tensorboard", "--model.hidden-dims", 8, 8)
    done = p3("train", "--task", "walker-parkour", "--iterations", 1, "--run-dir", folder, *options)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.skipif(not can_render(), reason="no off-screen OpenGL (EGL) on this machine")
def test_video_is_written_where_there_is_no_display(run):
    done = p3("play", run, "--seconds", 1.0, "--width", 160, "--height", 120)
    assert done.returncode == 0, done.stderr
    assert "no display: rendering to" in done.stdout
    video = (run / "play.mp4").read_bytes()
    assert video[4:8] == b"ftyp"
    assert len(video) > 2000


def test_wrong_video_names_are_one_line(run):
    done = p3("play", run, "--video", run / "film.avi")
    assert done.returncode == 2
    assert "--video: expected a name ending in .mp4" in done.stderr
    done = p3("play", run.parent / "nothing")
    assert done.returncode == 2
    assert "no run in" in done.stderr
