"""Every test here executes Triton kernels in triton's interpreter, so it needs TRITON_INTERPRET=1 from the start."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Without triton the modules do not import: there is nothing to collect, let alone to skip.
collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="runs in triton's interpreter: set TRITON_INTERPRET=1"))
