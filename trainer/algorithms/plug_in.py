"""rsl_rl's config as `P3PPO` reads it: what has to be there, what is not supported, and what nobody would read.

rsl_rl hands over a nested dict, usually of a YAML file. What is missing or misspelt in it is told by its name, before a
network is built; what rsl_rl's own runner needs later is filled in.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

from rsl_rl.utils import resolve_callable

from trainer.config.names import did_you_mean

_PARTS = ("algorithm", "actor", "critic", "obs_groups", "num_steps_per_env")
_OF_THE_ACTOR = {"self", "obs", "obs_groups", "obs_set", "output_dim"}
_OF_THE_ALGORITHM = {"self", "actor", "critic", "storage", "device", "multi_gpu_cfg", "symmetry"}
_NOT_SUPPORTED = ("share_cnn_encoders", "use_mixed_precision")
"""Settings of rsl_rl's algorithm that have to be off."""


def read_config(cfg: dict[str, Any]) -> dict[str, Any]:
    """A copy of rsl_rl's config, checked, with the classes in place of their names.

    Args:
        cfg: Stays as it is, but for `rnd_cfg`: up to rsl_rl 5.4 the runner asks it for that key after the algorithm is
            made, whether the user has set it or not.

    Raises:
        ValueError: Naming the part or the setting.
    """
    missing = [name for name in _PARTS if name not in cfg]
    if missing:
        raise ValueError(
            f"config: expected {', '.join(_PARTS)}, missing {', '.join(missing)};"
            " examples/rsl_rl/p3.yaml is a complete one"
        )
    cfg["algorithm"].setdefault("rnd_cfg", None)
    read = copy.deepcopy({name: cfg[name] for name in _PARTS} | {"multi_gpu": cfg.get("multi_gpu")})
    for name in ("algorithm", "actor", "critic"):
        if "class_name" not in read[name]:
            raise ValueError(f"{name}: expected a class_name, got {', '.join(map(repr, read[name])) or 'nothing'}")
        read[name]["class_name"] = resolve_callable(read[name]["class_name"])
    for name in _NOT_SUPPORTED:
        if read["algorithm"].get(name):
            raise ValueError(f"algorithm: {name} is not supported by P3PPO, expected False")
    read["algorithm"].pop("share_cnn_encoders", None)  # rsl_rl takes it out itself, before it makes its algorithm
    for part, others in (("algorithm", _OF_THE_ALGORITHM | {"class_name"}), ("actor", _OF_THE_ACTOR | {"class_name"})):
        _check_names(part, read[part], others)
    return read


def _check_names(part: str, settings: Mapping[str, Any], others: set[str]) -> None:
    """Refuses settings that the class of this part does not have."""
    kind = settings["class_name"]
    known = _arguments(kind) - others
    if part == "algorithm":
        known |= {"symmetry_cfg"}
    for name in settings:
        if name != "class_name" and name not in known:
            hint = did_you_mean(name, known)
            raise ValueError(
                f"{part}: {kind.__name__} has no setting {name!r}{hint}; it has {', '.join(sorted(known))}"
            )


def _arguments(kind: type) -> set[str]:
    """Names of the arguments that a class takes, with those that it hands on to its bases."""
    names: set[str] = set()
    for base in inspect.getmro(kind):
        if "__init__" not in vars(base):
            continue
        arguments = inspect.signature(vars(base)["__init__"]).parameters.values()
        names |= {each.name for each in arguments if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
        if not any(each.kind is each.VAR_KEYWORD for each in arguments):
            break
    return names


def mismatch(error: Exception) -> str:
    """The first thing that torch complains of in a state that does not fit."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 and lines[0].startswith("Error(s) in loading") else lines[0]
