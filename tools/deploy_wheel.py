"""Builds `p3-deploy`, the small distribution for a robot's laptop: the controller without torch, from the same sources.

    python tools/deploy_wheel.py dist/

It carries `trainer.deploy`, its two commands, `contract` and `robots` of `trainer.tasks`, and needs numpy, onnxruntime,
cyclonedds and tyro. It is for machines without p3kernels: both carry the same modules, and one environment should have
one of them.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = (
    "trainer/__init__.py",
    "trainer/config",
    "trainer/commands/__init__.py",
    "trainer/commands/deploy.py",
    "trainer/commands/replay.py",
    "trainer/deploy",
    "trainer/tasks/__init__.py",
    "trainer/tasks/contract.py",
    "trainer/tasks/robots.py",
)
_PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "p3-deploy"
version = "{version}"
description = "Runs a policy of p3kernels on a Unitree G1, without torch"
license = "Apache-2.0"
requires-python = ">=3.10"
dependencies = ["numpy", "onnxruntime>=1.18", "cyclonedds>=0.10.5", "tyro"]

[project.scripts]
p3-deploy = "trainer.commands.deploy:script"
p3-replay = "trainer.commands.replay:script"

[tool.setuptools.packages.find]
include = ["trainer*"]
"""


def stage(directory: Path) -> None:
    """Copies the sources and writes the project file."""
    for name in FILES:
        source, target = ROOT / name, directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    text = (ROOT / "p3kernels" / "version.py").read_text()
    found = re.search(r'__version__ = "([^"]+)"', text)
    if found is None:
        raise ValueError("p3kernels/version.py: expected a line with __version__")
    (directory / "pyproject.toml").write_text(_PROJECT.format(version=found.group(1)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds the wheel; pip's exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="directory for the wheel")
    parser.add_argument(
        "--no-build-isolation", action="store_true", help="build with the setuptools of this environment"
    )
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        stage(Path(name))
        command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(options.output), name]
        return subprocess.run(command + ["--no-build-isolation"] * options.no_build_isolation, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
