"""What is here: the GPU, its driver and clocks, torch, triton and the backends."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from typing import Any

from p3kernels import info
from p3kernels.device_check.device import Device
from p3kernels.device_check.step import Case, Finding, Task


def facts(device: Device) -> dict[str, Any]:
    """What results depend on: of another machine or installation they would say nothing."""
    versions = info.collect()["versions"]
    return {**versions, **{name: value for name, value in device.facts().items() if name != "nvidia_smi"}}


def cases(task: Task) -> Iterator[Case]:
    """The facts, kept; and whether triton is a version that the kernels were compiled with."""

    def everything() -> Finding:
        collected = {"device": task.device.facts(), **info.collect()}
        (task.folder / "environment.json").write_text(json.dumps(collected, indent=1) + "\n", encoding="utf-8")
        found = collected["device"]
        return Finding(True, f"{found['gpu']}, {found['capability']}, {found['gpus']} of them", {"show": True})

    def backends() -> Finding:
        found = task.device.backends()
        says = "; ".join(f"{name}: {reason}" for name, reason in found.items())
        return Finding("available" in found.values(), says, {"show": True, **found})

    def versions() -> Finding:
        installed = {name: _version(name) for name in ("torch", "triton")}
        told = ", ".join(f"{name} {version or 'not installed'}" for name, version in installed.items())
        return Finding(installed["triton"] is not None or task.device.kind != "cuda", told, {"show": True, **installed})

    yield Case("the machine", everything)
    yield Case("backends", backends)
    yield Case("versions", versions)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
