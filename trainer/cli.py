"""The `p3` command: finds the subcommand, imports its module, hands over the rest of the command line.

A subcommand is a module with `main(arguments, prog) -> exit code` and its own parser; it is imported only when it is
asked for, so `p3 --help` is instant and one command's missing dependency is no other command's problem.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Command:
    """Where a subcommand lives and what the help says about it."""

    module: str
    summary: str
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that are set, where they are not, before anything is imported: OpenMP reads them when it is loaded."""


COMMANDS = {
    "train": Command(
        "trainer.commands.train",
        "train a policy: G1 or walker, by P3 or a baseline",
        # Threads that spin while they wait take the cores from whoever needs them, the other processes of the run too.
        environment=(("OMP_WAIT_POLICY", "passive"),),
    ),
    "play": Command("trainer.commands.play", "watch a trained policy, in the browser, in a window or as a video"),
    "eval": Command(
        "trainer.commands.evaluate", "judge trained policies side by side: reward, lifetime, success, energy"
    ),
    "diagnose": Command(
        "trainer.commands.diagnose", "D_eff, KL, action distribution and gradient noise of a checkpoint"
    ),
    "export": Command(
        "trainer.export.onnx_file", "write a policy as one ONNX file, compared with torch, with its contract"
    ),
    "run-onnx": Command("trainer.commands.run_onnx", "run an exported policy in MuJoCo at 50 Hz, without torch"),
    "pack": Command("trainer.commands.pack", "write a policy as one small file, usable wherever a checkpoint is"),
    "deploy": Command("trainer.commands.deploy", "drive a Unitree G1 with an exported policy, over DDS, without torch"),
    "robot-sim": Command("trainer.commands.robot_sim", "a G1 in MuJoCo that speaks the robot's protocol on loopback"),
    "replay": Command("trainer.commands.replay", "run the log of a deployment again, bit for bit; plots of it"),
    "report": Command("trainer.report.page", "write a run's report.html again"),
    "study": Command("trainer.commands.study", "methods compared over several seeds; what an update of each costs"),
    "bench": Command("trainer.commands.bench", "time the ops; with --engine the simulator, with --update a PPO update"),
    "info": Command("p3kernels.info", "what is installed here, and which backends can run and why the others cannot"),
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
    parser = _parser()
    name = parser.parse_args(arguments[:1]).command  # only the first word is ours
    if name is None:
        parser.error(f"expected a command: {', '.join(COMMANDS)}")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        parser.error(f"no command {name!r}{hint}; the commands are {', '.join(COMMANDS)}")
    for variable, value in COMMANDS[name].environment:
        os.environ.setdefault(variable, value)
    try:
        module = importlib.import_module(COMMANDS[name].module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] in ("trainer", "p3kernels"):
            raise  # ours: a fault, not a missing package
        missing = error.name or ""
        extra = "deploy" if missing.startswith("cyclonedds") else "export" if missing.startswith("onnx") else "train"
        print(
            f"p3 {name}: needs {error.name}, which is not installed; run: pip install 'p3kernels[{extra}]'",
            file=sys.stderr,
        )
        return 2
    try:
        try:
            before()
            return module.main(arguments[1:], prog=f"p3 {name}")
        finally:
            sys.stdout.flush()  # what is still held back may meet a closed pipe: here, not at the interpreter's end
    except KeyboardInterrupt:
        if os.environ.get("RANK", "0") == "0":  # of several processes one says it
            print(f"p3 {name}: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains again at its end
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
