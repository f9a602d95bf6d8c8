"""The settings of a run in rsl_rl's form: the tables that its runner, and mjlab's and Isaac Lab's, are built from."""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.algorithms.methods import parse_method
from trainer.config import PpoUpdate, ResolvedConfig


def rsl_rl_config(config: ResolvedConfig) -> dict[str, Any]:
    """The run's algorithm and models, in rsl_rl's form."""
    method = parse_method(config.method)
    update = {setting.name: getattr(config.ppo, setting.name) for setting in dataclasses.fields(PpoUpdate)}
    taken = {setting.name: getattr(config.model, setting.name) for setting in dataclasses.fields(method.options)}
    return {
        "num_steps_per_env": config.ppo.num_steps_per_env,
        "save_interval": config.save_interval,
        "obs_groups": {"actor": ["proprio", "history", "extero"], "critic": ["critic"]},
        "multi_gpu": None,
        "algorithm": {
            "class_name": "trainer.algorithms:P3PPO",
            "method": config.method,
            "switch_at": None if config.switch_at is None else list(config.switch_at),
            "plateau_window": config.plateau_window,
            "rnd_cfg": None,
            **update,
        },
        "actor": {
            "class_name": method.actor,
            **{name: value for name, value in taken.items() if value is not None},  # else the network's own default
        },
        "critic": {
            "class_name": "rsl_rl.models:MLPModel",
            "hidden_dims": list(config.model.hidden_dims),
            "activation": "elu",
            "obs_normalization": True,
        },
    }
