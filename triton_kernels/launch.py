"""What every launcher needs: the one way to start a kernel, addressing width, tuned configurations.

Importing this module touches no GPU, reads no file and does not import triton; all of that waits for the first use.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Config = dict[str, Any]
"""BLOCK_* sizes with num_warps and num_stages: what one launch is tuned by."""

SHIPPED_TABLE = Path(__file__).with_name("tuned.json")
DEFAULT_ARCH = "sm_90"
SMALLEST_BUCKET = 16
LARGEST_BUCKET = 65536
SMALLEST_BLOCK = 16
"""What a matrix product of Triton's needs at least."""
WHOLE = ("BLOCK_A", "BLOCK_C")
"""Blocks that have to cover all of their dimension, and so cannot shrink."""

_target: list[str] = []
_forced: dict[str, Config] = {}
_recorders: list[dict[str, Config]] = []
_shrunk: dict[tuple[str, str], Config] = {}
_instead: list[Callable[[Any, int, tuple[Any, ...], Config], None]] = []

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def interpreted() -> bool:
    """Whether kernels run in triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def on_device(tensor: Tensor) -> AbstractContextManager[Any]:
    """Makes the GPU of `tensor` the current one for the launches inside; nothing for a CPU tensor."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def start(kernel: Any, grid: int, *arguments: Any, **config: Any) -> None:
    """kernel[(grid,)](*arguments, **config) on the device of the first argument, a tensor or a tuple of them.

    Inside `started_instead` nothing is started: its function is called with the same.
    """
    if _instead:
        _instead[-1](kernel, grid, arguments, config)
        return
    first = arguments[0]
    with on_device(first[0] if isinstance(first, tuple) else first):
        kernel[(grid,)](*arguments, **config)


@contextlib.contextmanager
def started_instead(function: Callable[[Any, int, tuple[Any, ...], Config], None]) -> Iterator[None]:
    """Inside, `start` calls function(kernel, grid, arguments, config) and launches nothing."""
    _instead.append(function)
    try:
        yield
    finally:
        _instead.pop()


def block_of(size: int, most: int) -> int:
    """The power of two that covers `size`, at least the 16 that a dot needs and at most `most`."""
    return min(max(1 << max(size - 1, 0).bit_length(), 16), most)


