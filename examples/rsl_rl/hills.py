"""A batch of carts on hills, in plain torch: a small environment of rsl_rl's kind with hidden velocity and a scan.

A cart has to keep a commanded speed. It senses its pitch, a noisy acceleration, the command and its last action, not
its speed: that is what the history and the velocity estimate are for. The scan shows the ground ahead.
"""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

FRAMES, ROWS, COLUMNS = 5, 3, 9
STEP, GRAVITY = 0.05, 9.81


class Hills(VecEnv):
    """E carts; an episode is 200 steps of 50 ms, and ends early where a cart runs away.

    Args:
        num_envs: E.
        seed: Seed of the hills, the commands and the noise.
        scan: Whether there is the group `extero`.
        velocity: Whether there is the group `velocity`.
    """

    def __init__(self, num_envs: int = 64, seed: int = 0, *, scan: bool = True, velocity: bool = True) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 2, 200
        self.device, self.cfg, self.scan, self.velocity = "cpu", {"seed": seed}, scan, velocity
        self.generator = torch.Generator().manual_seed(seed)
        self.episode_length_buf = torch.zeros(num_envs, dtype=torch.long)
        self.phase, self.height, self.position, self.speed, self.command, self.pushed = torch.zeros(6, num_envs)
        self.last_action = torch.zeros(num_envs, 2)
        self.history = torch.zeros(num_envs, FRAMES, 5)
        self._begin(torch.ones(num_envs, dtype=torch.bool))

    def get_observations(self) -> TensorDict:
        """The groups: one row a cart."""
        groups = {
            "proprio": self.history[:, -1],
            "history": self.history.flatten(1),
            "critic": torch.stack([self.speed, self._slope(self.position), self.height], -1),
        }
        if self.scan:
            ahead = self.position[:, None] + torch.linspace(-1.0, 3.0, COLUMNS)
            heights = (self._ground(ahead) - self._ground(self.position[:, None]))[:, None].expand(-1, ROWS, -1)
            groups["extero"] = (heights + 0.02 * self._noise(self.num_envs, ROWS, COLUMNS)).flatten(1)
        if self.velocity:
            groups["velocity"] = self.speed[:, None]
        return TensorDict({name: value.clone() for name, value in groups.items()}, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Two motors push for 50 ms."""
        actions = actions.clamp(-3.0, 3.0)
        self.pushed = 2.0 * actions.sum(-1) - GRAVITY * self._slope(self.position) - 0.5 * self.speed
        self.speed = self.speed + STEP * self.pushed
        self.position = self.position + STEP * self.speed
        self.last_action = actions
        self.episode_length_buf += 1
        self._remember()
        reward = torch.exp(-4.0 * (self.speed - self.command).square()) - 0.01 * actions.square().sum(-1)
        ran_away = self.speed.abs() > 6.0
        timed_out = (self.episode_length_buf >= self.max_episode_length) & ~ran_away
        # What a time-out's value is of, and what the decoder is trained towards; left out, P3PPO does as rsl_rl does.
        extras: dict[str, Any] = {"time_outs": timed_out, "final_observations": self.get_observations()}
        done = ran_away | timed_out
        self._begin(done)
        return self.get_observations(), reward, done, extras

    def _begin(self, where: Tensor) -> None:
        """New episodes `where` [E]."""

        def anew(old: Tensor, low: float, high: float) -> Tensor:
            drawn = low + (high - low) * torch.rand(self.num_envs, generator=self.generator)
            return torch.where(where, drawn, old)

        self.phase, self.height = anew(self.phase, 0.0, 6.28), anew(self.height, 0.1, 0.4)
        self.position, self.speed = anew(self.position, 0.0, 0.0), anew(self.speed, -0.5, 0.5)
        self.command, self.pushed = anew(self.command, 0.5, 1.5), anew(self.pushed, 0.0, 0.0)
        self.last_action = torch.where(where[:, None], 0.0, self.last_action)
        self.episode_length_buf = torch.where(where, 0, self.episode_length_buf)
        self.history = torch.where(where[:, None, None], self._frame()[:, None], self.history)

    def _remember(self) -> None:
        self.history = torch.cat([self.history[:, 1:], self._frame()[:, None]], 1)

    def _frame(self) -> Tensor:
        """[E, 5]: pitch, acceleration, command, last action."""
        felt = self.pushed + 0.2 * self._noise(self.num_envs)
        sensed = torch.stack([self._slope(self.position), felt, self.command], -1)
        return torch.cat([sensed, self.last_action], -1)

    def _ground(self, x: Tensor) -> Tensor:
        return self.height[:, None] * torch.sin(x + self.phase[:, None])

    def _slope(self, x: Tensor) -> Tensor:
        return self.height * torch.cos(x + self.phase)

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)
