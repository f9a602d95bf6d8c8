"""Every test here executes the CUDA kernels' own code on CPU tensors, through the shim of csrc/tests/cuda_shim.h.

The module is built once into build/tests/cuda_shim; P3_CUDA_SHIM names a folder that holds one already.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from helpers.device_battery import on_gpu
from helpers.native_build import built, missing

from p3kernels import backends


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """`pytest -m gpu` on a machine with a GPU runs the batteries there, without the shim."""
    if config.option.markexpr == "gpu" and torch.cuda.is_available():
        on_gpu(items, Path(__file__).parent)


@pytest.fixture(scope="session")
def shim() -> ModuleType:
    """The kernels, built for CPU memory."""
    named = os.environ.get("P3_CUDA_SHIM")
    absent = missing()
    if not named and absent is not None:
        pytest.skip(f"{absent} is not installed")
    folder = Path(named) if named else built("cuda_shim")
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