def needs_int64(*tensors: Tensor | None) -> bool:
    """Whether the last element of any of `tensors` lies beyond what a 32-bit element offset reaches."""
    for tensor in tensors:
        if tensor is None or tensor.numel() == 0:
            continue
        last = sum((size - 1) * abs(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        if last >= 2**31:
            return True
    return False


def row_bucket(rows: int) -> int:
    """The power of two at or above `rows`, within [16, 65536]: what stands for a batch length in a tuning key."""
    return min(max(1 << max(rows - 1, 0).bit_length(), SMALLEST_BUCKET), LARGEST_BUCKET)


@contextlib.contextmanager
def target_arch(arch: str) -> Iterator[None]:
    """Inside, `tuned` answers for this architecture ("sm_80"), from the shipped table alone."""
    _target.append(arch)
    try:
        yield
    finally:
        _target.pop()


@contextlib.contextmanager
def forced(configs: Mapping[str, Config]) -> Iterator[None]:
    """Inside, `tuned` answers with these configurations, by entry name, whatever the tables say."""
    before = dict(_forced)
    _forced.update(configs)
    try:
        yield
    finally:
        _forced.clear()
        _forced.update(before)


@contextlib.contextmanager
def recorded() -> Iterator[dict[str, Config]]:
    """Gives a dict that every `tuned` inside writes its entry name and answer to."""
    answers: dict[str, Config] = {}
    _recorders.append(answers)
    try:
        yield answers
    finally:
        _recorders[:] = [one for one in _recorders if one is not answers]  # equal ones may be another's


def tuned(kernel: str, key: tuple[Any, ...], default: Config) -> Config:
    """The configuration to launch `kernel` with.

    Args:
        kernel: Its name in the table.
        key: What decides the choice: sizes, precision, `row_bucket(batch)`; never the batch length itself.
        default: For a key that no table has; an entry that leaves something out takes it from here.

    Returns:
        A new dict: the user's own measurement (`python -m triton_kernels.tune`), then the shipped table,
        then `default`; made smaller where `fitting` found that it needs more than this GPU has.
    """
    name = entry_name(kernel, key)
    of = arch()
    found = _shipped().get(of, {}).get(name, {})
    if not _target and _has_gpu():
        found = {**found, **_measured().get(device_name(), {}).get(name, {})}
    fits = {} if _target else _shrunk.get((of, name), {})
    config = {**default, **found, **fits, **_forced.get(name, {})}
    for recorder in _recorders:
        recorder.pop(name, None)  # the last entry is the last answer
        recorder[name] = dict(config)
    return config


def fitting(launcher: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A launcher that answers Triton's `OutOfResources` with smaller tiles, and remembers them for this process.

    The whole launcher runs again, since grids and scratch memory follow from the tiles; it must not write into its
    arguments. Of the configurations it asked for the last one shrinks first: it is that of the launch that failed.

    Args:
        launcher: Takes every configuration from `tuned`.
    """

    @functools.wraps(launcher)
    def launch(*arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        while True:
            with recorded() as answers:
                try:
                    return launcher(*arguments, **named)
                except Exception as error:
                    # By name: importing triton for its class would import it where nothing is launched.
                    if type(error).__name__ != "OutOfResources" or not _shrink_last(answers):
                        raise

    return launch


def shrunk() -> dict[str, Config]:
    """The entries that `fitting` made smaller on this GPU in this process, and what they are now."""
    arch = _current_arch()
    return {name: dict(config) for (of, name), config in _shrunk.items() if of == arch}


def smaller(config: Config) -> Config | None:
    """A configuration that needs less shared memory: fewer stages, then half of its largest block; None at the end."""
    if config.get("num_stages", 1) > 1:
        return {**config, "num_stages": config["num_stages"] - 1}
    blocks = {
        name: size
        for name, size in config.items()
        if name.startswith("BLOCK") and name not in WHOLE and size > SMALLEST_BLOCK
    }
    if not blocks:
        return None
    largest = max(blocks, key=lambda name: blocks[name])
    halved = {**config, largest: config[largest] // 2}
    chunk = largest.replace("BLOCK", "CHUNK")
    if chunk in halved:
        halved[chunk] = min(halved[chunk], halved[largest])
    return halved


def _shrink_last(answers: Mapping[str, Config]) -> bool:
    """Makes the last of the answers that can be smaller so; False where none can, or where somebody tries tiles out."""
    if _forced:
        return False
    for name in reversed(list(answers)):
        less = smaller(answers[name])
        if less is not None:
            _shrunk[_current_arch(), name] = less
            return True
    return False


def arch() -> str:
    """The architecture that configurations are asked for: "sm_90", also where there is no GPU."""
    return _target[-1] if _target else _current_arch()


def entry_name(kernel: str, key: tuple[Any, ...]) -> str:
    """How a kernel and its key are written in a table."""
    return f"{kernel}({', '.join(str(part) for part in key)})"


def cache_path() -> Path:
    """The file of the user's own measurements: P3_TUNED, or p3kernels/tuned.json in the user's cache folder."""
    override = os.environ.get("P3_TUNED")
    if override:
        return Path(override)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "p3kernels" / "tuned.json"


def device_name() -> str:
    """The current GPU as the user's table names it, with its architecture."""
    return _device_facts(torch.cuda.current_device())[0]


def measured_entries(device: str) -> frozenset[str]:
    """The names of the user's own measurements on a GPU of this name."""
    return frozenset(_measured().get(device, {}))


def forget_tables() -> None:
    """The next `tuned` reads the files again."""
    _shipped.cache_clear()
    _measured.cache_clear()


def _has_gpu() -> bool:
    return not interpreted() and torch.cuda.is_available()


def _current_arch() -> str:
    return _device_facts(torch.cuda.current_device())[1] if _has_gpu() else DEFAULT_ARCH


@functools.cache
def _device_facts(index: int) -> tuple[str, str]:
    major, minor = torch.cuda.get_device_capability(index)
    arch = f"sm_{major}{minor}"
    return f"{torch.cuda.get_device_name(index)} ({arch})", arch


@functools.cache
def _shipped() -> dict[str, dict[str, Config]]:
    return json.loads(SHIPPED_TABLE.read_text()) if SHIPPED_TABLE.exists() else {}


@functools.cache
def _measured() -> dict[str, dict[str, Config]]:
    """The user's table; one that cannot be read counts as none, for a cache may never stop a launch."""
    try:
        table = json.loads(cache_path().read_text())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}
