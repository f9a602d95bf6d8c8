"""`p3 info`: versions, machine, backends and settings, for a bug report or a benchmark's record."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from p3kernels.backends import available_backends, backend_reason, interpreting, load_cuda, load_extension
from p3kernels.layered.products import own_products
from p3kernels.version import __version__

ENVIRONMENT = (
    "P3_BACKEND",
    "P3_CPU_ISA",
    "P3_CPU_PRODUCTS",
    "P3_CHECK_VALUES",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "P3_TUNED",
    "TRITON_INTERPRET",
)

Section = dict[str, str | int | None]
"""One block of facts; None where there is nothing: not installed, not set."""


def collect() -> dict[str, Section]:
    """The facts, by section; a fact that cannot be had is a sentence that says why, never an error."""
    return {
        "versions": {
            "p3kernels": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "triton": _installed_version("triton"),
            "numpy": _installed_version("numpy"),
        },
        "machine": {
            "system": platform.platform(),
            "cpu": _attempt(_cpu_model),
            "cores": os.cpu_count(),
            "cores_usable": _attempt(lambda: len(os.sched_getaffinity(0))),
            "torch_threads": torch.get_num_threads(),
            "cuda": _attempt(_cuda_devices),
            "cuda_kernels": _attempt(_cuda_kernels),
            "triton_runs_on": _attempt(_triton_target),
            "triton_tuned": _attempt(_tuned_here),
        },
        "backends": _backends(),
        "cpu_kernels": _cpu_kernels(),
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
    }


def _attempt(function: Callable[[], str | int]) -> str | int:
    """What `function` returns, or one line about why it could not: nothing on this page may stop the rest of it."""
    try:
        return function()
    except Exception as error:
        return f"unknown ({type(error).__name__}: {error})"


def _installed_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine() or "unknown"


def _cuda_devices() -> str:
    if torch.version.cuda is None:
        return "none (this torch is built without CUDA)"
    if not torch.cuda.is_available():
        return f"none (torch is built for CUDA {torch.version.cuda}, but no device answers)"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def _backends() -> Section:
    try:
        return dict(available_backends())
    except Exception as error:
        return {"all": f"unknown ({type(error).__name__}: {error})"}


def _cpu_kernels() -> Section:
    extension, reason = load_extension()
    if extension is None:
        return {"instruction_set": f"none ({reason})", "products": None, "thread_source": None}
    return {
        "instruction_set": _attempt(extension.isa),
        "products": _attempt(lambda: "our own" if own_products() else "torch's"),
        "thread_source": _attempt(extension.thread_source),
    }


def _cuda_kernels() -> str:
    kernels, reason = load_cuda()
    return reason if kernels is None else "built in"


def _triton_target() -> str:
    if backend_reason("triton") != "available":
        return "nothing here"
    if interpreting():
        return "CPU tensors, in triton's interpreter: for proof, not for speed"
    return str(_cuda_devices())


def _tuned_here() -> str:
    """The user's own tuned configurations; the shipped table is for what they leave out."""
    from triton_kernels.launch import cache_path  # noqa: PLC0415  # an installation may leave the kernels out

    path = cache_path()
    return str(path) if path.exists() else f"no ({path} does not exist)"


def format_table(facts: dict[str, Section]) -> str:
    """The facts as aligned text."""
    absent = {"versions": "not installed", "environment": "not set"}
    width = max(len(key) for section in facts.values() for key in section) + 2
    lines = []
    for name, section in facts.items():
        lines.append(name.replace("_", " "))
        for key, value in section.items():
            shown = absent.get(name, "none") if value is None else value
            label = key if name == "environment" else key.replace("_", " ")
            lines.append(f"  {label:<{width}}{shown}")
        lines.append("")
    return "\n".join(lines).rstrip()
