"""The state of what torch draws from by default, for a continuation that is the same bit for bit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def random_state(device: str) -> dict[str, Tensor]:
    """State of the CPU's generator, and of the GPU's where the policy acts there."""
    states = {"torch_rng": torch.get_rng_state()}
    if torch.device(device).type == "cuda":
        states["cuda_rng"] = torch.cuda.get_rng_state(device)
    return states


def set_random_state(states: dict[str, Any], device: str) -> None:
    """Goes on from `random_state`."""
    torch.set_rng_state(states["torch_rng"])
    if torch.device(device).type == "cuda" and "cuda_rng" in states:  # none of a run that was on the CPU
        torch.cuda.set_rng_state(states["cuda_rng"], device)
