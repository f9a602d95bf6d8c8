"""`Progress`: the lines in a log, and what a terminal shows in the end."""

from __future__ import annotations

import io
import os
import pty
import sys

import pytest

from trainer.progress import AVERAGED, PERMANENT_EVERY, Progress, format_duration

SCALARS = {
    "episode/reward": 12.3412,
    "episode/length": 431.2,
    "curriculum/level": 1.21,
    "policy/action_std": 0.519,
    "loss/kl": 0.0179,
    "speed/steps_per_second": 3119.7,
}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    """A stream that says it is a terminal, and `screen`: what is left on it after carriage returns."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        lines = [""]
        column = 0
        for character in self.getvalue():
            if character == "\n":
                lines.append("")
                column = 0
            elif character == "\r":
                column = 0
            else:
                lines[-1] = lines[-1][:column].ljust(column) + character + lines[-1][column + 1 :]
                column += 1
        return [line.rstrip() for line in lines]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal()


def words(line: str) -> str:
    """The line without what aligns it."""
    return " ".join(line.split())


def number(line: str) -> int:
    return int(line.split()[1].split("/", maxsplit=1)[0])


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (750, "0:12:30"), (36 * 3600 + 61, "36:01:01")]
)
def test_durations(seconds, text):
    assert format_duration(seconds) == text


def test_the_line_has_everything(clock):
    stream = io.StringIO()
    progress = Progress(1500, start=119, stream=stream, clock=clock)
    clock.now += 0.5
    progress.update(120, SCALARS)
    assert words(stream.getvalue()) == (
        "iteration 120/1500 reward 12.34 length 431 level 1.2 std 0.52 kl 0.018 steps/s 3120 eta 0:11:30"
    )


def test_what_is_missing_is_a_dash_and_the_level_is_left_out(clock):
    stream = io.StringIO()
    Progress(9, stream=stream, clock=clock).update(9, {"loss/kl": float("nan")})
    assert words(stream.getvalue()) == "iteration 9/9 reward - length - std - kl nan steps/s - eta 0:00:00"


def test_columns_are_below_each_other(clock):
    stream = io.StringIO()
    progress = Progress(1500, stream=stream, every_seconds=0, clock=clock)
    others = {"episode/reward": -3.0, "episode/length": 1000, "curriculum/level": 10.0, "loss/kl": 11.5}
    for iteration, scalars in ((1, {"curriculum/level": 0.0}), (20, SCALARS), (1500, others)):
        clock.now += 1
        progress.update(iteration, scalars)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    for label in ("reward", "length", "level", "std", "kl", "steps/s", "eta"):
        assert len({line.index(f"  {label} ") for line in lines}) == 1


def test_eta_is_of_the_last_iterations(clock):
    stream = io.StringIO()
    progress = Progress(1000, start=100, stream=stream, every_seconds=0, clock=clock)

    def after(seconds: float, iteration: int) -> str:
        clock.now += seconds
        progress.update(iteration, {})
        return stream.getvalue().splitlines()[-1].split()[-1]

    assert after(101, 101) == format_duration(101 * 899)
    assert after(1, 102) == format_duration(51 * 898)  # the mean of both
    for iteration in range(103, 101 + AVERAGED):
        after(1, iteration)
    assert after(1, 101 + AVERAGED) == format_duration(899 - AVERAGED)  # the slow first one is forgotten


def test_eta_is_unknown_before_an_iteration_is_done(clock):
    stream = io.StringIO()
    Progress(10, start=5, stream=stream, clock=clock).update(5, {})
    assert stream.getvalue().endswith("eta       -\n")


def test_a_log_gets_a_line_now_and_then_and_the_first_and_the_last(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, every_seconds=10, clock=clock)
    for iteration in range(1, 31):
        clock.now += 1
        progress.update(iteration, SCALARS)
    assert [number(line) for line in stream.getvalue().splitlines()] == [1, 11, 21, 30]
    progress.close()
    assert [number(line) for line in stream.getvalue().splitlines()] == [1, 11, 21, 30]
    assert "\r" not in stream.getvalue()


def test_a_run_that_ends_early_leaves_its_last_line_once(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, clock=clock)
    for iteration in range(1, 6):
        progress.update(iteration, SCALARS)
    progress.close()
    progress.close()
    assert [number(line) for line in stream.getvalue().splitlines()] == [1, 5]


def test_a_run_without_iterations_writes_nothing(terminal):
    Progress(30, stream=terminal).close()
    assert terminal.getvalue() == ""


def test_a_log_gets_notes_between_the_lines(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, clock=clock)
    progress.update(1, SCALARS)
    progress.update(2, SCALARS)
    progress.note("estimator: MM -> MC(15)")
    progress.close()
    lines = stream.getvalue().splitlines()
    assert lines[1] == "estimator: MM -> MC(15)"
    assert [number(line) for line in (lines[0], lines[2])] == [1, 2]


def test_a_terminal_shows_one_line_and_keeps_every_fiftieth(terminal, clock):
    progress = Progress(1000, stream=terminal, clock=clock)
    for iteration in range(1, 2 * PERMANENT_EVERY + 8):
        progress.update(iteration, SCALARS)
    assert [number(line) for line in terminal.screen()] == [PERMANENT_EVERY, 2 * PERMANENT_EVERY, 107]
    progress.close()
    assert terminal.getvalue().endswith("\n")
    assert [number(line) for line in terminal.screen()[:-1]] == [PERMANENT_EVERY, 2 * PERMANENT_EVERY, 107]


def test_a_shorter_line_leaves_nothing_of_a_longer_one(terminal, clock):
    progress = Progress(10, stream=terminal, clock=clock)
    progress.update(1, SCALARS)
    longer = terminal.screen()[-1]
    progress.update(2, {})
    assert "level" in longer
    assert len(terminal.screen()[-1]) < len(longer)
    assert words(terminal.screen()[-1]).startswith("iteration 2/10 reward - ")
    assert terminal.screen()[-1].endswith("eta 0:00:00")


def test_a_note_on_a_terminal_is_above_the_line_in_place(terminal, clock):
    progress = Progress(10, stream=terminal, clock=clock)
    progress.note("before")
    progress.update(1, SCALARS)
    line = terminal.screen()[-1]
    progress.note("estimator: MM -> MC(15)")
    assert terminal.screen() == ["before", "estimator: MM -> MC(15)", line]
    progress.update(2, SCALARS)
    assert terminal.screen()[:-1] == ["before", "estimator: MM -> MC(15)"]
    assert number(terminal.screen()[-1]) == 2


def test_the_line_in_place_fits_a_narrow_terminal_and_the_one_that_stays_is_whole(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    progress = Progress(10, stream=terminal, clock=clock)
    progress.update(1, SCALARS)
    progress.update(2, SCALARS)
    assert len(terminal.screen()[-1]) <= 39
    assert all(len(part) < 40 for part in terminal.getvalue().split("\r"))
    progress.close()
    assert terminal.screen()[-2].endswith("eta 0:00:00")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_real_terminal_that_does_not_know_its_width(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "60")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        progress = Progress(10, stream=stream, clock=clock)
        progress.update(1, SCALARS)
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert len(shown) == 59
    assert shown.startswith("iteration  1/10  reward   12.34")


def test_a_stream_that_fails_does_not_end_the_training(clock):
    attempts = []

    class Full(io.StringIO):
        def write(self, text: str) -> int:
            attempts.append(text)
            raise OSError("full")

    progress = Progress(1, stream=Full(), clock=clock)
    progress.update(1, SCALARS)
    progress.note("still here")
    progress.close()
    assert len(attempts) == 2


def test_standard_error_is_the_default(capsys):
    Progress(1).update(1, SCALARS)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert number(printed.err) == 1
