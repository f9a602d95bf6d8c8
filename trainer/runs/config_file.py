"""`config.json` of a run: its settings, written when it begins and read by whoever uses its checkpoints."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainer.config import ModelConfig, PpoConfig, TrainConfig
from trainer.config.ranges import check_types
from trainer.runs.files import replace_file


def save_config(config: TrainConfig, path: Path) -> None:
    """Writes the settings of a run as JSON."""
    text = json.dumps(dataclasses.asdict(config), indent=2, default=str)
    replace_file(path, (text + "\n").encode())


def load_config(path: Path) -> TrainConfig:
    """Reads what `save_config` wrote.

    Raises:
        ValueError: It is damaged, or of a version with other settings.
    """
    try:
        return saved_config(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: expected the settings of a run as JSON ({error})") from error


def saved_config(values: Mapping[str, Any]) -> TrainConfig:
    """Settings that a run has saved, from plain values.

    Raises:
        As `config_of`; ValueError too if they name no method: no preset of today decides what trained then.
    """
    config = config_of(values)
    if config.method is None:
        raise ValueError("method: expected str, got None")
    return config


def config_of(values: Mapping[str, Any]) -> TrainConfig:
    """Settings from plain values: those of `dataclasses.asdict`, or what JSON or YAML made of them.

    Raises:
        ValueError: There is no such setting.
        KeyError: A part is missing.
    """
    top = {name: value for name, value in values.items() if name not in ("ppo", "model")}
    ppo, model = dict(values["ppo"]), dict(values["model"])
    parts: tuple[tuple[type, dict[str, Any]], ...] = ((TrainConfig, top), (PpoConfig, ppo), (ModelConfig, model))
    for kind, found in parts:
        unknown = found.keys() - {setting.name for setting in dataclasses.fields(kind)}
        if unknown:
            raise ValueError(f"written by another version; this one has no setting {', '.join(sorted(unknown))}")
    if model.get("hidden_dims") is not None:
        model["hidden_dims"] = tuple(model["hidden_dims"])
    switch_at = top.get("switch_at")
    if switch_at is not None:  # a single iteration in earlier versions
        top["switch_at"] = (switch_at,) if isinstance(switch_at, int) else tuple(switch_at)
    for name in ("run_dir", "settings"):
        if top.get(name) is not None:
            top[name] = Path(top[name])
    for name in ("set", "eval_difficulty"):
        if name in top:
            top[name] = tuple(top[name])
    settings = TrainConfig(**top, ppo=PpoConfig(**ppo), model=ModelConfig(**model))
    check_types(settings)
    return settings
