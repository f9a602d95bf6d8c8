"""The native tests of csrc/tests, built with sanitizers: no torch, no Python inside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
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


def test_under_address_and_undefined_behaviour_sanitizers(tmp_path):
    if shutil.which(os.environ.get("CXX", "c++"), path=PATH) is None:
        pytest.skip("no C++ compiler")
    options = ("-DP3_TESTS=ON", "-DP3_PYTHON=OFF", "-DP3_CUDA=off", "-DP3_SANITIZE=address,undefined")
    run(tool("cmake"), "-S", ROOT, "-B", tmp_path, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *options)
    run(tool("cmake"), "--build", tmp_path)
    said = run(tool("ctest"), "--test-dir", tmp_path, "--output-on-failure", "--no-tests=error")
    assert "100% tests passed" in said
