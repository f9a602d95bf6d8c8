"""Modules of p3kernels that are plain Python, read without the package around them, which imports torch."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def read_plain(name: str) -> ModuleType:
    """A module that imports the standard library alone: itself where it is imported already, else a copy of it.

    So a help text has the names and the defaults of the kernels from where they are defined, without the seconds that
    torch takes to be imported.
    """
    if name in sys.modules:
        return sys.modules[name]
    package, *path = name.split(".")
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    file = Path(found.submodule_search_locations[0]).joinpath(*path).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
