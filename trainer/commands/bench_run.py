"""The work of `p3 bench` with --engine and --update: the simulator's rate under a task, and one PPO update."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p3kernels import MonteCarlo, mixture_log_prob
from p3kernels.estimators import MonteCarloPolicy
from trainer.training.synthetic import fill, make_algorithm, time_updates

RATIOS = (
    ("shared", "vae (N = 1)"),
    ("mm with the Σλ term", "mm"),
    ("mc15-common", "mc(15)"),
    ("mc(15)", "mc(15), expanded eagerly"),
)
"""Pairs of updates whose seconds are divided: what an estimator or a term costs beside what it is a change of."""


def run(options: argparse.Namespace) -> int:
    """Runs the benchmarks of --engine and --update; returns 0."""
    results: dict[str, Any] = {}
    if options.engine:
        results["engine"] = bench_engine(options.tasks, options.num_envs, options.repeats, options.threads)
    if options.update:
        results["update"] = bench_update(options.num_envs, options.repeats)
        if options.profile:
            print(profile_update(options.num_envs))
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return 0


def bench_engine(
    tasks: Sequence[str], num_envs: int, repeats: int, threads: int = 1, steps: int = 50
) -> dict[str, dict[str, float]]:
    """Control steps/s of `mujoco.rollout` alone, and of the environment, on the same states and controls."""
    from trainer.engines.env import one_thread  # noqa: PLC0415  the kernels' benchmark needs no simulator
    from trainer.engines.mujoco.env import MujocoEnv  # noqa: PLC0415  as above
    from trainer.tasks import make_task  # noqa: PLC0415

    print(
        f"{'task':16} {'simulator':>10} {'with task':>10} {'share':>7}   control steps/s,"
        f" {num_envs} environments on {threads} thread{'s' if threads > 1 else ''}"
    )
    results = {}
    for name in tasks:
        env = MujocoEnv(make_task(name), num_envs, seed=0, num_threads=threads)
        engine = env.engine
        generator = torch.Generator().manual_seed(0)
        seconds = {"simulator": 0.0, "task": 0.0}
        for _ in range(repeats):
            actions = 0.5 * torch.randn(steps, num_envs, env.num_actions, generator=generator)
            recorded: list[tuple[list, Any, Any]] = []
            with torch.inference_mode(), one_thread():  # as in training
                for action in actions:
                    begin = time.perf_counter()
                    env.step(action)
                    seconds["task"] += time.perf_counter() - begin
                    recorded.append(engine.current_inputs())
            begin = time.perf_counter()
            for inputs in recorded:
                engine.simulate(*inputs)
            seconds["simulator"] += time.perf_counter() - begin
        rates = {kind: repeats * steps * num_envs / value for kind, value in seconds.items()}
        share = rates["task"] / rates["simulator"]
        print(f"{name:16} {rates['simulator']:10.0f} {rates['task']:10.0f} {share:7.1%}")
        results[name] = {**rates, "share": share}
    return results


class ExpandedMonteCarlo(MonteCarlo):
    """The Monte Carlo likelihood as it is usually written: the batch expanded N times, eagerly."""

    def policy(self, *arguments: Any, **named: Any) -> Any:
        """As `MonteCarlo.policy`, with another `log_prob`."""
        return _Expanded(**vars(super().policy(*arguments, **named)))


@dataclass(frozen=True)
class _Expanded(MonteCarloPolicy):
    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""
        noise = torch.randn(self.num_samples, *self.latent_mean.shape)
        latent = self.latent_mean + self.latent_std * noise
        context = self.context.expand(self.num_samples, -1, -1)
        means = self.actor(torch.cat([context, latent], -1))
        return mixture_log_prob(action, means, self.action_std, backend="reference")


def bench_update(num_envs: int, repeats: int) -> dict[str, float]:
    """Seconds of an update on random data of the G1's sizes, nets of the paper's, every estimator in turn."""
    from trainer.models.latent_noise import LatentNoise  # noqa: PLC0415  as above

    runs = {
        "vae (N = 1)": make_algorithm("vae", num_envs),
        "shared": make_algorithm("shared", num_envs),
        "mm": make_algorithm("mm", num_envs),
        "mm with the Σλ term": make_algorithm("mm", num_envs),
        "mm, half of it mirrored": make_algorithm("mm", num_envs, mirror_share=0.5),
        "mm, all of it mirrored": make_algorithm("mm", num_envs, mirror_share=1.0),
        "mc(15)": make_algorithm("mc(15)", num_envs),
        "mc15-common": make_algorithm("mc15-common", num_envs),
        "mc(15), expanded eagerly": make_algorithm("mc(15)", num_envs),
    }
    runs["mm with the Σλ term"][0].actor.latent_noise = LatentNoise(0.02)
    runs["mc(15), expanded eagerly"][0].actor.estimator = ExpandedMonteCarlo(15)
    best = time_updates(runs, repeats)
    base = best["vae (N = 1)"]
    print(f"{'one update, ' + str(num_envs) + ' × 24 samples':28} {'seconds':>8} {'/ N = 1':>8}")
    for name, seconds in best.items():
        print(f"{name:28} {seconds:8.2f} {seconds / base:8.2f}")
    for name, base_name in RATIOS:
        print(f"{name + ' / ' + base_name:45} {best[name] / best[base_name]:5.2f}")
    return best


def profile_update(num_envs: int, rows: int = 15) -> str:
    """torch.profiler's table of one MM update."""
    algorithm, observations = make_algorithm("mm", num_envs)
    for _ in range(2):  # the first is a warm-up
        fill(algorithm, observations)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            algorithm.update()
    return profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=rows, max_name_column_width=50)
