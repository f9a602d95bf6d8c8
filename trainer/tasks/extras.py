"""What an rsl_rl environment tells of a step beside observations, reward and done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from trainer.tasks.outcome import Outcome


def step_extras(
    outcome: Outcome, term_names: Sequence[str], kinds: Tensor | None, terrains: Sequence[str]
) -> dict[str, Any]:
    """The extras of a control step.

    Args:
        outcome: What the step led to.
        term_names: Names in the log of the outcome's R reward terms.
        kinds: [E] int64: each environment's terrain, into `terrains`; None on the plane.
        terrains: Names of the terrains.
    """
    extras: dict[str, Any] = {
        "time_outs": outcome.timed_out,
        "final_observations": outcome.observations,
        "traversed": outcome.traversed,
        "broken": outcome.broken,
        "why_broken": outcome.why_broken,
        "reward_terms": (means := outcome.terms.mean(1)),  # of the names that `log` begins with
        # On a GPU they stay there: the host would wait for the device at every step.
        "log": dict(zip(term_names, means.tolist() if means.device.type == "cpu" else means, strict=True)),
    }
    ended = outcome.done.nonzero().squeeze(-1)
    if ended.shape[0]:
        success = outcome.success.index_select(0, ended).float()
        extras["episodes"] = {
            "reward": outcome.episode_return.index_select(0, ended),
            "length": outcome.episode_length.index_select(0, ended).float(),
            "fell": outcome.terminated.index_select(0, ended).float(),
            "traversed": outcome.traversed.index_select(0, ended).float(),
            "success": success,
            **({} if kinds is None else _by_terrain(success, kinds.index_select(0, ended), terrains)),
        }
    return extras


def _by_terrain(success: Tensor, kinds: Tensor, terrains: Sequence[str]) -> dict[str, Tensor]:
    """Successes [K] of the episodes that ended on each of the terrains `kinds` [K]."""
    found: dict[str, list[float]] = {}
    for kind, value in zip(kinds.tolist(), success.tolist(), strict=True):
        found.setdefault(f"success/{terrains[kind]}", []).append(value)
    return {name: torch.tensor(values) for name, values in found.items()}
