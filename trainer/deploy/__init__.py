"""What a robot's process imports: an exported policy, with numpy and onnxruntime alone, and the controller of a G1.

The names below are imported when they are asked for: the guardian process needs none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.deploy.latency import Latency
    from trainer.deploy.package import DamagedPolicy, ForeignPolicy
    from trainer.deploy.policy import Action, Policy, gravity_of

__all__ = ["Action", "DamagedPolicy", "ForeignPolicy", "Latency", "Policy", "gravity_of"]

_HOMES = {"Latency": "latency", "DamagedPolicy": "package", "ForeignPolicy": "package"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"trainer.deploy.{_HOMES.get(name, 'policy')}"), name)
