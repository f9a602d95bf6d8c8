"""How a G1 policy steps: python tools/gait.py CHECKPOINT; undisturbed, at 0.7 m/s on the plane.

Makes the numbers on gaits in docs/results.md and on the policies' cards.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import PLANE, trial_task
from trainer.runs.policy import acting_in, load_candidate

_ROBOTS, _SETTLING, _STEPS = 16, 150, 250


def main() -> None:
    """Prints support, steps, heights, speed and the trunk's yaw rate."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="a run directory, a checkpoint file or the name of a policy of the package")
    candidate = load_candidate(parser.parse_args().checkpoint)
    straight = {"command_x": (0.7, 0.7), "command_y": (0.0, 0.0), "command_yaw": (0.0, 0.0), "standing_fraction": 0.0}
    task = trial_task(replace(candidate.task, **straight), PLANE, 0.0, 20.0, pushes=False)
    env = MujocoEnv(task, _ROBOTS, seed=5, num_threads=1)
    act = acting_in(candidate, task, "mean")
    contact, height, speed, yaw_rate = [], [], [], []
    with torch.inference_mode():
        for step in range(_SETTLING + _STEPS):
            env.step(act(env.get_observations()))
            if step >= _SETTLING:
                contact.append(env.state.foot_contact)
                height.append(env.state.foot_pos[..., 2])
                speed.append(env.state.planar_velocity[:, 0])
                yaw_rate.append(env.state.root_ang_vel[:, 2])
    borne = torch.stack(contact)
    feet = borne.sum(-1)
    lifts = (borne[:-1] & ~borne[1:]).float().sum(0).mean() / (_STEPS * task.config.control_dt)
    print("of the time on no, one, two feet: " + ", ".join(f"{(feet == n).float().mean():.1%}" for n in range(3)))
    print(f"a foot leaves the ground {lifts:.2f} times a second")
    print(f"height of a foot, 99 % of the time at most: {torch.stack(height).flatten().quantile(0.99):.3f} m")
    turning = torch.stack(yaw_rate).square().mean().sqrt()
    print(f"speed {torch.stack(speed).mean():.2f} m/s; yaw rate {turning:.2f} rad/s rms")


if __name__ == "__main__":
    main()
