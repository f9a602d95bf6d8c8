"""The `p3` command: finds the subcommand, imports its module, hands over the rest of the command line.

A subcommand is a module with `main(arguments, prog) -> exit code` and its own parser; it is imported only when it is
asked for, so `p3 --help` is instant and one command's missing dependency is no other command's problem.

This is also the one place where errors end. A command raises what names the argument (`ValueError`, `OSError`,
`ImportError`), and the user reads one line; so does whoever presses Ctrl-C or closes a pipe. Anything else is a fault
of ours, which says so; P3_TRACEBACK=1 shows where.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainer.config.names import did_you_mean


@dataclass(frozen=True)
class Command:
    """Where a subcommand lives and what the help says about it."""

    module: str
    summary: str
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that are set, where they are not, before anything is imported: OpenMP reads them when it is loaded."""
    settings: str | None = None
    """Its class in `trainer.config.commands`, which answers --help without the module and the torch that it brings."""


COMMANDS = {
    "train": Command(
        "trainer.commands.train",
        "train a policy: G1 or walker, by P3 or a baseline",
        # Threads that spin while they wait take the cores from whoever needs them, the other processes of the run too.
        environment=(("OMP_WAIT_POLICY", "passive"),),
    ),
    "play": Command(
        "trainer.commands.play",
        "watch a trained policy, in the browser, in a window or as a video",
        settings="PlayConfig",
    ),
    "eval": Command(
        "trainer.commands.evaluate",
        "judge trained policies side by side: reward, lifetime, success, energy",
        settings="EvalConfig",
    ),
    "diagnose": Command(
        "trainer.commands.diagnose",
        "D_eff, KL, action distribution and gradient noise of a checkpoint",
        settings="DiagnoseConfig",
    ),
    "export": Command(
        "trainer.commands.export",
        "write a policy as one ONNX file, compared with torch, with its contract",
        settings="ExportConfig",
    ),
    "run-onnx": Command("trainer.commands.run_onnx", "run an exported policy in MuJoCo at 50 Hz, without torch"),
    "pack": Command(
        "trainer.commands.pack",
        "write a policy as one small file, usable wherever a checkpoint is",
        settings="PackConfig",
    ),
    "deploy": Command("trainer.commands.deploy", "drive a Unitree G1 with an exported policy, over DDS, without torch"),
    "robot-sim": Command("trainer.commands.robot_sim", "a G1 in MuJoCo that speaks the robot's protocol on loopback"),
    "replay": Command("trainer.commands.replay", "run the log of a deployment again, bit for bit; plots of it"),
    "report": Command("trainer.commands.report", "write a run's report.html again"),
    "study": Command("trainer.commands.study", "methods compared over several seeds; what an update of each costs"),
    "bench": Command("trainer.commands.bench", "time the ops; with --engine the simulator, with --update a PPO update"),
    "gpu-check": Command(
        "trainer.commands.gpu_check", "check the kernels on this GPU: what works, how fast, what to send"
    ),
    "info": Command(
        "trainer.commands.info", "what is installed here, and which backends can run and why the others cannot"
    ),
}


