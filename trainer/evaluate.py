"""How well a trained policy does: survival, lifetime and reward over fresh episodes, and `p3 eval`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import P3PPO
from trainer.checkpoint import latest_checkpoint, load_checkpoint
from trainer.config import TrainConfig, load_config, rsl_rl_config
from trainer.env import LocomotionEnv, one_thread
from trainer.models.actor import LatentActor
from trainer.tasks import LocomotionTask, make_task


@dataclass(frozen=True)
class Evaluation:
    """Means over one episode of each environment."""

    survival: float
    """Share of robots that did not fall within the time."""
    lifetime: float
    """Seconds until the fall, or the whole time."""
    reward: float
    """Sum over the lifetime."""
    distance: float
    """Metres from the start, at the end of the lifetime."""
    episodes: int


def load_policy(run_dir: Path, checkpoint: Path | None = None) -> tuple[LatentActor, TrainConfig, Path]:
    """The actor of a run, ready to act; the latest checkpoint by default.

    Raises:
        FileNotFoundError: No run or no checkpoint there.
    """
    settings = run_dir / "config.json"
    if not settings.exists():
        raise FileNotFoundError(f"no run in {run_dir}: it has no config.json")
    path = checkpoint or latest_checkpoint(run_dir)
    if path is None:
        raise FileNotFoundError(f"no checkpoint in {run_dir}")
    config = load_config(settings)
    content = load_checkpoint(path, config.task)
    env = LocomotionEnv(make_task(config.task), 1, num_threads=0)
    algorithm = P3PPO.construct_algorithm(env.get_observations(), env, rsl_rl_config(config), "cpu")
    algorithm.load(content["algorithm"], None, True)
    algorithm.eval_mode()
    return algorithm.actor, config, path


def action_of(actor: LatentActor, latent: str) -> Callable[[TensorDict], Tensor]:
    """How to act: "mean" of the latent as deployed, a "sample" of it, or the whole "policy" with exploration."""
    if latent == "policy":
        return lambda observations: actor(observations, stochastic_output=True)
    return {"mean": actor.act_at_mean, "sample": actor.act_at_sample}[latent]


def evaluate(act: Callable[[TensorDict], Tensor], env: LocomotionEnv, seconds: float) -> Evaluation:
    """Runs one episode in each environment of a new `env`, up to `seconds`; a course traversed is survived."""
    steps = round(seconds / env.task.config.control_dt)
    running = torch.ones(env.num_envs, dtype=torch.bool)
    fallen = torch.zeros_like(running)
    lifetime, reward, distance = (torch.zeros(env.num_envs) for _ in range(3))
    with torch.inference_mode(), one_thread():
        observations = env.get_observations()
        for _ in range(steps):
            start = env.episode.spawn.clone()
            before = env.state.root_pos[:, :2].clone()
            observations, rewards, dones, extras = env.step(act(observations))
            reward += rewards * running
            lifetime += running * env.task.config.control_dt
            distance = torch.where(running, (before - start).norm(dim=-1), distance)
            fallen |= running & dones & ~extras["time_outs"]
            running &= ~dones
            if not running.any():
                break
    return Evaluation(
        survival=1.0 - fallen.float().mean().item(),
        lifetime=lifetime.mean().item(),
        reward=reward.mean().item(),
        distance=distance.mean().item(),
        episodes=env.num_envs,
    )


def terrain_level(task: LocomotionTask, level: int | None) -> int | None:
    """The level to fix: 0 by default on terrains, none on a plane.

    Raises:
        ValueError: A level for a task without terrains.
    """
    if not task.config.terrains:
        if level is not None:
            raise ValueError(f"--level: {task.config.name} has no terrain levels")
        return None
    return level or 0


@dataclass
class EvalConfig:
    """Evaluate a trained policy over fresh episodes."""

    run_dir: Annotated[Path, tyro.conf.Positional]
    """Directory of the run."""
    latent: tuple[Literal["mean", "sample", "policy"], ...] = ("mean", "sample")
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    seconds: float = 10.0
    """Length of an episode."""
    episodes: int = 256
    """Robots, one episode each."""
    level: int | None = None
    """Fixed terrain level; level 0 by default, on terrains."""
    pushes: bool = True
    """Push the robots as in training, every 5 to 10 s."""
    seed: int = 1000
    """Of the episodes; other than the training's."""
    checkpoint: Path | None = None
    """A checkpoint file; the run's latest by default."""
    json: Path | None = None
    """Also write the numbers to this file."""


def main(arguments: Sequence[str], prog: str = "p3 eval") -> int:
    """Prints one row for each way of acting."""
    config = tyro.cli(EvalConfig, args=list(arguments), prog=prog)
    try:
        actor, run, path = load_policy(config.run_dir, config.checkpoint)
        task = make_task(run.task)
        if not config.pushes:
            gentle = replace(task.config.dynamics, push_velocity=(0.0, 0.0))
            task = LocomotionTask(replace(task.config, dynamics=gentle))
        if config.seconds <= 0 or config.episodes < 1:
            raise ValueError("--seconds and --episodes: expected positive numbers")
        if config.json is not None and not config.json.parent.is_dir():
            raise ValueError(f"--json: no directory {config.json.parent}")
        level = terrain_level(task, config.level)
        pushed = "" if config.pushes else ", without pushes"
        print(f"{path}: {run.task}, {run.method}, {config.episodes} episodes of {config.seconds:g} s{pushed}")
        print(f"{'latent':8} {'survival':>9} {'lifetime s':>11} {'reward':>8} {'distance m':>11}")
        results = {}
        for latent in config.latent:
            torch.manual_seed(config.seed)
            env = LocomotionEnv(task, config.episodes, seed=config.seed, level=level)
            result = evaluate(action_of(actor, latent), env, config.seconds)
            results[latent] = asdict(result)
            numbers = f"{result.lifetime:11.2f} {result.reward:8.2f} {result.distance:11.2f}"
            print(f"{latent:8} {result.survival:9.1%} {numbers}")
    except (ValueError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    if config.json is not None:
        config.json.write_text(json.dumps({"checkpoint": path.name, **results}, indent=2) + "\n", encoding="utf-8")
    return 0
