"""The native code that tests execute: built once, whichever process asks first, and again only where sources changed.

`python tests/helpers/native_build.py [NAME ...]` builds everything, or what is named, beforehand: `make test` does it
beside mypy.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

NATIVE_TESTS = ("-DP3_TESTS=ON", "-DP3_PYTHON=OFF", "-DP3_CUDA=off")
SHIM = ("-DP3_CUDA_SHIM=ON", "-DP3_PYTHON=OFF", "-DP3_CUDA=off", f"-DPython_EXECUTABLE={sys.executable}")
BUILDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "address": ((*NATIVE_TESTS, "-DP3_SANITIZE=address,undefined"), ("p3_native_tests", "p3_cuda_tests")),
    "thread": ((*NATIVE_TESTS, "-DP3_SANITIZE=thread"), ("p3_cuda_tests",)),
    "cuda_shim": (SHIM, ("p3_cuda_shim",)),
}
"""By name: CMake's options, and the targets."""


def missing() -> str | None:
    """The first tool that a build needs and this machine lacks."""
    tools = (os.environ.get("CXX", "c++"), "cmake", "ninja")
    return next((name for name in tools if shutil.which(name, path=PATH) is None), None)


def run(*command: object) -> str:
    """What a command says; an AssertionError with it where the command fails."""
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "PATH": PATH},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def built(name: str) -> Path:
    """The folder of a build of `BUILDS`, up to date; another process that builds it is waited for."""
    options, targets = BUILDS[name]
    folder = ROOT / "build" / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    if name == "cuda_shim":
        import pybind11

        options = (*options, f"-Dpybind11_DIR={pybind11.get_cmake_dir()}")
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options)
        run("cmake", "--build", folder, "--target", *targets)
    return folder


if __name__ == "__main__":
    absent = missing()
    if absent is not None:
        print(f"native code for the tests is not built: {absent} is not installed")
    else:
        for build in sys.argv[1:] or BUILDS:
            built(build)