class _PrintVersion(argparse.Action):
    """As argparse's own, but the package is imported only when its version is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from p3kernels.version import __version__  # noqa: PLC0415  it brings torch

        print(f"p3kernels {__version__}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS)) + 2
    listing = "\n".join(f"  {name:<{width}}{command.summary}" for name, command in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="p3",
        usage="p3 [-h] [--version] COMMAND ...",
        description="Gaussian moments and mixture likelihoods for VAE-based policies, and the P3 PPO trainer.",
        epilog=f"commands:\n{listing}\n\n'p3 COMMAND --help' tells about one of them.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_PrintVersion, nargs=0, help="print the version and exit")
    parser.add_argument("command", nargs="?", metavar="COMMAND", help="one of the commands below, then its arguments")
    return parser


def main(arguments: Sequence[str] | None = None, before: Callable[[], None] = lambda: None) -> int:
    """Runs `p3` and returns its exit code; a wrong command line exits with 2.

    Args:
        arguments: What comes after `p3`; None for the process's own.
        before: Called once the command is imported; what interrupts it interrupts the command.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    name = arguments[0] if arguments and arguments[0] in COMMANDS else ""
    helps = bool({"-h", "--help"} & set(arguments))
    if helps and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(write_through=False)  # argparse passes over a write that fails; the flush below does not
    try:
        try:
            if not name:
                _refuse(arguments[:1])  # only the first word is ours
            for variable, value in COMMANDS[name].environment:
                os.environ.setdefault(variable, value)
            if helps:
                _help(COMMANDS[name], arguments[1:], f"p3 {name}")
            module = importlib.import_module(COMMANDS[name].module)
            before()
            return module.main(arguments[1:], prog=f"p3 {name}")
        finally:
            sys.stdout.flush()  # what is still held back may meet a closed pipe: here, not at the interpreter's end
    except (Exception, KeyboardInterrupt) as error:
        return _ended(error, f"p3 {name}".strip())


def _refuse(arguments: Sequence[str]) -> NoReturn:
    """Help, the version, or what is wrong with the first word; exits."""
    parser = _parser()
    name = parser.parse_args(arguments).command
    if name is None:
        parser.error(f"expected a command: {', '.join(COMMANDS)}")
    parser.error(f"no command {name!r}{did_you_mean(name, COMMANDS)}; the commands are {', '.join(COMMANDS)}")


def _help(command: Command, arguments: Sequence[str], prog: str) -> None:
    """Prints the help of a command whose settings are apart from its work, and exits."""
    if command.settings is not None:
        from trainer.config import command_line, commands  # noqa: PLC0415  with it comes tyro

        command_line.parse(getattr(commands, command.settings), arguments, prog)


def _ended(error: BaseException, prog: str) -> int:
    """Tells why a command ended, in one line; returns 2 for what the user can mend, 1 for a fault."""
    _close_broken_output()
    if isinstance(error, BrokenPipeError):  # the reader, `head` say, has enough
        return 128 + signal.SIGPIPE
    if _was_interrupted(error):
        if os.environ.get("RANK", "0") == "0":  # of several processes one says it
            _tell(f"{prog}: interrupted")
        return 130
    if os.environ.get("P3_TRACEBACK") == "1":
        traceback.print_exception(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] not in ("trainer", "p3kernels"):
        missing = error.name or ""
        extra = "deploy" if missing.startswith("cyclonedds") else "export" if missing.startswith("onnx") else "train"
        _tell(f"{prog}: needs {missing}, which is not installed; run: pip install 'p3kernels[{extra}]'")
        return 2
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # torch's is a RuntimeError
        _tell(f"{prog}: not enough memory{': ' if str(error) else ''}{error}")
        return 2
    if isinstance(error, ValueError | OSError | ImportError) and not isinstance(error, ModuleNotFoundError):
        _tell(f"{prog}: {_sentence(error)}")
        return 2
    where = traceback.extract_tb(error.__traceback__)[-1]
    _tell(
        f"{prog}: a fault of this program, {type(error).__name__} in {where.filename}, line {where.lineno}:"
        f" {error}; P3_TRACEBACK=1 shows how it came about. Please report it"
    )
    return 1


def _sentence(error: Exception) -> str:
    """The message; of an error of the system the file and the reason, without its number."""
    if isinstance(error, OSError) and error.strerror is not None:
        return f"{error.filename}: {error.strerror}" if error.filename is not None else error.strerror
    return str(error) or type(error).__name__


def _was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is at the bottom of it: an extension that is interrupted while it loads may wrap it."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _close_broken_output() -> None:
    """Sends what a full disk or a closed pipe does not take nowhere, or Python complains again at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell(message: str) -> None:
    with contextlib.suppress(OSError):
        print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
