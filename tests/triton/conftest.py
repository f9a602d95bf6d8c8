"""Every test here executes Triton kernels in triton's interpreter, so it needs TRITON_INTERPRET=1 from the start.

Without that, where there is a GPU, the batteries of the ops run on it: `pytest -m gpu tests/triton`.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
import torch
from helpers.device_battery import on_gpu

HAS_TRITON = importlib.util.find_spec("triton") is not None

# Without triton the modules do not import: there is nothing to collect, let alone to skip.
collect_ignore_glob = [] if HAS_TRITON else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    here = Path(__file__).parent
    items = [item for item in items if here in item.path.parents]
    if torch.cuda.is_available():
        items = on_gpu(items, here)
    for item in items:
        item.add_marker(pytest.mark.skip(reason="runs in triton's interpreter: set TRITON_INTERPRET=1"))


@pytest.fixture(scope="session", autouse=True)
def language_is_patched_once_a_launch() -> Iterator[None]:
    """Triton's interpreter puts its functions into `tl` at every call of a device function, a third of the tests' time.

    Within a launch they are there already; what a launch changes it takes back at its end, as ever.
    """
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):  # another version of triton
        yield
        return
    patch, modules = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)
    seen_by: dict[int, tuple[dict[str, object], frozenset[int]]] = {}
    patched: set[int] = set()

    def patch_what_is_not(fn: Callable[..., object]) -> object:
        names = fn.__globals__
        if id(names) not in seen_by:
            found = frozenset(id(module) for module in modules if any(value is module for value in names.values()))
            seen_by[id(names)] = names, found
        needed = seen_by[id(names)][1]
        if patched and needed <= patched:
            return interpreter._LangPatchScope()
        scope, outermost = patch(fn), not patched
        patched.update(needed)
        if outermost:
            restore = scope.restore

            def restore_all() -> None:
                patched.clear()
                restore()

            scope.restore = restore_all
        return scope

    interpreter._patch_lang = patch_what_is_not
    yield
    interpreter._patch_lang = patch


@pytest.fixture
def count_launches(monkeypatch: pytest.MonkeyPatch) -> Callable[[], AbstractContextManager[Counter[str]]]:
    """Inside `with count_launches() as launched`, kernel name → how often the interpreter was asked to run it."""
    from triton.runtime.interpreter import GridExecutor

    counters: list[Counter[str]] = []
    run = GridExecutor.__call__

    def counted(self: GridExecutor, *args: object, **kwargs: object) -> object:
        for counter in counters:
            counter[self.fn.__name__] += 1
        return run(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", counted)

    @contextmanager
    def counting() -> Iterator[Counter[str]]:
        counters.append(Counter())
        try:
            yield counters[-1]
        finally:
            counters.pop()

    return counting
