"""Runs of seconds, and what it means that two of them are the same."""

from __future__ import annotations

import torch

from trainer.algorithms.presets import resolve
from trainer.config import ModelConfig, PpoConfig, TrainConfig
from trainer.evaluation.while_training import TrainingEvaluation
from trainer.models.ranks import ONE_RANK
from trainer.training.runner import Runner


def small(run_dir, method="p3", iterations=6, ranks=ONE_RANK, model=None, **options):
    config = TrainConfig(
        method=method,
        iterations=iterations,
        run_dir=run_dir,
        num_threads=1,
        tensorboard=False,
        model=ModelConfig(hidden_dims=(16, 16), **(model or {})),
        **{"task": "walker-parkour", "num_envs": 6, "ppo": PpoConfig(num_steps_per_env=6), **options},
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    settings = resolve(config)
    return Runner(settings, ranks=ranks, evaluation=TrainingEvaluation(settings, ranks))


def flattened(value, prefix=""):
    """Every leaf of nested dicts and lists, by its path."""
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in flattened(item, f"{prefix}/{name}").items()}
    if isinstance(value, list | tuple):
        return {k: v for i, item in enumerate(value) for k, v in flattened(item, f"{prefix}/{i}").items()}
    return {prefix: value}


def assert_same(ours, theirs):
    ours, theirs = flattened(ours), flattened(theirs)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if "seconds" in name:  # of the clock
            continue
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, theirs[name]), name
        else:
            assert value == theirs[name], name
