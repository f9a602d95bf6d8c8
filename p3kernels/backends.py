"""Which implementations can run here, which one runs, and why another one does not."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch

from p3kernels.transforms import transformed

BACKENDS = ("reference", "cpu", "triton", "cuda")
OLDEST_TRITON = (3, 4)
"""As in pyproject.toml; 3.3 refuses some of the kernels (tools/triton_versions.py)."""
OLDEST_CAPABILITY = (8, 0)
"""The oldest compute capability that the Triton and CUDA kernels are compiled for."""

_standing_in: list[Callable[[], AbstractContextManager[Any]]] = []


@contextlib.contextmanager
def standing_in_for_a_gpu(
    operator: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Iterator[None]:
    """Inside, CPU tensors are taken for a GPU's on which Triton runs.

    For counting what would be launched there: `triton_kernels.launch.started_instead`, in which nothing is.

    Args:
        operator: Makes what an operator of ours runs in, whose own operations torch's dispatch modes do not see.
    """
    _standing_in.append(operator)
    try:
        yield
    finally:
        _standing_in.pop()


def inside_operator() -> AbstractContextManager[Any]:
    """What an operator of ours is to run in: nothing, unless somebody counts."""
    return _standing_in[-1]() if _standing_in else contextlib.nullcontext()


def on_gpu(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on a GPU, or on a CPU that stands in for one."""
    return tensor.device.type == "cuda" or (bool(_standing_in) and tensor.device.type == "cpu")


@functools.cache
def load_extension() -> tuple[ModuleType | None, str]:
    """The native module and "available", or None and the reason why it is missing. Loaded at the first use.

    From then on a forked child has one thread, as a worker of torch's `DataLoader` does.
    """
    try:
        extension = importlib.import_module("p3kernels._C")
        if hasattr(os, "register_at_fork"):
            # A child has none of the parent's threads, and OpenMP would wait for them for ever, in torch's ops too.
            os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
        return extension, f"available ({extension.isa()})"
    except ModuleNotFoundError:
        return None, "the native extension was not built (no C++ compiler at installation?); reinstall with one"
    except ImportError as error:
        return None, f"the native extension does not load: {error}"
    except ValueError as error:  # P3_CPU_ISA names a set that is not there
        return None, str(error)


@functools.cache
def load_triton() -> tuple[bool, str]:
    """Whether triton imports as the kernels need it, and "available" or the reason. Imported at the first use."""
    interpreted = interpreting()
    version = _version_of("triton")
    if version is not None and _numbers(version) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        return False, f"triton {version} is older than {oldest}, the oldest that compiles the kernels"
    try:
        language = importlib.import_module("triton.language")
    except ModuleNotFoundError:
        return False, "triton is not installed; pip install 'p3kernels[triton]' (Linux)"
    except ImportError as error:
        return False, f"triton does not load: {error}"
    if (type(language.sum).__name__ == "InterpretedFunction") != interpreted:
        return False, "TRITON_INTERPRET was changed after triton was imported; set it before Python starts"
    return True, "available"


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """(3, 7, 1) of "3.7.1+local"."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])


@functools.cache
def load_cuda() -> tuple[ModuleType | None, str]:
    """The CUDA kernels' module and "available", or None and the reason. Asks nothing of a GPU."""
    extension, reason = load_extension()
    if extension is None:
        return None, reason
    kernels = getattr(extension, "cuda", None)
    if kernels is None:
        why = getattr(extension, "without_cuda", "the native extension is of an older version; build it again")
        return None, f"no CUDA kernels: {why}"
    return kernels, "available"


def _cuda_device() -> str:
    """The kind of device that the CUDA kernels read tensors from: "cuda", but "cpu" for the tests' build of them."""
    kernels = load_cuda()[0]
    return "cuda" if kernels is None else kernels.runs_on


