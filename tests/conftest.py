"""What every test gets: fixed seeds, poisoned allocations, and the rules for tests that need a GPU or take long.

torch is imported where it is used: the process that divides the tests among others runs none, and they wait for it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

pytest.register_assert_rewrite("helpers")

# The same examples on every machine and every run; a first call that loads the extension is slow, and that is no fault.
settings.register_profile("p3", derandomize=True, deadline=None, print_blob=True, max_examples=100)
settings.load_profile("p3")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    reasons = {}
    if not torch.cuda.is_available():
        reasons["gpu"] = "needs a CUDA device; torch.cuda.is_available() is False"
    if os.environ.get("P3_TEST_ALL") != "1":
        reasons["sweep"] = "takes long: P3_TEST_ALL=1, or make test-all"
    for item in items:
        for marker, reason in reasons.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def _poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    @functools.wraps(allocate)
    def allocate_nan(*args: object, **kwargs: object) -> torch.Tensor:
        tensor = allocate(*args, **kwargs)
        if torch.compiler.is_compiling() or isinstance(tensor, FakeTensor) or tensor.device.type == "meta":
            return tensor
        if type(tensor) is torch.Tensor and tensor.is_floating_point() and tensor.layout == torch.strided:
            with torch.no_grad():
                tensor.fill_(math.nan)
        return tensor

    return allocate_nan


@pytest.fixture(autouse=True)
def poisoned_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that nobody wrote is NaN, so that an output left unwritten shows."""
    import torch

    monkeypatch.setattr(torch, "empty", _poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", _poisoned(torch.Tensor.new_empty))


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    import torch

    torch.manual_seed(20261116)


@pytest.fixture(autouse=True)
def default_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own settings decide nothing here."""
    for name in ("P3_BACKEND", "P3_CHECK_VALUES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets torch's thread count; the count of before comes back."""
    import torch

    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
