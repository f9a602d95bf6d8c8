"""What every command does with its command line: parses it, checks every number's range and where results go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import tyro

from trainer.config.ranges import check_ranges

_T = TypeVar("_T")


def parse(kind: type[_T], arguments: Sequence[str], prog: str, default: _T | None = None) -> _T:
    """A command's settings; exits with 2 where the command line is wrong.

    Args:
        kind: Dataclass of the settings; `trainer.config.ranges` has its ranges.
        arguments: What comes after the command.
        prog: Its name, for messages.
        default: What is not given is taken from here.

    Raises:
        ValueError: A number is out of its range.
    """
    if default is None:
        settings = tyro.cli(kind, args=list(arguments), prog=prog)
    else:
        settings = tyro.cli(kind, args=list(arguments), prog=prog, default=default)
    check_ranges(settings)
    return settings


def check_writable(path: Path | None, option: str, suffixes: Sequence[str] = ()) -> None:
    """Refuses a file that could not be written, before the work whose result it is to hold.

    Args:
        path: The file; None for none.
        option: The option that names it.
        suffixes: What its name has to end in.

    Raises:
        ValueError: Naming the option.
    """
    if path is None:
        return
    if suffixes and path.suffix not in suffixes:
        raise ValueError(f"{option}: expected a name ending in {' or '.join(suffixes)}, got {path}")
    if path.is_dir():
        raise ValueError(f"{option}: {path} is a directory, expected a file")
    if not path.parent.is_dir():
        raise ValueError(f"{option}: no directory {path.parent}")
    existed = path.exists()
    try:
        path.open("ab").close()
    except OSError as error:
        raise ValueError(f"{option}: {path} cannot be written: {error.strerror or error}") from error
    if not existed:
        path.unlink()
