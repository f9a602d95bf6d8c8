"""What a policy does on a course: python tools/course.py CHECKPOINT [--difficulty D] [--robots N] [--terrain NAME ...]

Speed by command, how often joints are beyond their range, and how many robots arrive with the scan as it is, with that
of flat ground and with another robot's: a policy that does not look arrives as often. Pushed and randomised as in
training, z at its mean. Makes the numbers of docs/results.md on why a G1 does not cross more.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import trial_task
from trainer.runs.policy import acting_in, load_candidate

_SEEN = {
    "as it is": lambda scan: scan,
    "of flat ground": torch.zeros_like,
    "another robot's": lambda scan: scan.roll(len(scan) // 2, 0),
}


def main() -> None:
    """Prints a block for each terrain."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", help="a run directory, a checkpoint file or the name of a policy of the package")
    parser.add_argument("--difficulty", type=float, default=0.0, help="in [0, 1]")
    parser.add_argument("--robots", type=int, default=40, help="at least 2, one episode each")
    parser.add_argument("--terrain", nargs="+", default=["stairs", "gaps", "single_row_stones"])
    options = parser.parse_args()
    if options.robots < 2:
        parser.error(f"--robots: expected at least 2, got {options.robots}")
    candidate = load_candidate(options.checkpoint)
    for terrain in options.terrain:
        task = trial_task(candidate.task, terrain, 1.0, 20.0, pushes=True)
        if not task.config.robot.joint_range:
            parser.error(f"{task.config.robot.name} declares no joint_range")
        act = acting_in(candidate, task, "mean")
        print(f"{terrain} at difficulty {options.difficulty:g}", flush=True)
        for name, seen in _SEEN.items():
            env = MujocoEnv(task, options.robots, seed=5, difficulty=options.difficulty)
            arrived, beyond, speed = _episodes(env, act, seen, task.reward_context.joint_range)
            print(f"  scan {name}: {arrived} of {options.robots} arrive", flush=True)
            if name == "as it is":
                shares = ", ".join(f"{over} rad in {(beyond > over).float().mean():.1%}" for over in (0, 0.05, 0.1))
                print(f"  some joint beyond its range by more than {shares} of the steps")
                print(f"  speed {speed:.2f} of the command")


def _episodes(env: MujocoEnv, act: Callable, seen: Callable, joint_range: Tensor) -> tuple[int, Tensor, float]:
    """How many arrive in their first episode, radians beyond the range by step, speed as a share of the command."""
    low, high = joint_range.unbind(-1)
    done = torch.zeros(env.num_envs, dtype=torch.bool)
    arrived, beyond, share = torch.zeros_like(done), [], []
    observations = env.get_observations()
    with torch.inference_mode():
        while not done.all():
            observations["extero"] = seen(observations["extero"])
            observations, _, ended, extras = env.step(act(observations))
            position = env.state.joint_pos[~done]
            beyond.append(torch.maximum(low - position, position - high).amax(-1))
            share.append((env.state.planar_velocity[:, 0] / env.running.episode.command[:, 0])[~done])
            arrived |= ended & ~done & extras["traversed"]
            done |= ended
    return int(arrived.sum()), torch.cat(beyond), float(torch.cat(share).mean())


if __name__ == "__main__":
    main()
