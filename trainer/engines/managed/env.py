"""What the environments of manager-based engines share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainer.engines.env import TaskEnv


class ManagedEnv(TaskEnv):
    """A task inside a manager-based `simulation`, which counts the steps of episodes too."""

    simulation: Any

    @property
    def episode_length_buf(self) -> Tensor:
        """[E]: steps of the running episodes."""
        return self.simulation.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.episode.step = value.to(torch.int64)
        self.simulation.episode_length_buf = self.episode.step.clone()  # which the engine counts up in place
