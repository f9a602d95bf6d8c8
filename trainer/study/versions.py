"""What a number was made with: packages, commit and machine."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import subprocess
from pathlib import Path

from p3kernels.info import collect
from p3kernels.version import __version__

_CODE = ("p3kernels", "trainer", "triton_kernels", "csrc")


@functools.cache
def versions() -> dict[str, str]:
    """p3kernels with its commit, torch, MuJoCo and rsl_rl."""
    found = {"p3kernels": f"{__version__} ({commit()})"}
    return found | {name: importlib.metadata.version(name) for name in ("torch", "mujoco", "rsl-rl-lib")}


def commit(root: Path | None = None) -> str:
    """Commit of the checkout this package is in, "with changes" where its code differs; or that there is none."""
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # an installation that happens to lie within someone else's checkout is not ours
        return "no checkout"
    try:
        name = _git(root, "rev-parse", "--short=10", "HEAD")
        changed = _git(root, "status", "--porcelain", "--", *_CODE)
    except (OSError, subprocess.CalledProcessError):
        return "commit unknown"
    return f"commit {name}{', with changes' if changed else ''}"


def machine() -> str:
    """Processor and the number of cores to be used."""
    facts = collect()["machine"]
    return f"{facts['cpu']}, {facts['cores_usable']} of {os.cpu_count()} cores usable"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()
