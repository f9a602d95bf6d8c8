"""A task's settings as plain data: what `--set` and a settings file change, and what a run saves of them.

Everything here follows the fields of `TaskConfig` and of the dataclasses in it: a field that is added there can be set,
is checked by its type, and is saved.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config.names import did_you_mean
from trainer.tasks.locomotion import PROPRIO_TERMS, TaskConfig
from trainer.tasks.randomization import Range
from trainer.tasks.rewards import TERMS
from trainer.tasks.terrains import PIT_FLOOR, TERRAINS

FIXED = ("name", "robot")
"""Fields that are not settings: they say which task it is."""
_ANY = (-math.inf, math.inf)
_POSITIVE, _SHARE, _NOT_NEGATIVE = (1e-3, math.inf), (0.0, 1.0), (0.0, math.inf)
BOUNDS: dict[str, tuple[float, float]] = {
    "fall_penalty": _NOT_NEGATIVE,
    "progress_ramp": _NOT_NEGATIVE,
    "history": (1, math.inf),
    "control_dt": _POSITIVE,
    "gait_period": _NOT_NEGATIVE,
    "episode_seconds": _POSITIVE,
    "command_seconds": _POSITIVE,
    "standing_fraction": _SHARE,
    "num_levels": (2, math.inf),
    "tile_variants": (1, math.inf),
    "first_difficulty": _SHARE,
    "last_difficulty": _SHARE,
    "demote_below": _SHARE,
    "soft_until": _NOT_NEGATIVE,
    "pit_depth": (0.0, -PIT_FLOOR),
    "stumble_ratio": _NOT_NEGATIVE,
    "edge_drop": _NOT_NEGATIVE,
    "max_tilt": _SHARE,
    "min_height": _SHARE,
    "dynamics.friction": _NOT_NEGATIVE,
    "dynamics.restitution": _SHARE,
    "dynamics.push_interval": _POSITIVE,
    "dynamics.action_delay": _SHARE,
    "dynamics.motor_strength": _POSITIVE,
    "dynamics.stiffness": _POSITIVE,
    "dynamics.damping": _NOT_NEGATIVE,
    "noise": _NOT_NEGATIVE,
}
"""Least and greatest value of a setting, or of everything in it; what is not named here is any finite number."""
_CHOICES: dict[str, Collection[str]] = {"rewards": TERMS, "terrains": TERRAINS, "proprio": PROPRIO_TERMS}
"""Names that a setting is made of."""
_BEFORE: dict[str, Any] = {"gait_period": 0.0, "stride": {}}
"""Settings of a run that was saved before there was a clock."""


def plain(config: TaskConfig) -> dict[str, Any]:
    """Every setting of a task as JSON has it, defaults among them, so that a run keeps its own when they change."""
    return {name: _plain(getattr(config, name)) for name in _hints(TaskConfig)}


def restored(config: TaskConfig, values: Mapping[str, Any]) -> TaskConfig:
    """The task with the settings that a run saved (`plain`); a setting that it did not know yet keeps its default.

    Raises:
        ValueError: There is no such setting, or it cannot have this value; names it.
    """
    before = _BEFORE if "proprio" in values and "clock" not in values["proprio"] else {}
    return _rebuilt(config, {**before, **values}, whole_tables=True)


def changed(config: TaskConfig, values: Mapping[str, Any]) -> TaskConfig:
    """The task with some settings changed; of a table such as `rewards` only the entries that are given.

    Args:
        config: The task.
        values: Setting to value; None takes an entry out of a table.

    Raises:
        ValueError: There is no such setting, or it cannot have this value; names it.
    """
    return _rebuilt(config, values, whole_tables=False)


def assigned(config: TaskConfig, assignments: Sequence[str]) -> TaskConfig:
    """The task after assignments as on the command line: `rewards.progress=2.0`, `command_x=0.3,1.0`.

    Raises:
        ValueError: There is no such setting, or it cannot have this value; names the assignment.
    """
    for assignment in assignments:
        path, equals, text = assignment.rpartition("=")
        if not equals or not path:
            raise ValueError(f"--set {assignment}: expected SETTING=VALUE, such as rewards.progress=2.0")
        try:
            config = changed(config, _nested(path, text))
        except ValueError as error:
            raise ValueError(f"--set {assignment}: {error}") from error
    return config


def read_settings(path: Path) -> dict[str, Any]:
    """The settings in a JSON or TOML file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is neither, or not a table.
    """
    if not path.is_file():
        raise FileNotFoundError(f"--settings: no file {path}")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            values = json.loads(text)
        elif path.suffix == ".toml":
            values = _toml(text)
        else:
            raise ValueError("expected a name ending in .json or .toml")
    except ValueError as error:  # the decoders' own are among them
        raise ValueError(f"--settings {path}: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"--settings {path}: expected a table of settings, got {type(values).__name__}")
    return values


def from_file(config: TaskConfig, path: Path) -> TaskConfig:
    """The task with the settings of a file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It cannot be read, or a setting in it cannot be; names both.
    """
    values = read_settings(path)
    try:
        return changed(config, values)
    except ValueError as error:
        raise ValueError(f"--settings {path}: {error}") from error


def differences(base: TaskConfig, config: TaskConfig) -> list[str]:
    """What `config` has otherwise than `base`, a short text each: `rewards.progress 3.0 -> 2.0`."""
    ours, theirs = _leaves(plain(config)), _leaves(plain(base))
    names = [*ours, *(name for name in theirs if name not in ours)]
    return [
        f"{name} {_shown(theirs.get(name))} -> {_shown(ours.get(name))}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(_shown, value)) or "nothing"
    return "none" if value is None else str(value)


def _hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's settings, by name."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.name not in FIXED}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


class _Text(str):
    """A value as it stands on the command line: its type is that of the setting."""


def _nested(path: str, text: str) -> dict[str, Any]:
    """`dynamics.friction` → {"dynamics": {"friction": text}}; below a table the rest is one key, dots and all."""
    name, dot, rest = path.partition(".")
    hint: Any = _hints(TaskConfig).get(name)
    if not dot or hint is None:
        return {path if hint is None else name: _Text(text)}
    return {name: {rest: _Text(text)}}


def _rebuilt(config: Any, values: Mapping[str, Any], *, whole_tables: bool, where: str = "") -> Any:
    """A dataclass with some of its fields changed."""
    hints = _hints(type(config))
    changes: dict[str, Any] = {}
    for name, value in values.items():
        path = f"{where}.{name}" if where else name
        if name not in hints:
            raise ValueError(f"{path}: no such setting{did_you_mean(name, hints)}; the settings are {', '.join(hints)}")
        present = getattr(config, name)
        if dataclasses.is_dataclass(present):
            if isinstance(value, _Text) or not isinstance(value, Mapping):
                inner = list(_hints(type(present)))
                raise ValueError(
                    f"{path}: expected one of its settings, such as {path}.{inner[0]} ({', '.join(inner)})"
                )
            changes[name] = _rebuilt(present, value, whole_tables=whole_tables, where=path)
        elif isinstance(present, Mapping) and isinstance(value, Mapping) and not whole_tables:
            added = _value(hints[name], {k: v for k, v in value.items() if not _is_none(v)}, path)
            dropped = [key for key, item in value.items() if _is_none(item)]
            changes[name] = {key: item for key, item in {**present, **added}.items() if key not in dropped}
        else:
            changes[name] = _value(hints[name], value, path)
        _check_bounds(changes[name], path)
    return dataclasses.replace(config, **changes)


def _is_none(value: Any) -> bool:
    return value is None or (isinstance(value, _Text) and value.lower() == "none")


def _value(hint: Any, value: Any, path: str) -> Any:
    """`value` as a `hint`, checked."""
    kind, arguments = typing.get_origin(hint), typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):
        if _is_none(value) and type(None) in arguments:
            return None
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        return _value(inner, value, path)
    if kind is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{path}: expected one of {', '.join(map(str, arguments))}, got {value!r}")
        return str(value) if isinstance(value, _Text) else value
    if kind is dict:
        return _table(arguments[1], value, path)
    if kind is tuple:
        return _tuple(arguments, value, path)
    return _SCALARS[hint](value, path)


def _table(hint: Any, value: Any, path: str) -> dict[str, Any]:
    value = _from_json(value, "{") if isinstance(value, _Text) else value
    if not isinstance(value, Mapping):
        raise ValueError(f"{path}: expected a table of names and values, got {value!r}")
    for key in value:
        _check_choice(key, path)
    return {key: _value(hint, item, f"{path}.{key}") for key, item in value.items()}


def _tuple(hints: tuple[Any, ...], value: Any, path: str) -> tuple[Any, ...]:
    if isinstance(value, _Text):
        value = _from_json(value, "[")
        if isinstance(value, _Text):
            value = [_Text(part.strip()) for part in value.split(",")] if value.strip() else []
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise ValueError(f"{path}: expected a list, got {value!r}")
    if Ellipsis in hints:
        items = tuple(_value(hints[0], item, path) for item in value)
    else:
        if len(value) != len(hints):
            raise ValueError(f"{path}: expected {len(hints)} values, got {len(value)}")
        items = tuple(_value(hint, item, path) for hint, item in zip(hints, value, strict=True))
    if typing.get_args(Range) == hints and items[0] > items[1]:
        raise ValueError(f"{path}: expected a range, the smaller end first, got {items[0]:g},{items[1]:g}")
    for item in items:
        if isinstance(item, str):
            _check_choice(item, path)
    return items


def _from_json(text: _Text, begin: str) -> Any:
    """`text` as JSON, where it begins so; else as it is."""
    if not text.startswith(begin):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"expected JSON after {begin!r}: {error}") from error


def _bool(value: Any, path: str) -> bool:
    if isinstance(value, _Text) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError(f"{path}: expected true or false, got {str(value)!r}")
    return value


def _int(value: Any, path: str) -> int:
    if isinstance(value, _Text) and re.fullmatch(r"\s*[+-]?\d+\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{path}: expected a whole number, got {str(value)!r}")
    return value


def _float(value: Any, path: str) -> float:
    number = math.nan
    if isinstance(value, _Text):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{path}: expected a finite number, got {str(value)!r}")
    return number


def _str(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{path}: expected text, got {value!r}")
    return str(value)


_SCALARS: dict[Any, Any] = {bool: _bool, int: _int, float: _float, str: _str}


def _check_choice(name: str, path: str) -> None:
    choices = _CHOICES.get(path)
    if choices is not None and name not in choices:
        raise ValueError(f"{path}: no {name!r}{did_you_mean(name, choices)}; there are {', '.join(choices)}")


def _check_bounds(value: Any, path: str) -> None:
    low, high = BOUNDS.get(path) or BOUNDS.get(path.partition(".")[0]) or _ANY
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if isinstance(number, int | float) and not isinstance(number, bool) and not low <= number <= high:
            expected = f"{low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
            raise ValueError(f"{path}: expected {expected}, got {number:g}")


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info < (3, 11):
        raise ValueError("TOML needs Python 3.11 or later; write it as JSON")
    import tomllib  # noqa: PLC0415  from Python 3.11 on

    return tomllib.loads(text)
