"""A policy that learned to walk in native MuJoCo walks on PhysX: sim to sim, as the paper has it.

The policy is the package's `g1-flat`; P3_G1_POLICY names another one's run or checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.engines.registry import make_env
from trainer.evaluation.episodes import PLANE, trial_task
from trainer.runs.policy import acting_in, load_candidate
from trainer.tasks.rotation import yaw_of
from trainer.tasks.state import Episode, RobotState

Measured = Callable[..., None]
ROBOTS, SECONDS = 20, 20.0
POLICY = os.environ.get("P3_G1_POLICY", "g1-flat")


def _along_command(state: RobotState, episode: Episode) -> tuple[Tensor, Tensor]:
    """[E] each: the speed in the direction of the command, and the speed that it asks for; m/s."""
    yaw, wanted = yaw_of(state.root_quat), episode.command[:, :2]
    forward = state.root_lin_vel[:, 0] * yaw.cos() + state.root_lin_vel[:, 1] * yaw.sin()
    left = state.root_lin_vel[:, 1] * yaw.cos() - state.root_lin_vel[:, 0] * yaw.sin()
    asked = wanted.norm(dim=-1)
    return (forward * wanted[:, 0] + left * wanted[:, 1]) / asked.clamp(min=1e-6), asked


def test_a_policy_of_native_mujoco_walks(measured: Measured) -> None:
    """80 % of 20 episodes of 20 s on the plane with pushes are survived and get half of the commanded distance."""
    candidate = load_candidate(POLICY)
    task = trial_task(candidate.task, PLANE, 0.0, SECONDS, pushes=True)
    shares = {}
    for engine in ("mujoco", "physx"):
        env = make_env(engine, task.config, ROBOTS, seed=1000, auto_reset=False, num_threads=1)
        act, dt = acting_in(candidate, task, "mean"), task.config.control_dt
        alive = torch.ones(ROBOTS, dtype=torch.bool)
        gone, asked = torch.zeros(ROBOTS), torch.zeros(ROBOTS)
        with torch.inference_mode():
            for _ in range(round(SECONDS / dt)):
                _, _, done, extras = env.step(act(env.get_observations()))
                alive &= ~(done & ~extras["time_outs"])
                speed, wanted = _along_command(env.state, env.episode)
                gone, asked = gone + dt * speed * alive, asked + dt * wanted
        far = gone >= 0.5 * asked
        shares[engine] = {
            "survived": alive.float().mean().item(),
            "survived_and_far": (alive & far).float().mean().item(),
            "distance_m": gone.mean().item(),
            "asked_m": asked.mean().item(),
        }
    measured(**shares, episodes=ROBOTS)
    assert shares["physx"]["survived"] >= 0.8
    assert shares["physx"]["survived_and_far"] >= 0.8
