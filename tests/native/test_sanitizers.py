"""The native tests of csrc/tests, built with sanitizers: no torch, no Python inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def tool(name: str) -> str:
    found = shutil.which(name, path=PATH)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(*command: object, **environment: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, "PATH": PATH, **environment},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def configured(folder: Path, sanitizers: str) -> Path:
    """The native tests in `folder`, ready to be built."""
    if shutil.which(os.environ.get("CXX", "c++"), path=PATH) is None:
        pytest.skip("no C++ compiler")
    options = ("-DP3_TESTS=ON", "-DP3_PYTHON=OFF", "-DP3_CUDA=off", f"-DP3_SANITIZE={sanitizers}")
    run(tool("cmake"), "-S", ROOT, "-B", folder, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *options)
    return folder


def test_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    folder = configured(tmp_path, "address,undefined")
    run(tool("cmake"), "--build", folder)
    said = run(tool("ctest"), "--test-dir", folder, "--output-on-failure", "--no-tests=error")
    assert "100% tests passed" in said
    assert "out of 2" in said


def test_cuda_kernels_under_the_thread_sanitizer(tmp_path):
    """A barrier that a kernel lacks is a race between the shim's threads."""
    folder = configured(tmp_path, "thread")
    run(tool("cmake"), "--build", folder, "--target", "p3_cuda_tests")
    assert "all CUDA kernels are right" in run(folder / "p3_cuda_tests")
