"""`p3 play`: which viewer, videos without a display, and what is said where nothing can draw."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import forked
from helpers.trainer.small_runs import learned

from trainer import cli
from trainer.commands.play import PlayConfig, choose_viewer
from trainer.viewer.clock import GIVE_UP, MOST_SKIPPED, Clock
from trainer.viewer.offscreen import why_not

ROOT = Path(__file__).resolve().parents[3]
NO_EGL = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/dev/null"}  # libglvnd then finds no driver at all


def p3(*arguments, **environment):
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL", "PYOPENGL_PLATFORM")
    inherited = {k: v for k, v in os.environ.items() if k not in hidden}
    return forked.python("-m", "trainer.cli", *arguments, cwd=ROOT, env=inherited | environment)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return learned(tmp_path_factory.mktemp("play") / "run", iterations=1)


@pytest.fixture(scope="module")
def egl():
    trouble = why_not("egl")
    if trouble:
        pytest.skip(f"no EGL on this machine: {trouble}")


@pytest.mark.usefixtures("egl")
def test_video_is_written_where_there_is_neither_display_nor_terminal(run):
    done = p3("play", run, "--seconds", 0.5, "--width", 160, "--height", 120)
    assert done.returncode == 0, done.stderr
    assert f"no display: rendering to {run / 'play.mp4'} by egl" in done.stdout
    video = (run / "play.mp4").read_bytes()
    assert video[4:8] == b"ftyp"
    assert frames_of(run / "play.mp4") == (13, (160, 120))


@pytest.mark.usefixtures("egl")
def test_gif_of_one_checkpoint_has_half_the_frames_and_shows_something(run):
    gif = run / "film.gif"
    done = p3("play", run / "model_1.pt", "--video", gif, "--seconds", 0.8, "--width", 160, "--height", 120)
    assert done.returncode == 0, done.stderr
    assert str(run / "model_1.pt") in done.stdout
    assert gif.read_bytes()[:6] == b"GIF89a"
    assert frames_of(gif) == (20, (160, 120))
    assert len(set(first_frame(gif))) > 20


def frames_of(path):
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    size = next(reader)["size"]
    return sum(1 for _ in reader), size


def first_frame(path):
    """Colours of the pixels."""
    import imageio_ffmpeg

    reader = imageio_ffmpeg.read_frames(str(path))
    next(reader)
    frame = next(reader)
    reader.close()
    return [frame[i : i + 3] for i in range(0, len(frame), 3)]


def test_without_egl_it_is_osmesa_or_a_message_with_what_to_install(run):
    film = run / "other.mp4"
    done = p3("play", run, "--video", film, "--seconds", 0.1, "--width", 64, "--height", 48, **NO_EGL)
    if why_not("osmesa"):
        assert done.returncode == 2
        assert "no OpenGL draws without a window here: neither egl (" in done.stderr
        assert "apt-get install libegl1" in done.stderr
        assert "libosmesa6" in done.stderr
        assert "Traceback" not in done.stderr
        assert not film.exists()
    else:
        assert done.returncode == 0, done.stderr
        assert "by osmesa" in done.stdout


def test_what_mujoco_gl_asks_for_is_not_replaced(run):
    done = p3("play", run, "--video", run / "other.mp4", "--seconds", 0.1, MUJOCO_GL="off")
    assert done.returncode == 2
    assert "MUJOCO_GL=off does not draw without a window here" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--video", "film.avi"], "--video: expected a name ending in .mp4 or .gif"),
        (["--video", "nowhere/film.mp4"], "--video: no directory nowhere"),
        (["--video", "film.mp4", "--width", "161"], "--width: expected an even number"),
        (["--video", "film.mp4", "--viewer", "browser"], "--video: is rendered off-screen, without --viewer browser"),
        (["--viewer", "mujoco"], "--viewer mujoco: there is no display"),
        (["--seconds", "0"], "--seconds: expected a positive number, got 0"),
    ],
)
def test_wrong_arguments_are_one_line(arguments, message, run, capsys, monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert cli.main(["play", str(run), *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_wrong_runs_difficulties_and_terrains_are_one_line(run, capsys):
    for arguments, message in (
        ([run.parent / "nothing"], "CHECKPOINT: no run directory, no file and no policy"),
        ([run / "model_7.pt"], "model_7.pt"),
        ([run / "model_1.pt", "--difficulty", 99], "--difficulty: expected 0 to 1, got 99"),
        (
            [run / "model_1.pt", "--terrain", "ice"],
            "terrain: expected one of stairs, gaps, single_row_stones, flat, got 'ice'",
        ),
    ):
        assert cli.main(["play", *map(str, arguments), "--viewer", "browser", "--seconds", "0.1"]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("viewer", "video", "display", "terminal", "expected"),
    [
        ("auto", None, True, True, "mujoco"),
        ("auto", None, True, False, "mujoco"),
        ("auto", None, False, True, "browser"),
        ("auto", None, False, False, "none"),
        ("auto", Path("film.mp4"), True, True, "none"),
        ("browser", None, True, False, "browser"),
        ("none", Path("film.mp4"), True, True, "none"),
    ],
)
def test_choice_of_the_viewer(viewer, video, display, terminal, expected):
    config = PlayConfig(Path("run"), viewer=viewer, video=video)
    assert choose_viewer(config, display=display, terminal=terminal) == expected


class Time:
    """A clock's `now` and `wait`, and steps that take as long as they are told to."""

    def __init__(self):
        self.now, self.waited = 100.0, []

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.waited.append(seconds)
        self.now += seconds


def test_clock_waits_for_real_time():
    time = Time()
    clock = Clock(0.02, time, time.wait)
    for _ in range(100):
        time.now += 0.005
        assert clock.tick()
    assert time.now == pytest.approx(102.0)
    assert time.waited == pytest.approx([0.015] * 100)
    assert clock.speed == pytest.approx(1.0)


def test_late_frames_are_left_out_but_never_all_and_lost_time_is_let_go():
    time = Time()
    clock = Clock(0.02, time, time.wait)
    drawn = []
    for _ in range(60):
        time.now += 0.04  # half of real time
        drawn.append(clock.tick())
    assert not time.waited
    tail = drawn[10:]
    assert sum(tail) == pytest.approx(len(tail) / (MOST_SKIPPED + 1), abs=1)
    assert clock.speed == pytest.approx(0.5)
    time.now += 10 * GIVE_UP
    clock.tick()
    time.now += 0.005
    clock.tick()
    assert time.waited == pytest.approx([0.015])  # on time again: the ten quarters of a second are not run after
