"""A pytest plugin for the processes of these checks: Isaac Lab on PhysX, and a record of what was measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.engines.physx.env import install

install()

_OUTCOMES: dict[str, dict[str, Any]] = {}


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Keeps numbers of a check for the record: `measured(largest_error=0.01, unit="m")`."""

    def keep(**values: Any) -> None:
        _OUTCOMES.setdefault(request.node.name, {}).setdefault("measured", {}).update(values)

    return keep


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> None:
    outcome = _OUTCOMES.setdefault(item.name, {})
    function = getattr(item, "function", None)
    outcome["says"] = " ".join((getattr(function, "__doc__", None) or "").split())
    if call.excinfo is None:
        outcome.setdefault("outcome", "passed")
    else:
        outcome["outcome"] = "skipped" if call.excinfo.errisinstance(pytest.skip.Exception) else "failed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    record = os.environ.get("P3_PHYSX_RECORD")
    if record:
        Path(record).write_text(json.dumps(_OUTCOMES, indent=1, default=float), encoding="utf-8")
