"""Every test here executes the CUDA kernels' own code on CPU tensors, through the shim of csrc/tests/cuda_shim.h.

The module is built once a session, into a temporary folder; P3_CUDA_SHIM names a folder that holds one already.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from p3kernels import backends

ROOT = Path(__file__).resolve().parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def build(folder: Path) -> None:
    for name in (os.environ.get("CXX", "c++"), "cmake", "ninja"):
        if shutil.which(name, path=PATH) is None:
            pytest.skip(f"{name} is not installed")
    pybind11 = pytest.importorskip("pybind11")
    options = ["-DP3_PYTHON=OFF", "-DP3_CUDA=off", "-DP3_CUDA_SHIM=ON", f"-DPython_EXECUTABLE={sys.executable}"]
    configure = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        folder,
        "-G",
        "Ninja",
        *options,
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
    ]
    for command in (configure, ["cmake", "--build", folder, "--target", "p3_cuda_shim"]):
        done = subprocess.run(
            [str(part) for part in command],
            env={**os.environ, "PATH": PATH},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert done.returncode == 0, done.stdout


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The kernels, built for CPU memory."""
    named = os.environ.get("P3_CUDA_SHIM")
    folder = Path(named) if named else tmp_path_factory.mktemp("cuda_shim")
    if not named:
        build(folder)
    (library,) = folder.glob("p3_cuda_shim*.so")
    spec = importlib.util.spec_from_file_location("p3_cuda_shim", library)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def cuda_on_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """backend="cuda" runs the shim's kernels, on CPU tensors; not for tests that need a GPU, or only the compiler."""
    if request.node.get_closest_marker("gpu") is None and "no_shim" not in request.fixturenames:
        shim = request.getfixturevalue("shim")
        monkeypatch.setattr(backends, "load_cuda", lambda: (shim, "available"))


@pytest.fixture
def no_shim() -> None:
    """For a test that does not run kernels."""


@pytest.fixture
def count_launches(shim: ModuleType) -> Callable[[Callable[[], object]], int]:
    """How many kernels a call launches."""

    def count(function: Callable[[], object]) -> int:
        before = shim.launches()
        function()
        return shim.launches() - before

    return count
