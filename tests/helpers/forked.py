"""Python programs in processes of their own that begin with torch imported: for a small program the import is the work.

The first call of a test process starts one that imports torch, tensordict and rsl_rl, and nothing of ours; every
program is a fork of it, with its own environment, directory and output, and ends as an interpreter ends. What is about
the import of torch and of what it brings (triton), or about variables that are read then, needs `subprocess`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

SECONDS = 300.0


class Program:
    """`python ARGUMENTS`, started, with what tests use of `subprocess.Popen`.

    Args:
        arguments: `-c CODE`, `-m MODULE` or a file, and what the program finds in `sys.argv`.
        stdout: Where its output goes.
        stderr: Where its errors go.
        env: The whole environment; None for this process's.
        cwd: None for this process's.
        start_new_session: As `subprocess.Popen` has it.
    """

    def __init__(
        self,
        *arguments: object,
        stdout: IO[str],
        stderr: IO[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.arguments = [str(word) for word in arguments]
        self.returncode: int | None = None
        request = {
            "arguments": self.arguments,
            "env": dict(os.environ if env is None else env),
            "cwd": str(cwd or Path.cwd()),
            "new_session": start_new_session,
        }
        self._answers, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with there, open(os.devnull) as nothing:
            files = [nothing.fileno(), stdout.fileno(), stderr.fileno(), there.fileno()]
            socket.send_fds(_server()[0], [json.dumps(request).encode()], files)
        self._answers.settimeout(SECONDS)
        self.pid = int(self._answers.recv(32))

    def poll(self) -> int | None:
        """Its exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float = SECONDS) -> int:
        """Its exit code; `subprocess.TimeoutExpired` if it still runs after so many seconds."""
        if self.returncode is None:
            self._answers.settimeout(timeout)
            try:
                self.returncode = int(self._answers.recv(32))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.arguments, timeout) from None
            self._answers.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def python(
    *arguments: object, env: Mapping[str, str] | None = None, cwd: Path | None = None, stdout: IO[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end; the arguments are those of `Program`, and output that goes nowhere else comes back."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as error:
        program = Program(*arguments, stdout=stdout or out, stderr=error, env=env, cwd=cwd)
        try:
            code = program.wait()
        finally:
            program.kill()
        out.seek(0)
        error.seek(0)
        return subprocess.CompletedProcess(program.arguments, code, out.read(), error.read())


@functools.cache
def _server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    paths = os.pathsep.join(path for path in sys.path if path)
    own = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, __file__, str(there.fileno())]
    process = subprocess.Popen(command, pass_fds=[there.fileno()], env=own | {"PYTHONPATH": paths})
    there.close()
    return here, process


def _serve(requests: socket.socket) -> None:
    """Forks a minder for every request, until the test process has ended; comes back in a program that has ended."""
    while True:
        message, files, *_ = socket.recv_fds(requests, 1 << 20, 4)
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            _mind(files, **json.loads(message))
            return
        for file in files:
            os.close(file)
        os.waitpid(-1, os.WNOHANG)  # the minder of before


def _mind(files: list[int], **request: object) -> None:
    """Answers with the number of the program's process, then with its exit code."""
    *streams, answers = files
    child = os.fork()
    if child == 0:
        os.close(answers)
        _become(streams, **request)
        return
    for stream in streams:
        os.close(stream)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=answers) as to:
        to.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(BrokenPipeError):  # where nobody waits for it
            to.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(streams: list[int], arguments: list[str], env: dict[str, str], cwd: str, new_session: bool) -> None:
    """The program; what it raises ends the interpreter, as it would otherwise."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if new_session:
        os.setsid()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    sys.path[0:0] = [cwd, *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if arguments[0] == "-m":
        sys.argv[:] = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.argv[:] = ["-c", *arguments[2:]]
        exec(compile(arguments[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    import rsl_rl.utils  # noqa: F401
    import tensordict  # noqa: F401
    import torch

    _serve(socket.socket(fileno=int(sys.argv[1])))
