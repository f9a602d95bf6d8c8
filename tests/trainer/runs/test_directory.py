"""A run directory is one process's at a time, and one line says what is wrong with it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from trainer.runs.directory import locked

HOLDER = """
import sys
from pathlib import Path
from trainer.runs.directory import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_a_run_directory_is_one_processs_until_it_is_killed(tmp_path):
    run = tmp_path / "deep" / "run"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        try:
            assert holder.stdout.readline() == "held\n"
            ours = (".model_7.pt.123.tmp", ".report.html.123.tmp")
            left = [run / name for name in (*ours, "metrics.jsonl.tmp", "report.html.tmp")]
            for path in left:
                path.touch()
            message = f"--run-dir: {run} is in use by process {holder.pid}"
            with pytest.raises(BlockingIOError, match=f"^{re.escape(message)}$"), locked(run):
                pass
            assert all(path.exists() for path in left)  # those of a training that goes on
        finally:
            holder.kill()
    assert holder.returncode == -signal.SIGKILL
    (run / "notes.tmp").touch()
    with locked(run):
        assert names(run) == [".lock", "notes.tmp"]
        assert (run / ".lock").read_text() == str(os.getpid())
    assert names(run) == ["notes.tmp"]


def test_of_many_that_come_and_go_one_is_in_the_run_directory(tmp_path):
    inside, entered, crowded = [], [], []

    def come_and_go():
        mine = 0
        while mine < 100:
            with contextlib.suppress(BlockingIOError), locked(tmp_path):
                inside.append(1)
                time.sleep(0)  # lets the others try
                crowded.extend(inside[1:])
                inside.pop()
                mine += 1
        entered.append(mine)

    threads = [threading.Thread(target=come_and_go) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered == [100] * 4
    assert not crowded
    assert names(tmp_path) == []


def test_a_directory_that_cannot_be_is_one_line_that_names_the_option(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for run_dir, message in (
        (file, f"cannot make {file}: not a directory"),
        (file / "run", f"cannot make {file / 'run'}: Not a directory"),
        (Path("/proc/run"), "cannot make /proc/run: "),
        (Path("/proc"), "cannot write to /proc: "),
    ):
        with pytest.raises(OSError, match=re.escape(f"--run-dir: {message}")) as caught, locked(run_dir):
            pass
        assert "\n" not in str(caught.value)
