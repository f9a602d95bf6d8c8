"""The training loop: rollout, update, log, save."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import torch

from p3kernels import MomentMatching
from p3kernels.estimators import MomentMatchingPolicy
from trainer.algorithms import P3PPO
from trainer.checkpoint import checkpoint_path, latest_checkpoint, load_checkpoint, save_checkpoint
from trainer.config import TrainConfig, rsl_rl_config
from trainer.env import LocomotionEnv, one_thread
from trainer.metrics import MetricsLog
from trainer.progress import Progress
from trainer.tasks import make_task

_EPISODES = ("reward", "length", "fell", "traversed")
_WINDOW = 200
"""Finished episodes that the reported means are over."""


class _Interrupt:
    """Ctrl-C, the first time, only asks; the second time it interrupts."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _Interrupt:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, *_: object) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("\ninterrupted: finishing this iteration, then saving; again to leave at once", file=sys.stderr)


class Runner:
    """A training run.

    Args:
        config: Resolved.
    """

    def __init__(self, config: TrainConfig) -> None:
        assert config.num_envs is not None  # resolved
        assert config.run_dir is not None
        self.config, self.run_dir = config, config.run_dir
        torch.manual_seed(config.seed)
        self.env = LocomotionEnv(
            make_task(config.task), config.num_envs, seed=config.seed, num_threads=config.num_threads
        )
        observations = self.env.get_observations()
        self.algorithm = P3PPO.construct_algorithm(observations, self.env, rsl_rl_config(config), "cpu")
        self.algorithm.train_mode()
        self.total_steps, self.total_seconds, self.broken = 0, 0.0, 0
        self._finished = {name: deque[float](maxlen=_WINDOW) for name in _EPISODES}

    @property
    def iteration(self) -> int:
        """Iterations done since the run's beginning."""
        return self.algorithm.iteration

    def learn(self, *, quiet: bool = False) -> None:
        """Trains up to `config.iterations`, or for `config.max_minutes`.

        The first Ctrl-C waits for the iteration's end, so that what is saved continues exactly, then raises
        KeyboardInterrupt; a second one leaves at once, with the last checkpoint as it was.
        """
        target, start = self.config.iterations, self.iteration
        minutes = self.config.max_minutes
        deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        assert target is not None
        with contextlib.ExitStack() as stack:
            log = MetricsLog(self.run_dir, tensorboard=self.config.tensorboard, resume_at=start + 1 if start else None)
            stack.callback(log.close)
            progress = None if quiet else stack.enter_context(contextlib.closing(Progress(target, start=start)))
            interrupt = stack.enter_context(_Interrupt())
            while self.iteration < target:
                before = self.algorithm.actor.estimator
                scalars = self.step()
                log.write(self.iteration, scalars)
                switched = before != self.algorithm.actor.estimator
                if progress is not None:
                    progress.update(self.iteration, scalars)
                    if switched:
                        progress.note(f"iteration {self.iteration}: from moment matching to Monte Carlo (LSFT)")
                stop = interrupt.asked or time.monotonic() > deadline
                if switched or stop or self.iteration % self.config.save_interval == 0 or self.iteration == target:
                    self.save()
                if stop:
                    break
        if interrupt.asked:
            raise KeyboardInterrupt

    def step(self) -> dict[str, float]:
        """One iteration: rollout and update; returns what to log."""
        algorithm, env = self.algorithm, self.env
        estimator = algorithm.actor.estimator
        started = time.perf_counter()
        terms: dict[str, float] = defaultdict(float)
        count = self.config.ppo.num_steps_per_env
        simulating = 0.0
        with torch.inference_mode(), one_thread():
            observations = env.get_observations()
            for _ in range(count):
                action = algorithm.act(observations)
                before = time.perf_counter()
                observations, reward, done, extras = env.step(action)
                simulating += time.perf_counter() - before
                algorithm.process_env_step(observations, reward, done, extras)
                self._note(extras)
                for name, value in extras["log"].items():
                    terms[name] += value / count
            algorithm.compute_returns(observations)
        rolled_out = time.perf_counter()
        losses = algorithm.update()
        finished = time.perf_counter()

        steps = count * env.num_envs
        self.total_steps += steps
        self.total_seconds += finished - started
        scalars = {f"loss/{name}": value for name, value in losses.items()}
        scalars |= terms
        scalars |= {f"episode/{name}": sum(v) / len(v) for name, v in self._finished.items() if v}
        scalars |= self._policy_scalars()
        return scalars | {
            "estimator/num_samples": 0.0 if isinstance(estimator, MomentMatching) else float(estimator.num_samples),
            "steps/total": float(self.total_steps),
            "steps/broken": float(self.broken),
            "time/total_seconds": self.total_seconds,
            "speed/steps_per_second": steps / (finished - started),
            "speed/simulation_seconds": simulating,
            "speed/policy_seconds": rolled_out - started - simulating,
            "speed/update_seconds": finished - rolled_out,
        }

    def _note(self, extras: dict[str, Any]) -> None:
        self.broken += int(extras["broken"].sum())
        for name, values in extras.get("episodes", {}).items():
            self._finished[name].extend(values.tolist())

    def _policy_scalars(self) -> dict[str, float]:
        """Exploration and latent noise, and how many latents carry something, on the current observations."""
        actor, observations = self.algorithm.actor, self.env.get_observations()
        with torch.inference_mode():
            context, latent = actor.encode(observations)
            policy = MomentMatching().policy(actor.mlp, context, latent.mean, latent.std, actor.action_std)
            assert isinstance(policy, MomentMatchingPolicy)
            active = (latent.mean.var(0) > 0.01) if len(latent.mean) > 1 else torch.zeros(1)
            return {
                "policy/action_std": actor.action_std.mean().item(),
                "policy/latent_action_std": policy.latent_var.mean().sqrt().item(),
                "policy/latent_std": latent.std.mean().item(),
                "policy/active_latents": active.sum().item(),
            }

    def save(self) -> Path:
        """Writes a checkpoint of everything a bit-exact continuation needs."""
        path = checkpoint_path(self.run_dir, self.iteration)
        content = {
            "task": self.config.task,
            "algorithm": self.algorithm.save(),
            "environment": self.env.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "iter": self.iteration,
            "totals": {"steps": self.total_steps, "seconds": self.total_seconds, "broken": self.broken},
            "finished": {name: list(values) for name, values in self._finished.items()},
        }
        save_checkpoint(path, content)
        return path

    def restore(self, path: Path | None = None) -> Path:
        """Continues from a checkpoint; the latest of the run directory by default.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It belongs to another task or size.
        """
        found = path or latest_checkpoint(self.run_dir)
        if found is None:
            raise FileNotFoundError(f"--resume: no checkpoint in {self.run_dir}")
        content = load_checkpoint(found, self.config.task)
        self.algorithm.load(content["algorithm"], None, True)
        self.env.load_state_dict(content["environment"])
        totals = content["totals"]
        self.total_steps, self.total_seconds, self.broken = totals["steps"], totals["seconds"], totals["broken"]
        for name, values in content["finished"].items():
            self._finished[name] = deque(values, maxlen=_WINDOW)
        torch.set_rng_state(content["torch_rng"])
        return found
