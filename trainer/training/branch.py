"""`--branch-from`: a training that goes on from a checkpoint of another one, in a run directory of its own.

Everything of that run goes on: weights, optimiser, normalisers, learning rate, curriculum, environments, random numbers
and counters. Only the method and the settings that are given change. Where nothing is given, the branch is the run
continued, bit for bit; where the estimator alone changes, it is the run whose method changes phase at that iteration.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from trainer.algorithms import P3PPO
from trainer.algorithms.method import Method
from trainer.algorithms.methods import parse_method
from trainer.algorithms.presets import method_of, task_of
from trainer.config import TrainConfig
from trainer.runs.named_checkpoint import RunCheckpoint, read_run_checkpoint
from trainer.tasks.settings import differences
from trainer.training.warm_start import check_networks, weights_of

_KEPT = ("num_envs", "seed", "engine", "processes")
"""Settings that belong to the environments and random numbers that go on."""


def read_trunk(source: str) -> RunCheckpoint:
    """The checkpoint that a branch begins with: a file, or the newest of a run directory.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, foreign, of another version, or a policy without the rest of its run.
    """
    try:
        found = read_run_checkpoint(source, newest=True)
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--branch-from: {error}") from error
    if found.is_policy:
        raise ValueError(
            f"--branch-from: {found.path} is a policy without optimiser and environments; --init-from begins with one"
        )
    return found


def settings_of_trunk(source: str) -> TrainConfig:
    """What the settings of a branch are where they are not given: its trunk's.

    Raises:
        As `read_trunk`.
    """
    return settings_of_branch(read_trunk(source).config.given(), source)


def settings_of_branch(trunk: TrainConfig, source: str) -> TrainConfig:
    """The settings of a branch that changes nothing of its trunk's."""
    model = trunk.model
    if model.latent_noise_coef == method_of(trunk).latent_noise_coef:  # another method has its own
        model = dataclasses.replace(model, latent_noise_coef=None)
    return dataclasses.replace(
        trunk, branch_from=source, init_from=None, run_dir=None, resume=False, max_minutes=None, model=model
    )


def check_branch(config: TrainConfig) -> None:
    """Refuses settings that what goes on cannot have.

    Raises:
        FileNotFoundError: There is no such checkpoint.
        ValueError: Naming the option.
    """
    assert config.branch_from is not None
    found = read_trunk(config.branch_from)
    trunk = found.config
    if config.init_from is not None:
        raise ValueError("--init-from and --branch-from exclude each other")
    if config.task != trunk.task:
        raise ValueError(f"--task: {found.path} is of {trunk.task}, a branch of it cannot be of {config.task}")
    if changed := differences(found.task, task_of(config)):
        raise ValueError(f"--set: a branch has the environments of {found.path}; expected no change: {changed[0]}")
    for name in _KEPT:
        here, there = getattr(config, name), getattr(trunk, name)
        if here is not None and there is not None and here != there:
            option = name.replace("_", "-")
            raise ValueError(f"--{option}: {found.path} has {there}, expected the same of a branch, got {here}")
    if config.iterations is not None and config.iterations <= found.content["iter"]:
        raise ValueError(
            f"--iterations: {found.path} is of iteration {found.content['iter']},"
            f" expected more, got {config.iterations}"
        )


def branched(found: RunCheckpoint, config: TrainConfig, algorithm: P3PPO) -> dict[str, Any]:
    """The content of the trunk's checkpoint as the branch goes on from it.

    Args:
        found: The checkpoint.
        config: Settings of the branch, resolved.
        algorithm: Algorithm of the branch, before its first iteration.

    Raises:
        ValueError: The networks are others; names the first layer.
    """
    check_networks(algorithm, weights_of(found, "--branch-from"))
    trunk, content = found.config, dict(found.content)
    state = dict(content["algorithm"]["p3_state"])
    content["algorithm"] = {**content["algorithm"], "p3_state": state}
    if _plan(config) != _plan(trunk):
        before = parse_method(trunk.method).phases[state["estimators"]["phase"]]
        begun = sum(at <= state["iteration"] for at in config.switch_at or ())
        state["estimators"] = {"phase": begun, "changed_at": [], "plateau": {"progress": []}}
        if algorithm.method.phases[begun] != before:  # as at a change of phase
            state["learning_rate"] = min(state["learning_rate"], algorithm.initial_learning_rate)
    if config.ppo.learning_rate != trunk.ppo.learning_rate:
        state["learning_rate"] = config.ppo.learning_rate
    here, there = config.model, trunk.model
    if (here.latent_noise_coef, here.latent_noise_target) != (there.latent_noise_coef, there.latent_noise_target):
        state.pop("latent_noise_coef", None)
    return content


def _plan(config: TrainConfig) -> tuple[Method, tuple[int, ...] | None, bool]:
    """What decides which estimator trains when."""
    return method_of(config), config.switch_at, config.switch_on_plateau
