"""Updates on random observations of the G1's sizes, without a simulator: what is timed and counted of a method."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import P3PPO
from trainer.algorithms.presets import resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import PpoConfig, TrainConfig
from trainer.tasks import make_task
from trainer.tasks.symmetry import TaskSymmetry
from trainer.training.rollout import collect

_SIZES = {"proprio": 98, "history": 490, "extero": 187, "velocity": 3, "critic": 300}


def make_algorithm(
    method: str, num_envs: int, mirror_share: float = 0.0, device: str = "cpu", *, cuda_graph: bool = False
) -> tuple[P3PPO, TensorDict]:
    """A method at the paper's network sizes, and random observations of the G1's sizes [num_envs]."""
    torch.manual_seed(0)
    made = {name: torch.randn(num_envs, size).to(device) for name, size in _SIZES.items()}
    observations = TensorDict(made, batch_size=[num_envs])
    ppo = PpoConfig(mirror_share=mirror_share)
    config = resolve(TrainConfig(method=method, preset="paper", num_envs=num_envs, ppo=ppo))
    env: Any = argparse.Namespace(num_envs=num_envs, num_actions=29, symmetry=TaskSymmetry(make_task(config.task)))
    settings = rsl_rl_config(config)
    settings["algorithm"]["cuda_graph"] = cuda_graph
    algorithm = P3PPO.construct_algorithm(observations, env, settings, device)
    algorithm.train_mode()
    return algorithm, observations


class _Still:
    """Environments whose observations stay as they are, with random rewards."""

    def __init__(self, observations: TensorDict) -> None:
        self._observations = observations

    def get_observations(self) -> TensorDict:
        return self._observations

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        count = len(actions)
        rewards, done = torch.randn(count), torch.zeros(count, dtype=torch.bool)
        return self._observations, rewards.to(actions.device), done.to(actions.device), {}


def fill(algorithm: P3PPO, observations: TensorDict) -> None:
    """A rollout on the same observations and with random rewards, ready for `update`."""
    collect(algorithm, _Still(observations))


def time_updates(runs: Mapping[str, tuple[Any, Any]], repeats: int) -> dict[str, float]:
    """Seconds of an update, the best of `repeats` after a warm-up, the contestants of `make_algorithm` in turn."""
    best = dict.fromkeys(runs, float("inf"))
    for repeat in range(repeats + 1):
        for name, (algorithm, observations) in runs.items():
            fill(algorithm, observations)
            begin = time.perf_counter()
            algorithm.update()
            if repeat:
                best[name] = min(best[name], time.perf_counter() - begin)
    return best
