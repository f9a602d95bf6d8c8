"""`p3 play --viewer browser` in a real browser: the page loads, shows the robot, and its controls work."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.trainer.chromium import Chromium, executable, wait_for
from helpers.trainer.small_runs import learned
from PIL import Image

pytestmark = pytest.mark.skipif(
    executable() is None, reason="no Chromium on this machine; `make browser` installs it on Debian and Ubuntu"
)
ROOT = Path(__file__).resolve().parents[3]
SIZE, SCALE = (900, 560), 0.5
MIDDLE = (slice(30, 270), slice(173, 297))  # of the scene, between the two panels
PATIENCE = 180  # seconds; a browser that draws in software on cores that others use takes long


@pytest.fixture(scope="module")
def process(tmp_path_factory):
    """`p3 play` on an untrained walker, and the page's address."""
    folder = learned(tmp_path_factory.mktemp("page") / "run", iterations=1)
    command = [sys.executable, "-u", "-m", "trainer.cli", "play", str(folder), "--viewer", "browser", "--plain"]
    hidden = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MUJOCO_GL")}
    # A job in the background of a script ignores Ctrl-C, and so would what it starts: with a handler here it does not.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [*command, "--port", "8660"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT, env=hidden
    )
    signal.signal(signal.SIGINT, handler)
    said = ""
    for line in process.stdout:
        said += line
        found = re.match(r"viewer: (http://localhost:\d+) ", line)
        if found:
            break
    else:
        pytest.fail(f"p3 play said:\n{said}")
    process.address = found[1]
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def page(process, tmp_path_factory):
    with Chromium(tmp_path_factory.mktemp("chromium"), SIZE, SCALE) as page:
        page.open(process.address)
        wait_for(lambda: episode(page), PATIENCE, "the panel")
        yield page


def text(page):
    return page.evaluate("document.body?.innerText ?? ''")


def episode(page):
    """Number and seconds of the episode, as the page tells them."""
    found = re.search(r"Episode (\d+): ([\d.]+) s", text(page))
    return (int(found[1]), float(found[2])) if found else None


def control(label, selector):
    """JavaScript for the input in the row of the label `label`, or for the button of that name."""
    return f"""(() => {{
      let row = [...document.querySelectorAll('label, button')].find(e => e.textContent.trim() === {label!r});
      while (row && !row.matches({selector!r}) && !row.querySelector({selector!r})) row = row.parentElement;
      return row.matches({selector!r}) ? row : row.querySelector({selector!r});
    }})()"""


def click(page, label, selector="input[type=checkbox]"):
    page.evaluate(f"{control(label, selector)}.click()")


def pixels(page):
    """[H, W, 3] of the scene."""
    return np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))[MIDDLE].astype(int)


def settled(page):
    """The scene, once two pictures of it in a row are the same: changes take a few frames to arrive."""
    before = pixels(page)

    def still():
        nonlocal before
        last, before = before, pixels(page)
        return (last == before).all()

    wait_for(still, PATIENCE, "a still picture")
    return before


def changed(before, after):
    return np.abs(before - after).max(-1) > 12


def test_the_page_shows_the_robot_and_obeys(page, process):
    click(page, "Pause")
    wait_for(lambda: page.evaluate(control("Pause", "input[type=checkbox]") + ".checked"), PATIENCE, "the pause")
    shown = settled(page)
    paused = episode(page)
    assert len(np.unique(shown.reshape(-1, 3), axis=0)) > 100  # lit and drawn, not a blank canvas

    # The robot: what goes when it is hidden, a part of the picture in its middle.
    click(page, "Robot")
    wait_for(lambda: changed(shown, pixels(page)).any(), PATIENCE, "the robot to go")
    robot = changed(shown, settled(page))
    assert 0.01 < robot.mean() < 0.5
    rows, columns = np.nonzero(robot)
    middle = np.array(robot.shape) / 2
    assert np.abs(np.array([rows.mean(), columns.mean()]) - middle).max() < 0.5 * middle.min()
    click(page, "Robot")
    wait_for(lambda: not changed(shown, pixels(page)).any(), PATIENCE, "the robot to come back")

    # The height scan: green on level ground, gone when it is hidden.
    def green(picture):
        red, green, blue = picture[..., 0], picture[..., 1], picture[..., 2]
        return int(((green > red + 40) & (green > blue + 40)).sum())

    assert green(shown) > 25
    click(page, "Height scan")
    wait_for(lambda: green(pixels(page)) < 0.1 * green(shown), PATIENCE, "the scan to go")

    # Paused it was all along; a reset begins an episode at once, and going on moves the picture.
    assert episode(page) == paused
    click(page, "Reset", "button")
    wait_for(lambda: episode(page)[1] == 0.0, PATIENCE, "the new episode")
    before = pixels(page)
    click(page, "Pause")
    wait_for(lambda: episode(page)[1] > 0.0 and changed(before, pixels(page)).any(), PATIENCE, "the robot to move")

    # A slider, by the keyboard: it takes the command over, and the simulation obeys.
    assert not page.evaluate(control("By hand", "input[type=checkbox]") + ".checked")
    page.evaluate(control("forward m/s", "[role=slider]") + ".focus()")
    page.press("Home", 36)
    wait_for(lambda: page.evaluate(control("By hand", "input[type=checkbox]") + ".checked"), PATIENCE, "the hand")
    wait_for(lambda: re.search(r"forward m/s\s+0\.00\s", text(page)), PATIENCE, "the command")
    assert page.errors == []

    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert "viewer: closed" in process.stdout.read()
