"""The range of Triton versions that pyproject allows stands on a record of what was compiled."""

from __future__ import annotations

import ast
import graphlib
import json
import re
from pathlib import Path

from p3kernels import backends

ROOT = Path(__file__).resolve().parents[1]
RECORD = json.loads((ROOT / "docs" / "data" / "triton_versions.json").read_text())


def numbers(version):
    return tuple(map(int, version.split(".")))


def test_the_oldest_version_allowed_was_compiled_and_so_was_one_at_or_above_ours():
    (floor,) = re.findall(r'"triton>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    (pinned,) = re.findall(r"^triton==([\d.]+)", (ROOT / "constraints.txt").read_text(), flags=re.MULTILINE)
    assert numbers(floor) == backends.OLDEST_TRITON
    good = [numbers(version) for version, entry in RECORD.items() if not entry["refused"] and entry["cases"]]
    assert min(good)[: len(numbers(floor))] == numbers(floor)
    assert max(good) >= numbers(pinned)


def test_what_is_not_allowed_was_refused():
    refused = [version for version, entry in RECORD.items() if entry["refused"]]
    assert refused
    assert all(numbers(version) < backends.OLDEST_TRITON for version in refused)


def test_every_entry_compiled_many_kernels():
    for version, entry in RECORD.items():
        assert len(entry["kernels"]) >= 10, version
        assert "sm_90" in entry["architectures"]


def test_the_allowed_versions_compiled_todays_kernels():
    """A kernel that is new has to be compiled with the oldest and the newest version: tools/triton_versions.py."""
    paths = (ROOT / "triton_kernels" / "kernels").glob("*.py")
    functions = [
        node for path in paths for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    today = {function.name.lstrip("_") for function in functions if function.name.endswith("_kernel")}
    assert len(today) > 20
    good = {version: set(entry["kernels"]) for version, entry in RECORD.items() if not entry["refused"]}
    assert good
    for version, kernels in good.items():
        assert kernels == today, version


def test_no_kernel_function_calls_itself_through_others():
    """Triton before 3.5 follows calls without end, branches that are never compiled included."""
    calls: dict[str, set[str]] = {}
    for path in (ROOT / "triton_kernels" / "kernels").glob("*.py"):
        for function in ast.parse(path.read_text()).body:
            if isinstance(function, ast.FunctionDef):
                names = {node.func.id for node in ast.walk(function) if _is_plain_call(node)}
                assert function.name not in calls, "names are unique, so that they tell functions apart"
                calls[function.name] = names
    assert len(calls) > 30
    graphlib.TopologicalSorter(calls).prepare()  # raises CycleError


def _is_plain_call(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
