"""Signals that ask a run to end: which count as one request, and which as impatience."""

from __future__ import annotations

import os
import signal

import pytest

from trainer.training import interrupt
from trainer.training.interrupt import Interrupt, Interrupted


@pytest.fixture
def clock(monkeypatch):
    """Time as the handler sees it: a list of one number."""
    now = [100.0]
    monkeypatch.setattr(interrupt.time, "monotonic", lambda: now[0])
    return now


def test_signals_at_once_are_one_request(clock):
    """A parent's death is told once for each of its threads: the run still ends between two iterations."""
    notes = []
    with Interrupt(notes.append) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += 0.1
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
    assert asked.number == signal.SIGTERM
    assert len(notes) == 1


def test_a_later_signal_interrupts(clock):
    with Interrupt(lambda _: None) as asked:
        os.kill(os.getpid(), signal.SIGTERM)
        clock[0] += 2.0
        with pytest.raises(Interrupted) as error:
            os.kill(os.getpid(), signal.SIGINT)
    assert asked.number == signal.SIGTERM
    assert error.value.number == signal.SIGINT
