"""`--init-from`: a training that begins with the networks of another one.

Taken are the weights of actor and critic, the statistics that normalise their inputs, and the exploration noise, unless
a new one is asked for. The learning rate begins no higher than it was there: an optimiser without memory, at the rate
for random weights, would undo in one iteration what was learned. Not taken are the optimiser, the estimator's phase,
the curriculum and all counters: those belong to the training that was.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from rsl_rl.modules import EmpiricalNormalization
from torch import Tensor, nn

from trainer.algorithms import P3PPO, parse_method
from trainer.algorithms.presets import method_of, task_of
from trainer.config import ModelConfig, ResolvedConfig, TrainConfig
from trainer.runs.named_checkpoint import RunCheckpoint, read_run_checkpoint
from trainer.tasks import LocomotionTask
from trainer.tasks.contract import Contract

SCAN_STD = 0.1
"""Metres. A plane's height scan hardly varies: scaled by that, the first stair would be an input of tens of stds."""
_SIZES = ("hidden_dims", "proprio_latent", "extero_latent")
"""Settings that have to be the checkpoint's, where the method has them."""


@dataclass(frozen=True)
class Weights:
    """What a checkpoint gives to a new training."""

    path: Path
    config: ResolvedConfig
    """Settings of the run that it is from."""
    contract: Contract | None
    """What its columns mean; None of a checkpoint from before contracts."""
    networks: dict[str, dict[str, Tensor]]
    """State of "actor" and "critic"."""
    learning_rate: float | None
    """Learning rate of the last update; None where the checkpoint does not tell."""
    option: str = "--init-from"
    """Option of the command line that named it, for messages."""

    @property
    def about(self) -> str:
        """The file, and what it was trained on."""
        return f"{self.path} ({self.config.task}, {self.config.method})"


def read_weights(source: str) -> Weights:
    """The weights of a run directory or checkpoint.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, foreign or of another version.
    """
    try:
        return weights_of(read_run_checkpoint(source), "--init-from")
    except (FileNotFoundError, ValueError) as error:
        raise type(error)(f"--init-from: {error}") from error


def weights_of(found: RunCheckpoint, option: str) -> Weights:
    """The weights in a checkpoint that `option` of the command line names.

    Raises:
        ValueError: Its contract is damaged.
    """
    saved = found.content.get("contract")
    contract = None if saved is None else Contract.from_dict(saved)
    algorithm = found.content["algorithm"]
    networks = {name: algorithm[f"{name}_state_dict"] for name in ("actor", "critic")}
    rate = algorithm.get("p3_state", {}).get("learning_rate")
    return Weights(found.path, found.config, contract, networks, rate, option)


def with_sizes_of(config: TrainConfig, source: ModelConfig) -> TrainConfig:
    """The settings with the checkpoint's network sizes where none were given and the method's networks have them."""
    known = {"hidden_dims", *(setting.name for setting in dataclasses.fields(method_of(config).options))}
    missing = [name for name in _SIZES if name in known and getattr(config.model, name) is None]
    model = dataclasses.replace(config.model, **{name: getattr(source, name) for name in missing})
    return dataclasses.replace(config, model=model)


def take_over(algorithm: P3PPO, weights: Weights, task: LocomotionTask, init_std: float | None) -> list[str]:
    """Puts the weights and statistics into a new algorithm.

    Args:
        algorithm: Before its first iteration.
        weights: Weights of another run.
        task: What is to be learned.
        init_std: Exploration noise to begin with; None for that of the checkpoint.

    Returns:
        What was done beside that, a line each.

    Raises:
        ValueError: Observations or networks are not the same; names the first term or layer.
    """
    _check_columns(weights, task.contract)
    check_networks(algorithm, weights)
    for name, network in _networks(algorithm).items():
        network.load_state_dict(weights.networks[name])
    notes = []
    if weights.learning_rate is not None and weights.learning_rate < algorithm.learning_rate:
        algorithm.set_learning_rate(weights.learning_rate)
        notes.append(f"the learning rate begins at the checkpoint's {weights.learning_rate:.1e}")
    if init_std is not None:
        with torch.no_grad():
            algorithm.actor.log_std.fill_(math.log(init_std))
        notes.append(f"exploration noise begins at {init_std:g}")
    if task.config.terrains and not task_of(weights.config).terrains:
        _widen_scan(algorithm, task)
        notes.append(f"the height scan hardly varied there: it is scaled by at least {SCAN_STD:g} m here")
    algorithm.remember_weights()
    return notes


