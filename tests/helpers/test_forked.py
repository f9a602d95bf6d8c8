"""Programs that are forked: their arguments, environment, directory and output are their own, and so is their end."""

from __future__ import annotations

import os
import signal

from helpers import forked

SAY = "import os, sys; print(sys.argv, os.environ.get('SAID'), os.getcwd(), *({'trainer', 'mujoco'} & {*sys.modules}))"


def test_a_program_has_what_it_is_given(tmp_path):
    done = forked.python("-c", SAY, "a", 1, env={**os.environ, "SAID": "so"}, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"['-c', 'a', '1'] so {tmp_path}\n", "")
    assert "SAID" not in os.environ


def test_a_program_ends_as_an_interpreter_does(tmp_path):
    done = forked.python("-c", "import sys; print('out'); sys.exit('said')")
    assert (done.returncode, done.stdout, done.stderr) == (1, "out\n", "said\n")
    done = forked.python("-c", "import atexit; atexit.register(print, 'last'); {}['key']")
    assert (done.returncode, done.stdout) == (1, "last\n")
    assert done.stderr.endswith("KeyError: 'key'\n")
    with (tmp_path / "log").open("w") as log:
        program = forked.Program("-c", "import time; time.sleep(1000)", stdout=log, stderr=log)
    assert program.poll() is None
    program.kill()
    assert program.wait() == -signal.SIGKILL
    assert program.poll() == -signal.SIGKILL
