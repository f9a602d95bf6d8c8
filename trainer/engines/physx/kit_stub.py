"""Stands in for what no small wheel carries: Isaac Sim's `omni`, `carb`, `isaacsim` and `usdrt`.

Every module below those names imports, and every name in it is a class that takes any arguments and has any attribute.
So Isaac Lab's sources import and its configurations are made; whoever asks a stub for a result gets another stub, on
which numbers and tensors fail.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any, cast

ROOTS = ("omni", "carb", "isaacsim", "usdrt", "Semantics", "cv2", "hid")
MODULES = ("pxr.PhysxSchema",)
"""NVIDIA's addition to USD; the rest of `pxr` is the real one."""


class _Anything(type):
    """A class whose attributes are classes like it."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)


def _stub(name: str) -> type:
    def attribute(self: Any, wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return _stub(wanted)

    members = {"__init__": lambda self, *args, **kwargs: None, "__getattr__": attribute, "__call__": lambda self: None}
    return _Anything(name, (), members)


class _StubModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stub(name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every module below `ROOTS` and every one of `MODULES`, as a stub."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """The stub's specification; None for everything else."""
        if fullname.partition(".")[0] not in ROOTS and fullname not in MODULES:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A module that has every name."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Gives Isaac Sim's version, which Isaac Lab compares numbers with."""
        if module.__name__ == "isaacsim.core.version":
            # Any: the module has what is given to it.
            cast("Any", module).get_version = lambda: (
                "5.1.0",
                "",
                "5",
                "1",
                "0",
                "",
                "",
                "",
            )  # what Isaac Lab 2.3.2 goes with


def install() -> None:
    """From now on the stubs are imported in this process."""
    sys.meta_path.insert(0, Finder())