def check_networks(algorithm: P3PPO, weights: Weights) -> None:
    """Compares the networks of an algorithm with the weights for them.

    Raises:
        ValueError: They are others; names the first layer.
    """
    for name, network in _networks(algorithm).items():
        _check_layers(name, network.state_dict(), weights, algorithm.method.name)


def _networks(algorithm: P3PPO) -> dict[str, nn.Module]:
    return {"actor": algorithm.actor, "critic": algorithm.critic}


def _check_columns(weights: Weights, ours: Contract) -> None:
    """Whether every column of the actor's observations and every action means the same."""
    theirs = weights.contract
    if theirs is None:
        return
    beginning = f"--init-from: {weights.about} does not fit {ours.task}"
    for what, there, here in (
        ("robot", theirs.robot, ours.robot),
        ("joints", theirs.joint_names, ours.joint_names),
        ("proprio", _layout(theirs), _layout(ours)),
        ("history", theirs.history, ours.history),
        ("extero (height scan)", (theirs.scan.x, theirs.scan.y), (ours.scan.x, ours.scan.y)),
    ):
        if there != here:
            raise ValueError(f"{beginning}: {what}: there {_first(there, here)}, here {_first(here, there)}")


def _layout(contract: Contract) -> tuple[tuple[str, int, tuple[str, ...]], ...]:
    return tuple((term.name, term.size, term.joints) for term in contract.proprio)


def _first(ours: object, theirs: object) -> str:
    """The first item that differs, where there are several."""
    if not isinstance(ours, tuple) or not isinstance(theirs, tuple):
        return repr(ours)
    differing = [item for index, item in enumerate(ours) if index >= len(theirs) or item != theirs[index]]
    item = differing[0] if differing else "nothing more"
    return repr(item[0] if isinstance(item, tuple) else item)


def _check_layers(name: str, here: Mapping[str, Tensor], weights: Weights, method: str) -> None:
    there = weights.networks[name]
    beginning = f"{weights.option}: {weights.about}: {name}"
    actors = [parse_method(text).actor.rpartition(":")[2] for text in (weights.config.method, method)]
    kinds = f" (its actor is a {actors[0]}, that of {method} a {actors[1]})" if actors[0] != actors[1] else ""
    for layer, value in here.items():
        if layer not in there:
            raise ValueError(f"{beginning} has no layer {layer!r}, which {method} needs{kinds}")
        if there[layer].shape != value.shape:
            raise ValueError(
                f"{beginning}: layer {layer!r} is {_shape(there[layer])}, here it is {_shape(value)}"
                f"{_sizes(weights.config)}{kinds}"
            )
    if unknown := [layer for layer in there if layer not in here]:
        raise ValueError(f"{beginning} has a layer {unknown[0]!r}, which {method} has not{kinds}")


def _shape(value: Tensor) -> str:
    return " × ".join(map(str, value.shape)) or "a number"


def _sizes(source: TrainConfig) -> str:
    """How to have the sizes of the checkpoint."""
    options = []
    for name in _SIZES:
        value = getattr(source.model, name)
        if value is not None:
            text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
            options.append(f"--model.{name.replace('_', '-')} {text}")
    return f"; its run has {' '.join(options)}"


def _widen_scan(algorithm: P3PPO, task: LocomotionTask) -> None:
    """Gives the scan's columns, of actor and critic, at least `SCAN_STD`."""
    parts = [(algorithm.actor.scan_normalizer, slice(None))]
    parts.append((getattr(algorithm.critic, "obs_normalizer", None), task.critic_scan))
    for normalizer, columns in parts:
        if not isinstance(normalizer, EmpiricalNormalization):
            continue
        normalizer._var[:, columns] = normalizer._var[:, columns].clamp(min=SCAN_STD**2)
        normalizer._std = normalizer._var.sqrt()
