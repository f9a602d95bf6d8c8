"""The `p3` command: what a user sees for right and wrong command lines, and `p3 info`."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest
from helpers import forked

import p3kernels
from p3kernels import backends, info
from trainer import cli
from trainer.commands import info as info_command

ROOT = Path(__file__).resolve().parents[1]


def p3(*arguments: str, stdout: IO[str] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = ("-m", "trainer.cli", *arguments)
    return forked.python(*command, cwd=ROOT, env=os.environ | environment, stdout=stdout)


def printed_by(program: str) -> str:
    """What a Python program prints in a process of its own, where it ends well."""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_lists_every_command_without_importing_torch():
    program = (
        "import sys\nfrom trainer import cli\n"
        "try:\n    cli.main(['--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "assert 'torch' not in sys.modules and 'p3kernels' not in sys.modules\n"
    )
    printed = printed_by(program)
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in printed
        assert command.summary in printed


@pytest.mark.parametrize("arguments", [("train", "--help"), ("info",)])
def test_a_reader_that_has_enough_is_no_error(arguments):
    """More than a buffer of text, and less, into a pipe that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = p3(*arguments, stdout=pipe)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


def test_help_imports_no_torch():
    """One process for all of them; so every help is there at once."""
    lines = [[name] for name in cli.COMMANDS]
    lines += [["study", name] for name in ("preregistered", "cost", "scale")]
    lines += [["bench", "--engine"], ["bench", "--update"]]
    program = (
        "import sys\nfrom trainer import cli\n"
        f"for line in {lines}:\n"
        "    try:\n        cli.main([*line, '--help'])\n"
        "    except SystemExit as stop:\n        assert stop.code == 0\n"
        "    else:\n        raise AssertionError(line)\n"
        "    assert 'torch' not in sys.modules and 'p3kernels' not in sys.modules, line\n"
    )
    printed = printed_by(program)
    for option in (
        "--ppo.desired-kl",
        "--strengths",
        "--viewer",
        "--eval-checkpoints",
        "--counted",
        "--roofline",
        "--redo",
    ):
        assert option in printed


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_help_that_cannot_be_written_is_an_error(unbuffered):
    command = [sys.executable, "-m", "trainer.cli", "--help"]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=300, check=False
        )
    assert (done.returncode, done.stderr) == (2, "p3: No space left on device\n")


def test_version():
    done = p3("--version")
    assert (done.returncode, done.stdout) == (0, f"p3kernels {p3kernels.__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), f"expected a command: {', '.join(cli.COMMANDS)}"),
        (("nonsense",), f"no command 'nonsense'; the commands are {', '.join(cli.COMMANDS)}"),
        (("bensh",), "no command 'bensh' (did you mean 'bench'?)"),
        (("--nonsense",), "unrecognized arguments: --nonsense"),
        (("info", "--nonsense"), "p3 info: error: unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_command_lines_exit_with_2(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_exit_code_reaches_the_shell():
    command = [sys.executable, "-m", "trainer.cli", "nonsense"]
    assert subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False).returncode == 2


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_a_main_and_help(name, capsys):
    assert callable(importlib.import_module(cli.COMMANDS[name].module).main)
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: p3 {name}")


def test_a_missing_package_is_one_line_that_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "trainer.commands.train", raising=False)
    assert cli.main(["train"]) == 2
    assert (
        "p3 train: needs tyro, which is not installed; run: pip install 'p3kernels[train]'" in capsys.readouterr().err
    )


def test_interrupt_is_one_line(monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(info_command, "main", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "p3 info: interrupted\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("--gamma: expected 0 to 1, got 3"), 2, "p3 info: --gamma: expected 0 to 1, got 3\n"),
        (PermissionError(13, "Permission denied", "a/b"), 2, "p3 info: a/b: Permission denied\n"),
        (OSError("no room"), 2, "p3 info: no room\n"),
        (ImportError("cannot import name 'x'"), 2, "p3 info: cannot import name 'x'\n"),
        (MemoryError(), 2, "p3 info: not enough memory\n"),
        (RuntimeError("[enforce fail] can't allocate memory: 8 TB"), 2, "p3 info: not enough memory: [enforce fail] "),
        (KeyError("secret"), 1, "p3 info: a fault of this program, KeyError in "),
    ],
)
def test_errors_end_in_one_line(error, code, message, monkeypatch, capsys):
    def fails(*_, **__):
        raise error

    monkeypatch.setattr(info_command, "main", fails)
    assert cli.main(["info"]) == code
    said = capsys.readouterr().err
    assert said.startswith(message)
    assert said.count("\n") == 1
    monkeypatch.setenv("P3_TRACEBACK", "1")
    assert cli.main(["info"]) == code
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("wrapped", [False, True])
def test_interrupt_while_importing(wrapped, monkeypatch, capsys):
    """Torch takes seconds to import, in which Ctrl-C is likely; an extension may make another error of it."""

    def interrupted(_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as stop:
            if wrapped:
                raise ImportError("initialization failed") from stop
            raise

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "p3 train: interrupted\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = p3("info", stdout=full)
    assert done.returncode == 2
    assert done.stderr == "p3 info: No space left on device\n"


def test_info_json_has_the_facts():
    done = p3("info", "--json", P3_CHECK_VALUES="1")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert set(facts) == {"versions", "machine", "backends", "cpu_kernels", "environment"}
    assert facts["versions"]["p3kernels"] == p3kernels.__version__
    assert {"python", "torch", "triton", "numpy"} < set(facts["versions"])
    assert {"cpu", "cores", "torch_threads", "cuda"} < set(facts["machine"])
    assert set(facts["backends"]) == set(backends.BACKENDS)
    assert set(facts["cpu_kernels"]) == {"instruction_set", "products", "thread_source"}
    assert set(facts["environment"]) == set(info.ENVIRONMENT)
    assert facts["environment"]["P3_CHECK_VALUES"] == "1"


def test_info_table_is_aligned_and_complete(capsys):
    facts = info.collect()
    assert cli.main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) == sum(len(section) for section in facts.values())
    values = 2 + max(len(name) for section in facts.values() for name in section) + 2
    assert all(row[values - 2 : values] == "  " and row[values] != " " for row in rows)
    for name, reason in p3kernels.available_backends().items():
        assert any(row.split(maxsplit=1) == [name, reason] for row in rows)


def test_info_survives_everything_that_can_be_missing(monkeypatch, capsys):
    def fails(*_):
        raise OSError("gone")

    def absent(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(info.importlib.metadata, "version", absent)
    monkeypatch.setattr(info, "load_extension", lambda: (None, "not built"))
    monkeypatch.setattr(info, "available_backends", fails)
    monkeypatch.setattr(info, "_cpu_model", fails)
    monkeypatch.setattr(info, "_cuda_devices", fails)
    assert cli.main(["info"]) == 0
    table = capsys.readouterr().out
    for expected in ("not installed", "none (not built)", "unknown (OSError: gone)"):
        assert expected in table


def test_info_names_an_instruction_set_that_is_not_there():
    if not backends.available_backends()["cpu"].startswith("available"):
        pytest.skip("the native extension is not here: " + backends.available_backends()["cpu"])
    done = p3("info", "--json", P3_CPU_ISA="abacus")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert "P3_CPU_ISA=abacus" in facts["backends"]["cpu"]
    assert "P3_CPU_ISA=abacus" in facts["cpu_kernels"]["instruction_set"]