def interpreting() -> bool:
    """Whether Triton kernels run in triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def _too_old(gpu: int) -> str | None:
    """Why no kernel of ours can run on a GPU that torch knows, or None where it can."""
    capability = torch.cuda.get_device_capability(gpu)
    if capability >= OLDEST_CAPABILITY:
        return None
    named = f"{torch.cuda.get_device_name(gpu)} (sm_{capability[0]}{capability[1]})"
    oldest = f"sm_{OLDEST_CAPABILITY[0]}{OLDEST_CAPABILITY[1]}"
    return f"{named} is older than {oldest} (A100, RTX 30), the oldest GPU that the kernels are compiled for"


def _gpu_reason(index: int | None) -> str | None:
    return _too_old(torch.cuda.current_device() if index is None else index)


def _triton_reason(index: int | None) -> str:
    if interpreting():
        return load_triton()[1]
    if not torch.cuda.is_available():
        return "no CUDA device answers torch; on CPU tensors only triton's interpreter runs it (TRITON_INTERPRET=1)"
    return _gpu_reason(index) or load_triton()[1]


def _cuda_reason(index: int | None) -> str:
    kernels, reason = load_cuda()
    if kernels is None or kernels.runs_on != "cuda":
        return reason
    if not torch.cuda.is_available():
        return "no CUDA device answers torch; the kernels are built and wait for one"
    return _gpu_reason(index) or reason


def backend_reason(name: str, index: int | None = None) -> str:
    """Either "available", or why the backend `name` cannot run here.

    Args:
        name: One of `BACKENDS`.
        index: The GPU to run on; None for the current one.
    """
    if name == "cpu":
        return "available" if load_extension()[0] is not None else load_extension()[1]
    if name == "triton":
        return _triton_reason(index)
    return "available" if name == "reference" else _cuda_reason(index)


# A compiled graph is made for one machine and one installation. torch.compiler.assume_constant_result sets this as
# well, but imports the whole compiler.
backend_reason._dynamo_marked_constant = True  # type: ignore[attr-defined]
_cuda_device._dynamo_marked_constant = True  # type: ignore[attr-defined]


def available_backends() -> dict[str, str]:
    """What can run on this machine, on the current GPU where there are several.

    Returns:
        name → "available" or the reason why not, for "reference", "cpu", "triton" and "cuda".
    """
    return {name: backend_reason(name) for name in BACKENDS}


def choose_backend(backend: str | None, tensor: torch.Tensor, *others: Any) -> str:
    """The backend that will run an op on `tensor`; under `torch.func` or forward-mode AD only the reference can.

    Args:
        backend: A name of `BACKENDS`, or None: then the environment variable P3_BACKEND, then the fastest that can.
        tensor: Any tensor argument of the op; its device decides what is possible.
        others: The op's other tensors, and lists of them.

    Raises:
        ValueError: `backend` is not a known name.
        RuntimeError: The backend asked for cannot run here; the message says why.
    """
    requested = backend if backend is not None else os.environ.get("P3_BACKEND") or None
    if not isinstance(tensor, torch.Tensor):
        return "reference"  # the op's own checks name the argument
    if _standing_in:
        return requested or ("reference" if tensor.dtype == torch.float64 else "triton")
    inside_transform = transformed(tensor, *others)
    if requested is None:
        return "reference" if inside_transform else _fastest(tensor)
    source = "backend" if backend is not None else "P3_BACKEND"
    if requested not in BACKENDS:
        raise ValueError(f"{source}: expected one of {', '.join(BACKENDS)} or None, got {requested!r}")
    reason = backend_reason(requested, _gpu_of(tensor))
    if reason != "available":
        raise RuntimeError(f"{source}={requested!r} cannot run: {reason}")
    if inside_transform and requested != "reference":
        raise RuntimeError(
            f"{source}={requested!r} cannot run: its kernels know nothing of torch.func and forward-mode AD;"
            " use 'reference', or None"
        )
    if requested == "cpu" and tensor.device.type != "cpu":
        raise RuntimeError(f"{source}='cpu' cannot run: the tensors are on {tensor.device}")
    if requested == "triton" and tensor.device.type != "cuda" and not _interpretable(tensor):
        raise RuntimeError(
            f"{source}='triton' cannot run: the tensors are on {tensor.device}, not on a CUDA device"
            + (" (TRITON_INTERPRET=1 runs it on CPU tensors)" if tensor.device.type == "cpu" else "")
        )
    if requested == "cuda" and tensor.device.type != _cuda_device():
        raise RuntimeError(f"{source}='cuda' cannot run: the tensors are on {tensor.device}, not on a CUDA device")
    return requested


def _fastest(tensor: torch.Tensor) -> str:
    """What runs an op on `tensor` when nobody asked for a backend; on a GPU only the reference has float64.

    Triton before CUDA: with gradients it is fused further, and its products can use tensor cores. Where CUDA takes one
    launch for a whole network, the op itself prefers it: `cuda_in_tritons_place`.
    """
    if tensor.device.type == "cpu":
        reason = backend_reason("cpu")
        if reason.startswith("P3_CPU_ISA"):
            raise ValueError(reason)  # a setting of the user's that cannot be met is no reason to run something else
        if reason == "available":
            return "cpu"
    if tensor.device.type == "cuda" and tensor.dtype != torch.float64:
        gpu = _gpu_of(tensor)
        for name in ("triton", "cuda"):
            if backend_reason(name, gpu) == "available":
                return name
        if not torch.compiler.is_compiling():
            _tell_of_the_reference(gpu)
    return "reference"


def _gpu_of(tensor: torch.Tensor) -> int | None:
    return tensor.device.index if tensor.device.type == "cuda" else None


@functools.cache
def _tell_of_the_reference(gpu: int | None) -> None:
    """Once a GPU: that nothing faster than the reference runs on it, and why."""
    reasons = "; ".join(f"{name}: {backend_reason(name, gpu)}" for name in ("triton", "cuda"))
    warnings.warn(f"the ops run as plain torch (backend 'reference') on cuda:{gpu or 0}. {reasons}", stacklevel=2)


def cuda_in_tritons_place(chosen: str, backend: str | None, fits: Callable[[], bool]) -> str:
    """CUDA in Triton's place, where nobody asked for Triton and CUDA can do the call in one launch.

    Args:
        chosen: What `choose_backend` says.
        backend: What the caller asked for.
        fits: Whether the CUDA backend would do it in one launch; asked only where it matters.
    """
    asked = backend is not None or bool(os.environ.get("P3_BACKEND"))
    if chosen != "triton" or asked or torch.compiler.is_compiling() or interpreting():
        return chosen
    return "cuda" if backend_reason("cuda") == "available" and fits() else chosen


def _interpretable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and interpreting()
