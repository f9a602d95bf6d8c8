"""A video tells how far it is, and how long the rest will take."""

from __future__ import annotations

import io

import pytest

from trainer.viewer import video


class Screen(io.StringIO):
    """A stderr that is a terminal or not."""

    terminal = True

    def isatty(self) -> bool:
        return self.terminal


@pytest.mark.parametrize("terminal", [True, False])
def test_bar(terminal, monkeypatch):
    screen, clock = Screen(), iter([0.0, *(11.0 * step for step in range(1, 5))])
    screen.terminal = terminal
    monkeypatch.setattr(video.sys, "stderr", screen)
    monkeypatch.setattr(video.time, "monotonic", lambda: next(clock))
    bar = video._Bar(4)
    for done in range(1, 5):
        bar.show(done)
    bar.close()
    told = screen.getvalue()
    assert " 25%, about 33 s left" in told
    assert " 75%, about 11 s left" in told
    assert ("\r" in told) is terminal
    assert told.endswith("\n")
