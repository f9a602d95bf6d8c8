"""Docstrings, of modules, classes, functions and fields, begin with what they are about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FRAGMENT = re.compile(r"(Of|Told|As for)\b")


def fragments(source: str) -> list[str]:
    """The strings that stand as statements and begin with a fragment of a sentence."""
    bodies = [node.body for node in ast.walk(ast.parse(source)) if isinstance(getattr(node, "body", None), list)]
    strings = [
        line.value.value
        for body in bodies
        for line in body
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str)
    ]
    return [text.strip().splitlines()[0] for text in strings if FRAGMENT.match(text.strip())]


@pytest.mark.parametrize("room", ["p3kernels", "triton_kernels", "trainer", "tests", "tools", "examples"])
def test_docstrings_begin_with_a_subject(room):
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    assert [f"{file.relative_to(ROOT)}: {text}" for file in files for text in fragments(file.read_text())] == []


def test_a_fragment_is_found():
    assert fragments('"""A module."""\nseed = 1\n"""Of everything."""\n') == ["Of everything."]
