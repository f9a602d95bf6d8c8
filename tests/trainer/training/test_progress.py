"""`Progress`: the lines in a log, and what a terminal shows in the end."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pty
import sys

import pytest

from trainer.training.progress import (
    AVERAGED,
    DETAILS_EVERY_SECONDS,
    PERMANENT_EVERY,
    Progress,
    detail_lines,
    format_duration,
)

SCALARS = {
    "episode/reward": 12.3412,
    "episode/length": 431.2,
    "curriculum/difficulty": 0.21,
    "policy/action_std": 0.519,
    "loss/kl": 0.0179,
    "loss/learning_rate": 0.00034,
    "loss/clip_fraction": 0.1234,
    "speed/steps_per_second": 3119.7,
}
LATENT = {
    "d_eff/trained": 1.0,
    "d_eff/n1": 0.646,
    "d_eff/n15": 0.898,
    "policy/latent_action_std": 0.11,
    "policy/latent_action_std_mm": 0.09,
    "policy/active_latents": 23.0,
}
REST = {
    "loss/surrogate": -0.0123,
    "loss/value": 0.831,
    "loss/skipped_steps": 0.0,
    "speed/simulation_steps_per_second": 4102.0,
    "speed/policy_steps_per_second": 22010.0,
    "speed/update_steps_per_second": 9100.0,
    "memory/resident_mib": 812.4,
    "steps/broken": 0.0,
}
LATENT_LINE = (
    "  D_eff: trained 100.0%, N=1 64.6%, N=15 89.8%"
    "  std: exploration 0.519, latent 0.110, latent by MM 0.090  active latents 23"
)
LOSS_LINE = "  loss: surrogate -0.0123, value 0.831"
SPEED_LINE = "  steps/s: simulation 4102, policy 22010, update 9100  memory 812 MiB"


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
        "iteration 120/1500 reward 12.34 length 431 difficulty 0.21 std 0.52 kl 0.018"
        " lr 3.4e-04 clip 12.3% steps/s 3120 eta 0:11:30"
    )


def test_what_is_missing_is_a_dash_and_the_difficulty_is_left_out(clock):
    stream = io.StringIO()
    Progress(9, stream=stream, clock=clock).update(9, {"loss/kl": float("nan")})
    assert words(stream.getvalue()) == (
        "iteration 9/9 reward - length - std - kl nan lr - clip - steps/s - eta 0:00:00"
    )


def test_columns_are_below_each_other(clock):
    stream = io.StringIO()
    progress = Progress(1500, stream=stream, every_seconds=0, clock=clock)
    others = {"episode/reward": -3.0, "episode/length": 1000, "curriculum/difficulty": 1.0, "loss/kl": 11.5}
    others |= {"loss/learning_rate": 1e-5, "loss/clip_fraction": 0.0}
    for iteration, scalars in ((1, {"curriculum/difficulty": 0.0}), (20, SCALARS), (1500, others)):
        clock.now += 1
        progress.update(iteration, scalars)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    for label in ("reward", "length", "difficulty", "std", "kl", "lr", "clip", "steps/s", "eta"):
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
    assert "difficulty" in longer
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


@pytest.mark.parametrize(
    ("columns", "left"),
    [
        (130, "reward length difficulty std kl clip steps/s eta"),
        (110, "reward length difficulty kl steps/s eta"),
        (80, "reward length steps/s eta"),
        (60, "reward eta"),
    ],
)
def test_a_narrow_terminal_goes_without_columns_but_not_without_the_remaining_time(
    columns, left, terminal, clock, monkeypatch
):
    monkeypatch.setenv("COLUMNS", str(columns))
    progress = Progress(1500, stream=terminal, clock=clock)
    progress.update(1, SCALARS)
    shown = terminal.screen()[-1]
    assert len(shown) < columns
    assert [word for word in shown.split() if word[0].isalpha()] == ["iteration", *left.split()]


def test_the_line_in_place_fits_any_terminal_and_the_one_that_stays_is_whole(terminal, clock, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    progress = Progress(10, stream=terminal, clock=clock)
    progress.update(1, SCALARS)
    progress.update(2, SCALARS)
    assert len(terminal.screen()[-1]) <= 29
    assert all(len(part) < 30 for part in terminal.getvalue().split("\r"))
    progress.close()
    assert terminal.screen()[-2].endswith("eta 0:00:00")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
def test_a_real_terminal_that_does_not_know_its_width(monkeypatch, clock):
    monkeypatch.setenv("COLUMNS", "30")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        progress = Progress(10, stream=stream, clock=clock)
        progress.update(1, SCALARS)
        shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert shown == "iteration  1/10  reward   12.34  "[:29]


def test_details_have_everything_that_the_line_has_not():
    assert detail_lines(SCALARS | LATENT | REST) == [LATENT_LINE, LOSS_LINE, SPEED_LINE]


def test_what_went_wrong_is_in_the_details():
    trouble = {"steps/broken": 3.0, "steps/rollbacks": 1.0, "loss/skipped_steps": 2.0}
    assert detail_lines(SCALARS | REST | trouble)[-1] == f"{SPEED_LINE}  broken 3  rollbacks 1  steps left out 2"


def test_steps_left_out_are_summed_up_between_the_details(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, clock=clock)
    for iteration, skipped in ((1, 0), (2, 3), (3, 0), (4, 2)):
        progress.update(iteration, {"loss/skipped_steps": float(skipped)})
    progress.update(5, {})
    progress.close()
    first, last, details = stream.getvalue().splitlines()
    assert (number(first), number(last), details) == (1, 5, "  steps left out 5")


@pytest.mark.parametrize(
    ("scalars", "lines"),
    [
        ({}, []),
        (SCALARS, []),
        ({"d_eff/trained": 0.5}, ["  D_eff: trained 50.0%"]),
        ({"policy/active_latents": 7.0}, ["  active latents 7"]),
        ({"policy/latent_action_std": 0.25, "policy/action_std": 0.5}, ["  std: exploration 0.500, latent 0.250"]),
        ({"loss/value": float("nan"), "loss/kl": 1.0}, ["  loss: value nan"]),
        ({"memory/resident_mib": 99.6}, ["  memory 100 MiB"]),
    ],
)
def test_details_without_some_of_the_numbers(scalars, lines):
    assert detail_lines(scalars) == lines


@pytest.mark.parametrize("width", [5, 30, 60, 100])
def test_details_on_a_narrow_terminal_keep_a_label_with_its_number(width):
    scalars = SCALARS | LATENT | REST
    lines = detail_lines(scalars, width)
    assert " ".join(words(line) for line in lines) == words(" ".join(detail_lines(scalars)))
    assert all(len(line) <= max(width, 30) for line in lines)
    assert all(line.rstrip(",").endswith(tuple("0123456789%B")) for line in lines)
    assert [line[:4].count(" ") for line in lines if line.startswith("  ") and line[2] != " "] == [2, 2, 2]


def test_a_log_has_details_once_a_minute_and_at_the_end(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, every_seconds=10, clock=clock)
    assert DETAILS_EVERY_SECONDS == 60
    for iteration in range(1, 31):
        clock.now += 5
        progress.update(iteration, SCALARS | REST | (LATENT if iteration == 8 else {}))
    progress.close()
    lines = stream.getvalue().splitlines()
    detailed = [number(line) for line, below in itertools.pairwise(lines) if line[0] == "i" and below[0] == " "]
    numbers = [number(line) for line in lines if line.startswith("iteration")]
    assert numbers == [*range(1, 30, 2), 30]
    assert detailed == [1, 13, 25, 30]
    assert lines.count(LATENT_LINE) == 3  # of the eighth, which had no line of its own


def test_a_terminal_has_details_below_the_lines_that_stay(terminal, clock):
    progress = Progress(1000, stream=terminal, clock=clock)
    for iteration in range(1, PERMANENT_EVERY + 3):
        progress.update(iteration, SCALARS | REST)
    progress.close()
    first, *details, last, again, and_again, end = terminal.screen()
    assert (number(first), number(last)) == (PERMANENT_EVERY, PERMANENT_EVERY + 2)
    assert details == [again, and_again] == [LOSS_LINE, SPEED_LINE]
    assert end == ""


def test_a_run_that_ends_early_after_a_line_without_details_gets_them(clock):
    stream = io.StringIO()
    progress = Progress(30, stream=stream, every_seconds=10, clock=clock)
    for iteration in (1, 2):
        clock.now += 10
        progress.update(iteration, SCALARS | REST)
    progress.close()
    progress.close()
    lines = stream.getvalue().splitlines()
    assert [number(lines[0]), number(lines[3])] == [1, 2]
    assert lines[1:3] == lines[4:] == [LOSS_LINE, SPEED_LINE]


def test_a_pipe_that_nobody_reads_any_more_does_not_end_the_training(clock):
    theirs, ours = os.pipe()
    stream = os.fdopen(ours, "w")
    progress = Progress(300, stream=stream, every_seconds=0, clock=clock)
    progress.update(1, SCALARS | REST)
    assert os.read(theirs, 9) == b"iteration"
    os.close(theirs)
    for iteration in range(2, 301):
        progress.update(iteration, SCALARS | REST)
    progress.note("still here")
    with contextlib.suppress(BrokenPipeError):
        stream.close()
    progress.note("a closed stream")
    progress.close()


def test_a_terminal_without_the_letter_does_not_end_the_training(clock):
    bytes_written = io.BytesIO()
    progress = Progress(1, stream=io.TextIOWrapper(bytes_written, encoding="ascii"), clock=clock)
    progress.note("P³")
    progress.update(1, SCALARS | REST)
    assert bytes_written.getvalue().startswith(b"iteration 1/1")


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
