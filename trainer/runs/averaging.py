"""One policy out of several checkpoints of a run: the mean of their weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trainer.runs.checkpoint import checkpoint_iterations, checkpoint_path, load_checkpoint
from trainer.runs.policy import Candidate


def averaged(newest: Candidate, count: int) -> Candidate:
    """`newest` with the mean of its network's weights over `count` checkpoints: itself and those before it.

    Checkpoints of a training that goes on circle around what it tends to; their mean is nearer to that than each of
    them. Normalisers, critic and all else are those of `newest`.

    Raises:
        ValueError: There are fewer checkpoints, or `newest` is no checkpoint of a run.
    """
    if newest.is_policy:
        raise ValueError(f"--average: expected a run or a checkpoint in one, got the policy file {newest.path}")
    paths = _before(newest)
    if len(paths) < count - 1:
        raise ValueError(
            f"--average: expected at most {len(paths) + 1}, the checkpoints up to {newest.path}; got {count}"
        )
    sums = {name: value.detach().double() for name, value in newest.actor.named_parameters()}
    for path in paths[len(paths) - (count - 1) :]:
        weights = load_checkpoint(path, newest.config.task)["algorithm"]["actor_state_dict"]
        if any(name not in weights or weights[name].shape != value.shape for name, value in sums.items()):
            raise ValueError(f"--average: {path} holds other networks than {newest.path}")
        sums = {name: value + weights[name].double() for name, value in sums.items()}
    means = {name: (value / count).to(newest.actor.get_parameter(name).dtype) for name, value in sums.items()}
    content = dict(newest.content)
    content["algorithm"] = content["algorithm"] | {"actor_state_dict": content["algorithm"]["actor_state_dict"] | means}
    newest.actor.load_state_dict(content["algorithm"]["actor_state_dict"])
    return dataclasses.replace(newest, content=content)


def _before(newest: Candidate) -> list[Path]:
    """The run's numbered checkpoints before the iteration of `newest`, ascending."""
    return [
        checkpoint_path(newest.run_dir, iteration)
        for iteration in checkpoint_iterations(newest.run_dir)
        if iteration < newest.content["iter"]
    ]
