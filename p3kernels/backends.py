"""Which implementations can run here, which one runs, and why another one does not."""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType

import torch

BACKENDS = ("reference", "cpu", "triton", "cuda")


@functools.cache
def load_extension() -> tuple[ModuleType | None, str]:
    """The native module and "available", or None and the reason why it is missing. Loaded at the first use."""
    try:
        extension = importlib.import_module("p3kernels._C")
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
    try:
        language = importlib.import_module("triton.language")
    except ModuleNotFoundError:
        return False, "triton is not installed; pip install 'p3kernels[triton]' (Linux)"
    except ImportError as error:
        return False, f"triton does not load: {error}"
    if (type(language.sum).__name__ == "InterpretedFunction") != interpreted:
        return False, "TRITON_INTERPRET was changed after triton was imported; set it before Python starts"
    return True, "available"


def interpreting() -> bool:
    """Whether Triton kernels run in triton's interpreter, on CPU tensors (TRITON_INTERPRET=1)."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _triton_reason() -> str:
    if not interpreting() and not torch.cuda.is_available():
        return "no CUDA device answers torch; on CPU tensors only triton's interpreter runs it (TRITON_INTERPRET=1)"
    return load_triton()[1]


def backend_reason(name: str) -> str:
    """Either "available", or why the backend `name` cannot run here."""
    if name == "cpu":
        return "available" if load_extension()[0] is not None else load_extension()[1]
    if name == "triton":
        return _triton_reason()
    reasons = {
        "reference": "available",
        "cuda": "this version has no CUDA kernels",
    }
    return reasons[name]


# A compiled graph is made for one machine and one installation. torch.compiler.assume_constant_result sets this as
# well, but imports the whole compiler.
backend_reason._dynamo_marked_constant = True  # type: ignore[attr-defined]


def available_backends() -> dict[str, str]:
    """What can run on this machine.

    Returns:
        name → "available" or the reason why not, for "reference", "cpu", "triton" and "cuda".
    """
    return {name: backend_reason(name) for name in BACKENDS}


def choose_backend(backend: str | None, tensor: torch.Tensor) -> str:
    """The backend that will run an op on `tensor`.

    Args:
        backend: A name of `BACKENDS`, or None: then the environment variable P3_BACKEND, then the fastest that can.
        tensor: Any tensor argument of the op; its device decides what is possible.

    Raises:
        ValueError: `backend` is not a known name.
        RuntimeError: The backend asked for cannot run here; the message says why.
    """
    requested = backend if backend is not None else os.environ.get("P3_BACKEND") or None
    if not isinstance(tensor, torch.Tensor):
        return "reference"  # the op's own checks name the argument
    if requested is None:
        return _fastest(tensor)
    source = "backend" if backend is not None else "P3_BACKEND"
    if requested not in BACKENDS:
        raise ValueError(f"{source}: expected one of {', '.join(BACKENDS)} or None, got {requested!r}")
    reason = backend_reason(requested)
    if reason != "available":
        raise RuntimeError(f"{source}={requested!r} cannot run: {reason}")
    if requested == "cpu" and tensor.device.type != "cpu":
        raise RuntimeError(f"{source}='cpu' cannot run: the tensors are on {tensor.device}")
    if requested == "triton" and tensor.device.type != "cuda" and not _interpretable(tensor):
        raise RuntimeError(
            f"{source}='triton' cannot run: the tensors are on {tensor.device}, not on a CUDA device"
            + (" (TRITON_INTERPRET=1 runs it on CPU tensors)" if tensor.device.type == "cpu" else "")
        )
    return requested


def _fastest(tensor: torch.Tensor) -> str:
    """What runs an op on `tensor` when nobody asked for a backend; Triton has no float64, the reference has."""
    if tensor.device.type == "cpu" and backend_reason("cpu") == "available":
        return "cpu"
    if tensor.device.type == "cuda" and tensor.dtype != torch.float64 and backend_reason("triton") == "available":
        return "triton"
    return "reference"


def _interpretable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and interpreting()
