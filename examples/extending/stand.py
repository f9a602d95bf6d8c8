"""A task of one's own for a robot that is there already: the walker on a plane, standing still."""

from __future__ import annotations

from dataclasses import replace

import torch

from trainer.engines.registry import make_env
from trainer.tasks.walker import WALKER_PARKOUR

STAND = replace(
    WALKER_PARKOUR,
    name="walker-stand",
    terrains=(),
    command_x=(0.0, 0.0),
    rewards={"alive": 1.0, "upright": 1.0, "energy": -1e-3, "action_rate": -0.02},
)

if __name__ == "__main__":
    env = make_env("mujoco", STAND, 4, seed=1, num_threads=1)
    for _ in range(50):
        observations, reward, done, extras = env.step(torch.zeros(4, env.num_actions))
    print("reward of the last step", reward.tolist())
