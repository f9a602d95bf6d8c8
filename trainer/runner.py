"""The training loop: rollout, update, log, save; and what it does when one of them goes wrong."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from p3kernels import CovarianceMatching, MomentMatching, MonteCarlo
from trainer.algorithms import P3PPO
from trainer.checkpoint import checkpoint_path, newest_readable, prune_checkpoints, save_checkpoint
from trainer.config import TrainConfig, rsl_rl_config
from trainer.diagnostics import latent_scalars, policy_scalars, resident_mib
from trainer.engines.registry import EnvMaker, make_env
from trainer.env import one_thread
from trainer.interrupt import Interrupt, Interrupted
from trainer.metrics import MetricsLog, WandbSettings
from trainer.models.actor import Estimator
from trainer.progress import Progress
from trainer.tasks import TASKS

_EPISODES = ("reward", "length", "fell", "traversed")
_WINDOW = 200
"""Finished episodes that the reported means are over."""
_MOST_ROLLBACKS = 3
"""To one and the same checkpoint; then the trouble is not chance."""


class Diverged(RuntimeError):
    """The training breaks again and again, and there is nothing to go back to that helps."""


class NotSaved(OSError):
    """The training is done, but its last checkpoint could not be written."""


class Runner:
    """A training run.

    Args:
        config: Resolved.
        wandb: Where to log in Weights & Biases; None for nowhere.
        make_env: What makes the environments.
    """

    def __init__(self, config: TrainConfig, wandb: WandbSettings | None = None, make_env: EnvMaker = make_env) -> None:
        assert config.num_envs is not None  # resolved
        assert config.run_dir is not None
        self.config, self.run_dir, self._wandb = config, config.run_dir, wandb
        torch.manual_seed(config.seed)
        self.env = make_env(
            config.engine,
            TASKS[config.task],
            config.num_envs,
            seed=config.seed,
            device=config.device,
            num_threads=config.num_threads,
        )
        observations = self.env.get_observations()
        self.algorithm = P3PPO.construct_algorithm(observations, self.env, rsl_rl_config(config), config.device)
        self.algorithm.train_mode()
        self.total_steps, self.total_seconds, self.broken, self.rollbacks = 0, 0.0, 0, 0
        self._finished = {name: deque[float](maxlen=_WINDOW) for name in _EPISODES}
        self._switched_at: int | None = None
        self._trouble = 0
        self._returns_to: dict[Path, int] = defaultdict(int)
        self._unsaved = False
        self._note: Callable[[str], None] = lambda message: print(message, file=sys.stderr)

    @property
    def iteration(self) -> int:
        """Iterations done since the run's beginning."""
        return self.algorithm.iteration

    def learn(self, *, quiet: bool = False) -> None:
        """Trains up to `config.iterations`, or for `config.max_minutes`.

        The first Ctrl-C or SIGTERM waits for the iteration's end, so that what is saved continues exactly; a second one
        leaves at once, with the last checkpoint as it was.

        Raises:
            Interrupted: After the first signal, with everything saved.
            Diverged: It broke again and again.
            NotSaved: The last checkpoint could not be written.
        """
        target, minutes = self.config.iterations, self.config.max_minutes
        assert target is not None
        deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        with contextlib.ExitStack() as stack:
            self._open_log()
            stack.push(self._close_log)
            progress = None
            if not quiet:
                progress = stack.enter_context(contextlib.closing(Progress(target, start=self.iteration)))
                self._note = progress.note
            self.algorithm.report = self._note
            interrupt = stack.enter_context(Interrupt(self._note))
            while self.iteration < target:
                before = self.algorithm.actor.estimator
                scalars = self.step()
                if self._trouble >= self.config.rollback_after:
                    self._roll_back()
                    continue
                self._log.write(self.iteration, scalars)
                switched = before != self.algorithm.actor.estimator
                if progress is not None:
                    progress.update(self.iteration, scalars)
                if switched:
                    self._switched_at = self.iteration
                    self._note(f"iteration {self.iteration}: from moment matching to Monte Carlo (LSFT)")
                stop = interrupt.number is not None or time.monotonic() > deadline or self.iteration == target
                # An iteration in trouble is nothing to go back to: its checkpoint waits for a good one.
                self._unsaved |= switched or stop or self.iteration % self.config.save_interval == 0
                if self._unsaved and (self._trouble == 0 or stop):
                    self._try_to_save(last=stop)
                if stop:
                    break
        if interrupt.number is not None:
            raise Interrupted(interrupt.number)

    def _open_log(self) -> None:
        """From the next iteration on: what was logged of it and of later ones, by a run that ended there, goes."""
        self._log = MetricsLog(
            self.run_dir,
            tensorboard=self.config.tensorboard,
            resume_at=self.iteration + 1 if self.iteration else None,
            wandb=self._wandb,
        )

    def _close_log(self, *exception: Any) -> None:
        self._log.__exit__(*exception)

    def step(self) -> dict[str, float]:
        """One iteration: rollout and update; returns what to log."""
        algorithm, env = self.algorithm, self.env
        estimator = algorithm.actor.estimator
        started = time.perf_counter()
        terms: dict[str, float] = defaultdict(float)
        count = self.config.ppo.num_steps_per_env
        simulating, why_broken = 0.0, ""
        restored, broken = algorithm.restored_weights, self.broken
        with torch.inference_mode(), one_thread():
            observations = env.get_observations()
            for _ in range(count):
                action = algorithm.act(observations)
                before = time.perf_counter()
                observations, reward, done, extras = env.step(action)
                simulating += time.perf_counter() - before
                algorithm.process_env_step(observations, reward, done, extras)
                self._count(extras)
                why_broken = extras["why_broken"] or why_broken
                for name, value in extras["log"].items():
                    terms[name] += value / count
            algorithm.compute_returns(observations)
        rolled_out = time.perf_counter()
        losses = algorithm.update()
        finished = time.perf_counter()

        went_wrong = losses["skipped_steps"] > 0 or algorithm.restored_weights > restored
        self._trouble = self._trouble + 1 if went_wrong else 0
        if self.broken > broken:
            count_broken = self.broken - broken
            self._note(f"iteration {self.iteration}: {count_broken} broken environments began anew: {why_broken}")
        steps = count * env.num_envs
        self.total_steps += steps
        self.total_seconds += finished - started
        scalars = {f"loss/{name}": value for name, value in losses.items()}
        scalars |= terms
        scalars |= {f"episode/{name}": sum(v) / len(v) for name, v in self._finished.items() if v}
        scalars |= self._policy_scalars()
        return scalars | {
            "estimator/num_samples": _num_samples(estimator),
            "steps/total": float(self.total_steps),
            "steps/broken": float(self.broken),
            "steps/replaced_rows": float(algorithm.replaced_rows),
            "steps/restored_weights": float(algorithm.restored_weights),
            "steps/rollbacks": float(self.rollbacks),
            "time/total_seconds": self.total_seconds,
            "speed/steps_per_second": steps / (finished - started),
            "speed/simulation_steps_per_second": steps / simulating,
            "speed/policy_steps_per_second": steps / (rolled_out - started - simulating),
            "speed/update_steps_per_second": steps / (finished - rolled_out),
            "memory/resident_mib": resident_mib(),
        }

    def _count(self, extras: dict[str, Any]) -> None:
        self.broken += int(extras["broken"].sum())
        for name, values in extras.get("episodes", {}).items():
            self._finished[name].extend(values.tolist())

    def _policy_scalars(self) -> dict[str, float]:
        """On the current observations, which no update has seen yet."""
        actor, observations, every = self.algorithm.actor, self.env.get_observations(), self.config.diagnose_interval
        scalars = policy_scalars(actor, observations)
        if every and (self.iteration % every == 0 or self.iteration == 1):
            scalars |= latent_scalars(actor, observations, clip=self.config.ppo.clip_param, seed=self.iteration)
        return scalars

    def _try_to_save(self, *, last: bool) -> None:
        """Saves; where that fails the training goes on and tries again, and only the last failure is an error."""
        try:
            self.save()
        except OSError as error:
            reason = error.strerror or error
            message = f"iteration {self.iteration}: no checkpoint written to {self.run_dir}: {reason}"
            if last:
                raise NotSaved(f"{message}; the earlier ones are as they were") from error
            self._note(f"{message}; going on, and trying again after the next iteration")
            return
        self._unsaved = False
        if self.config.keep_checkpoints is not None:
            spare = [self.iteration] if self._switched_at is None else [self.iteration, self._switched_at]
            prune_checkpoints(self.run_dir, self.config.keep_checkpoints, spare)

    def _roll_back(self) -> None:
        """To the last checkpoint, with other random numbers and smaller steps: the same would end the same way."""
        happened = f"iteration {self.iteration}: trouble in {self._trouble} iterations in a row"
        try:
            path, content, _ = newest_readable(self.run_dir, self.config.task)
        except FileNotFoundError:
            raise Diverged(f"{happened}, and no checkpoint to go back to") from None
        if self._returns_to[path] >= _MOST_ROLLBACKS:
            raise Diverged(f"{happened}, {_MOST_ROLLBACKS} times after going back to {path}") from None
        self._returns_to[path] += 1
        rollbacks = self.rollbacks + 1
        self._load(content)
        self.rollbacks = rollbacks
        torch.manual_seed(self.config.seed + 1_000_003 * rollbacks)
        self.env.generator.manual_seed(self.config.seed + 1_000_003 * rollbacks)
        self.algorithm.set_learning_rate(0.5 * self.algorithm.learning_rate)
        self._log.close()
        self._open_log()
        self._note(f"{happened}: back to {path}, with other random numbers and half the learning rate")

    def save(self) -> Path:
        """Writes a checkpoint of everything a bit-exact continuation needs."""
        path = checkpoint_path(self.run_dir, self.iteration)
        content = {
            "task": self.config.task,
            "method": self.config.method,
            "contract": self.env.task.contract.to_dict(),
            "algorithm": self.algorithm.save(),
            "environment": self.env.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "iter": self.iteration,
            "totals": {
                "steps": self.total_steps,
                "seconds": self.total_seconds,
                "broken": self.broken,
                "rollbacks": self.rollbacks,
            },
            "switched_at": self._switched_at,
            "trouble": self._trouble,
            "finished": {name: list(values) for name, values in self._finished.items()},
        }
        save_checkpoint(path, content)
        return path

    def restore(self) -> Path:
        """Continues from the newest checkpoint of the run directory that can be read; says which could not.

        Raises:
            FileNotFoundError: There is none.
            ValueError: None can be read, or it belongs to another task, method, size or version.
        """
        path, content, refused = newest_readable(self.run_dir, self.config.task)
        for message in refused:
            self._note(f"passed over: {message}")
        if content["method"] != self.config.method:
            raise ValueError(f"{path}: of method {content['method']!r}, this run is {self.config.method!r}")
        self._load(content)
        return path

    def _load(self, content: dict[str, Any]) -> None:
        self.algorithm.load(content["algorithm"], None, True)
        self.env.load_state_dict(content["environment"])
        totals = content["totals"]
        self.total_steps, self.total_seconds = totals["steps"], totals["seconds"]
        self.broken, self.rollbacks = totals["broken"], totals["rollbacks"]
        self._switched_at, self._trouble = content["switched_at"], content["trouble"]
        self._finished = {name: deque(values, maxlen=_WINDOW) for name, values in content["finished"].items()}
        torch.set_rng_state(content["torch_rng"])


def _num_samples(estimator: Estimator) -> float:
    """N of Monte Carlo, 0 for moment matching, -1 where the latent's distribution is not used, -2 for CM."""
    if isinstance(estimator, MonteCarlo):
        return float(estimator.num_samples)
    if isinstance(estimator, CovarianceMatching):
        return -2.0
    return 0.0 if isinstance(estimator, MomentMatching) else -1.0
