"""The pages' Python runs, and the API reference has every public name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import p3kernels

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["index.md", "api/p3kernels.md", "api/trainer.md"])
def test_python_of_a_page_runs(page):
    (block,) = BLOCK.findall((DOCS / page).read_text())
    exec(compile(block, page, "exec"), {})


def test_api_reference_has_every_public_name():
    named = re.findall(r"^::: p3kernels\.(\w+)$", (DOCS / "api/p3kernels.md").read_text(), re.MULTILINE)
    assert set(p3kernels.__all__) - {"__version__"} <= set(named)
