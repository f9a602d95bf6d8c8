"""What learns: the paper's settings for our own launcher (`train.py`), and the same for Isaac Lab's rsl_rl scripts.

Isaac Lab's own classes describe rsl_rl 3; P3PPO needs rsl_rl 5, whose settings are plain tables.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from isaaclab.utils import configclass
from isaaclab_rl.rsl_rl import RslRlBaseRunnerCfg

from trainer.algorithms.presets import resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import TrainConfig
from trainer.tasks.g1 import G1_FLAT, G1_PARKOUR


def _paper(task: str) -> TrainConfig:
    return TrainConfig(task=task, preset="paper", engine="isaaclab")  # the launcher says on which device


def parkour_settings() -> dict[str, Any]:
    """`TrainConfig` of `g1-parkour` as a table, for Hydra: `agent.method=vae agent.ppo.gamma=0.98`."""
    return dataclasses.asdict(_paper(G1_PARKOUR.name))


def flat_settings() -> dict[str, Any]:
    """`TrainConfig` of `g1-flat` as a table, for Hydra."""
    return dataclasses.asdict(_paper(G1_FLAT.name))


_PARKOUR, _FLAT = resolve(_paper(G1_PARKOUR.name)), resolve(_paper(G1_FLAT.name))
_PARKOUR_AGENT, _FLAT_AGENT = rsl_rl_config(_PARKOUR), rsl_rl_config(_FLAT)


@configclass
class ParkourRunnerCfg(RslRlBaseRunnerCfg):
    """rsl_rl 5's `OnPolicyRunner` on `g1-parkour`."""

    class_name: str = "OnPolicyRunner"
    experiment_name: str = "p3_g1_parkour"
    num_steps_per_env: int = _PARKOUR_AGENT["num_steps_per_env"]
    max_iterations: int | None = _PARKOUR.iterations
    save_interval: int = _PARKOUR.save_interval
    obs_groups: dict[str, list[str]] = _PARKOUR_AGENT["obs_groups"]
    algorithm: dict[str, Any] = _PARKOUR_AGENT["algorithm"]
    actor: dict[str, Any] = _PARKOUR_AGENT["actor"]
    critic: dict[str, Any] = _PARKOUR_AGENT["critic"]


@configclass
class FlatRunnerCfg(ParkourRunnerCfg):
    """rsl_rl 5's `OnPolicyRunner` on `g1-flat`."""

    experiment_name: str = "p3_g1_flat"
    max_iterations: int | None = _FLAT.iterations
    algorithm: dict[str, Any] = _FLAT_AGENT["algorithm"]
    actor: dict[str, Any] = _FLAT_AGENT["actor"]
