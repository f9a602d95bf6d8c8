"""The native tests of csrc/tests, built with sanitizers: no torch, no Python inside."""

from __future__ import annotations

import pytest
from helpers.native_build import built, missing, run


@pytest.fixture(autouse=True)
def compiler() -> None:
    absent = missing()
    if absent is not None:
        pytest.skip(f"{absent} is not installed")


def test_under_address_and_undefined_behaviour_sanitizers():
    said = run("ctest", "--test-dir", built("address"), "--output-on-failure", "--no-tests=error")
    assert "100% tests passed" in said
    assert "out of 2" in said


def test_cuda_kernels_under_the_thread_sanitizer():
    """A barrier that a kernel lacks is a race between the shim's threads."""
    assert "all CUDA kernels are right" in run(built("thread") / "p3_cuda_tests")
