"""Runs of seconds, and what it means that two of them are the same."""

from __future__ import annotations

import torch

from trainer.algorithms.presets import resolve
from trainer.config import ModelConfig, PpoConfig, TrainConfig
from trainer.evaluation.while_training import TrainingEvaluation
from trainer.export.onnx_file import export
from trainer.models.ranks import ONE_RANK
from trainer.runs.config_file import save_config
from trainer.runs.policy import load_candidate
from trainer.training.runner import Runner
from trainer.training.warm_start import read_weights, with_sizes_of

SMALL_PPO = PpoConfig(num_steps_per_env=6, num_learning_epochs=2, num_mini_batches=2)
"""Two epochs of two minibatches: the least that is several of each, for an update is most of a small run's time."""
FEW_UPDATES = ("--ppo.num-learning-epochs", "2", "--ppo.num-mini-batches", "2")
"""The same for a command line."""


def small(run_dir, method="p3", iterations=6, ranks=ONE_RANK, model=None, **options):
    config = TrainConfig(
        method=method,
        iterations=iterations,
        run_dir=run_dir,
        num_threads=1,
        tensorboard=False,
        model=ModelConfig(hidden_dims=(16, 16), **(model or {})),
        **{"task": "walker-parkour", "num_envs": 6, "ppo": SMALL_PPO, **options},
    )
    run_dir.mkdir(parents=True, exist_ok=True)
    if config.init_from is not None:  # as p3 train does
        config = with_sizes_of(config, read_weights(str(config.init_from)).config.model)
    settings = resolve(config)
    return Runner(settings, ranks=ranks, evaluation=TrainingEvaluation(settings, ranks))


def learned(run_dir, *arguments, **options):
    """The directory of a `small` run that was trained to its end, settings included."""
    runner = small(run_dir, *arguments, **options)
    save_config(runner.config, run_dir / "config.json")
    runner.learn(quiet=True)
    return run_dir


def in_parts(run_dir, method, *stops, prepare=None, **options):
    """The last runner of a `small` run that ended at each of `stops` and went on from its checkpoint.

    Args:
        run_dir: Its directory.
        method: As for `p3 train`.
        stops: Iterations, rising.
        prepare: What is done to each runner before it goes on.
        options: As for `small`.
    """
    for stop in stops:
        runner = small(run_dir, method, stop, **options)
        if prepare is not None:
            prepare(runner)
        if stop != stops[0]:
            runner.restore()
        runner.learn(quiet=True)
    return runner


def whole_and_parts(directory, method, *stops, **options):
    """The last runner of a run without interruption, "whole" of the directory, and that of "part", `in_parts`."""
    whole = in_parts(directory / "whole", method, stops[-1], **options)
    return whole, in_parts(directory / "part", method, *stops, **options)


def stepped(run_dir, *arguments, steps=1, **options):
    """The directory of a `small` run that was saved after some steps, without a log."""
    runner = small(run_dir, *arguments, **options)
    for _ in range(steps):
        runner.step()
    runner.save()
    save_config(runner.config, run_dir / "config.json")
    return run_dir


def exported_policy(directory, task="g1-flat", method="p3", scale=1.0, steps=0):
    """The ONNX file of a policy that was hardly trained, with std where it has one.

    Args:
        directory: The run's, which is made.
        task: Of four environments.
        method: As for `p3 train`.
        scale: Times its last layer's weights: an untrained network hardly moves.
        steps: Iterations of training.
    """
    options = {"num_envs": 4, "task": task}
    runner = small(directory, method, 1, **options)
    for _ in range(steps):
        runner.step()
    with torch.no_grad():
        runner.algorithm.actor.mlp[-1].weight.mul_(scale)
    runner.save()
    save_config(runner.config, directory / "config.json")
    export(load_candidate(directory), directory / "policy.onnx", std=method == "p3")
    return directory / "policy.onnx"


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
