"""The training loop: rollout, update, log, save; and what it does when one of them goes wrong."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from p3kernels.estimators import Estimator
from trainer.algorithms import P3PPO
from trainer.algorithms.p3_ppo import LEARNING_RATES
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import ResolvedConfig
from trainer.engines.env import one_thread
from trainer.engines.registry import EnvMaker, make_env
from trainer.evaluation.while_training import TrainingEvaluation, best_so_far
from trainer.models.ranks import ONE_RANK, Ranks
from trainer.presets import task_of
from trainer.runs.checkpoint import best_path, checkpoint_path, newest_readable, prune_checkpoints, save_checkpoint
from trainer.runs.metrics import ESTIMATOR, MetricsLog
from trainer.runs.random_state import random_state, set_random_state
from trainer.runs.sinks import WandbSettings
from trainer.tasks.settings import plain
from trainer.training.alarms import Alarms
from trainer.training.branch import branched, read_trunk
from trainer.training.diagnostics import latent_scalars, policy_scalars, resident_mib
from trainer.training.interrupt import Interrupt, Interrupted
from trainer.training.progress import Progress
from trainer.training.warm_start import read_weights, take_over

_EPISODES = ("reward", "length", "fell", "traversed", "success")
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
        config: The settings.
        wandb: Where to log in Weights & Biases; None for nowhere.
        make_env: What makes the environments.
        ranks: This process among those that train together. Each has its share of the environments; the first one
            logs and saves.

    Raises:
        ValueError: The environments do not divide evenly over the ranks.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        wandb: WandbSettings | None = None,
        make_env: EnvMaker = make_env,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.config, self.run_dir, self._wandb = config, config.run_dir, wandb
        self.ranks, seed, device = ranks, ranks.seed(config.seed), ranks.device(config.device)
        torch.manual_seed(seed)
        self.env = make_env(
            config.engine,
            task_of(config),
            ranks.share("--num-envs", config.num_envs),
            seed=seed,
            device=device,
            num_threads=ranks.threads() if config.num_threads is None else config.num_threads,
        )
        observations = self.env.get_observations()
        settings = rsl_rl_config(config) | {"multi_gpu": ranks.rsl_rl()}
        self.algorithm = P3PPO.construct_algorithm(observations, self.env, settings, device)
        self.algorithm.train_mode()
        if ranks.size > 1:
            self.algorithm.broadcast_parameters()
        self.evaluation = TrainingEvaluation(config, ranks)
        self.total_steps, self.total_seconds, self.broken, self.rollbacks = 0, 0.0, 0, 0
        self._finished = {name: deque[float](maxlen=_WINDOW) for name in _EPISODES}
        self._switched_at: int | None = None
        self._trouble = 0
        self._returns_to: dict[Path, int] = defaultdict(int)
        self._unsaved = False
        self._log: MetricsLog | None = None
        self._alarms = Alarms(LEARNING_RATES)
        self._note: Callable[[str], None] = _print_note if ranks.is_first else lambda _: None

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
            LostRank: Another rank is gone.
        """
        target, minutes = self.config.iterations, self.config.max_minutes
        deadline = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        with contextlib.ExitStack() as stack:
            self._open_log()
            stack.push(self._close_log)
            progress = None
            if self.ranks.is_first and not quiet:
                progress = stack.enter_context(contextlib.closing(Progress(target, start=self.iteration)))
                self._note = progress.note
            self.algorithm.report = self._note
            interrupt, signal = stack.enter_context(Interrupt(self._note)), None
            while self.iteration < target:
                before = self.algorithm.actor.estimator
                scalars = self.step()
                names = {ESTIMATOR: before.label}
                if self._trouble >= self.config.rollback_after:
                    self._roll_back()
                    continue
                scalars |= self._judge()
                if self._log is not None:
                    self._log.write(self.iteration, scalars, names)
                switched = before != self.algorithm.actor.estimator
                if progress is not None:
                    progress.update(self.iteration, scalars)
                self._ring(scalars, before)
                if switched:
                    self._switched_at = self.iteration
                    after = self.algorithm.actor.estimator
                    self._note(f"iteration {self.iteration}: from {before.label} to {after.label}")
                signals, late = zip(*self.ranks.gather((interrupt.number, time.monotonic() > deadline)), strict=True)
                signal = next((number for number in signals if number is not None), None)
                stop = signal is not None or any(late) or self.iteration == target
                # An iteration in trouble is nothing to go back to: its checkpoint waits for a good one.
                self._unsaved |= switched or stop or self.iteration % self.config.save_interval == 0
                if self._unsaved and (self._trouble == 0 or stop):
                    self._try_to_save(last=stop)
                if stop:
                    break
        if signal is not None:
            raise Interrupted(signal)

    def _ring(self, scalars: dict[str, float], estimator: Estimator) -> None:
        """Tells what should not happen quietly, as it begins."""
        later = estimator != self.algorithm.method.estimator
        for message in self._alarms.messages(scalars, estimator.label, switched=later):
            self._note(f"iteration {self.iteration}: {message}")

    def _open_log(self) -> None:
        """From the next iteration on: what was logged of it and of later ones, by a run that ended there, goes."""
        if not self.ranks.is_first:
            return
        self._log = MetricsLog(
            self.run_dir,
            tensorboard=self.config.tensorboard,
            resume_at=self.iteration + 1 if self.iteration else None,
            wandb=self._wandb,
        )

    def _close_log(self, *exception: Any) -> None:
        if self._log is not None:
            self._log.__exit__(*exception)

    def step(self) -> dict[str, float]:
        """One iteration: rollout and update; returns what to log, of all ranks."""
        algorithm, env = self.algorithm, self.env
        started = time.perf_counter()
        happened = _Happened()
        count = self.config.ppo.num_steps_per_env
        simulating, restored = 0.0, algorithm.restored_weights
        with torch.inference_mode(), one_thread():
            observations = env.get_observations()
            for _ in range(count):
                action = algorithm.act(observations)
                before = time.perf_counter()
                observations, reward, done, extras = env.step(action)
                simulating += time.perf_counter() - before
                algorithm.process_env_step(observations, reward, done, extras)
                happened.add(extras, 1.0 / count)
            algorithm.compute_returns(observations)
        rolled_out = time.perf_counter()
        losses = algorithm.update()
        finished = time.perf_counter()

        went_wrong = losses["skipped_steps"] > 0 or algorithm.restored_weights > restored
        self._trouble = self._trouble + 1 if went_wrong else 0
        terms = self._count(self.ranks.gather(happened))
        steps = count * env.num_envs * self.ranks.size
        self.total_steps += steps
        self.total_seconds += finished - started
        scalars = {f"loss/{name}": value for name, value in losses.items()}
        scalars |= terms
        scalars |= {f"episode/{name}": sum(v) / len(v) for name, v in self._finished.items() if v}
        if self.ranks.is_first:
            scalars |= self._policy_scalars()
        return scalars | {
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

    def _count(self, everyone: list[_Happened]) -> dict[str, float]:
        """Adds what happened on the ranks; returns the means of the reward's terms over them."""
        broken = sum(happened.broken for happened in everyone)
        if broken:
            why = next(happened.why_broken for happened in everyone if happened.broken)
            self._note(f"iteration {self.iteration}: {broken} broken environments began anew: {why}")
        self.broken += broken
        for happened in everyone:
            for name, values in happened.episodes.items():
                self._finished.setdefault(name, deque(maxlen=_WINDOW)).extend(values)
        means = {}
        for name in dict.fromkeys(name for each in everyone for name in each.terms):
            values = [each.terms[name] for each in everyone if name in each.terms]  # a rank may lack a terrain
            means[name] = sum(values) / len(values)
        return means

    def _policy_scalars(self) -> dict[str, float]:
        """On the current observations, which no update has seen yet."""
        actor, observations, every = self.algorithm.actor, self.env.get_observations(), self.config.diagnose_interval
        scalars = policy_scalars(actor, observations)
        if every and (self.iteration % every == 0 or self.iteration == 1):
            scalars |= latent_scalars(actor, observations, clip=self.config.ppo.clip_param, seed=self.iteration)
        return scalars

    def _judge(self) -> dict[str, float]:
        """Evaluates where that is due and the weights are sound; keeps the policy that is the best so far."""
        if self._trouble or not self.evaluation.is_due(self.iteration):
            return {}
        numbers, told = self.evaluation.judge(self.algorithm.actor, self.iteration, self._save_best)
        self._note(told)
        return {f"eval/{name}": value for name, value in numbers.items()}

    def _save_best(self) -> None:
        self.save(best_path(self.run_dir))

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
        if self.ranks.is_first and self.config.keep_checkpoints is not None:
            spare = [self.iteration, *self.algorithm.estimators.changed_at]
            spare += [] if self._switched_at is None else [self._switched_at]
            prune_checkpoints(self.run_dir, self.config.keep_checkpoints, spare)

    def _roll_back(self) -> None:
        """To the last checkpoint, with other random numbers and smaller steps: the same would end the same way."""
        happened = f"iteration {self.iteration}: trouble in {self._trouble} iterations in a row"
        try:
            path, content, _ = self._newest()
        except FileNotFoundError:
            raise Diverged(f"{happened}, and no checkpoint to go back to") from None
        if self._returns_to[path] >= _MOST_ROLLBACKS:
            raise Diverged(f"{happened}, {_MOST_ROLLBACKS} times after going back to {path}") from None
        self._returns_to[path] += 1
        rollbacks = self.rollbacks + 1
        self._load(content)
        self.rollbacks = rollbacks
        self._reseed(rollbacks)
        self.algorithm.set_learning_rate(0.5 * self.algorithm.learning_rate)
        if self._log is not None:
            self._log.close()
        self._open_log()
        self._note(f"{happened}: back to {path}, with other random numbers and half the learning rate")

    def _reseed(self, anew: int) -> None:
        """Other random numbers from now on."""
        seed = self.ranks.seed(self.config.seed, anew)
        torch.manual_seed(seed)
        self.env.generator.manual_seed(seed)

    def save(self, path: Path | None = None) -> Path:
        """Writes a checkpoint of everything a bit-exact continuation needs, of all ranks.

        Raises:
            Diverged: The weights are not finite. A checkpoint of them would hide the last good one.
        """
        broken = self.algorithm.broken_weights()
        if broken is not None:
            raise Diverged(f"iteration {self.iteration}: {broken}; it is not saved")
        path = path or checkpoint_path(self.run_dir, self.iteration)
        own = {"environment": self.env.state_dict(), **random_state(self.algorithm.device)}
        first, *others = self.ranks.gather(tree_map_only(Tensor, Tensor.cpu, own))
        content = {
            "task": self.config.task,
            "method": self.config.method,
            "task_settings": plain(self.env.task.config),
            "contract": self.env.task.contract.to_dict(),
            "algorithm": self.algorithm.save(),
            **first,
            "other_ranks": others,
            "iter": self.iteration,
            "totals": {
                "steps": self.total_steps,
                "seconds": self.total_seconds,
                "broken": self.broken,
                "rollbacks": self.rollbacks,
            },
            "switched_at": self._switched_at,
            "trouble": self._trouble,
            "best": self.evaluation.best,
            "finished": {name: list(values) for name, values in self._finished.items()},
        }
        self.ranks.from_first(lambda: save_checkpoint(path, content))
        return path

    def initialise(self) -> Path:
        """Begins with the networks of `config.init_from`, which the first rank reads; returns the checkpoint.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It cannot be read, or its networks or observations are others.
        """
        source = self.config.init_from
        assert source is not None
        weights = self.ranks.from_first(lambda: read_weights(source))
        for note in take_over(self.algorithm, weights, self.env.task, self.config.model.init_std):
            self._note(f"--init-from: {note}")
        return weights.path

    def branch(self) -> Path:
        """Goes on from the checkpoint `config.branch_from`, which the first rank reads; returns the checkpoint.

        Raises:
            FileNotFoundError: There is none.
            ValueError: It cannot be read, or its networks are others.
        """
        source = self.config.branch_from
        assert source is not None
        found = self.ranks.from_first(lambda: read_trunk(source))
        self._load(branched(found, self.config, self.algorithm))
        return found.path

    def restore(self) -> Path:
        """Continues from the newest checkpoint of the run directory that can be read; says which could not.

        Raises:
            FileNotFoundError: There is none.
            ValueError: None can be read, or it belongs to another task, method, size or version.
        """
        path, content, refused = self._newest()
        for message in refused:
            self._note(f"passed over: {message}")
        if content["method"] != self.config.method:
            raise ValueError(f"{path}: of method {content['method']!r}, this run is {self.config.method!r}")
        self._load(content)
        self.evaluation.best = self.ranks.from_first(lambda: best_so_far(content, self.run_dir))
        return path

    def _newest(self) -> tuple[Path, dict[str, Any], list[str]]:
        """As the first rank finds it, who may be the only one to see the run directory."""
        return self.ranks.from_first(lambda: newest_readable(self.run_dir, self.config.task))

    def _load(self, content: dict[str, Any]) -> None:
        self.algorithm.load(content["algorithm"], None, True)
        totals = content["totals"]
        self.total_steps, self.total_seconds = totals["steps"], totals["seconds"]
        self.broken, self.rollbacks = totals["broken"], totals["rollbacks"]
        self._switched_at, self._trouble = content["switched_at"], content["trouble"]
        self._finished = {name: deque(values, maxlen=_WINDOW) for name, values in content["finished"].items()}
        by_rank = [content, *content.get("other_ranks", [])]
        if len(by_rank) == self.ranks.size:
            own = by_rank[self.ranks.rank]
            self.env.load_state_dict(own["environment"])
            set_random_state(own, self.algorithm.device)
        else:
            self._begin_anew([state["environment"] for state in by_rank])

    def _begin_anew(self, saved: list[dict[str, Any]]) -> None:
        """New episodes everywhere, where the environments were saved by another number of ranks.

        Of an environment only its terrain and level go on: its simulator and random numbers are its old rank's.
        """
        self._note(
            f"saved by {len(saved)} ranks, continued by {self.ranks.size}: every environment begins a new episode"
        )
        self._reseed(self.iteration)
        curriculum = self.env.curriculum
        if curriculum is not None:
            own = slice(self.ranks.rank * self.env.num_envs, (self.ranks.rank + 1) * self.env.num_envs)
            parts = [state["curriculum"] for state in saved]
            self.env.running.steps = int(saved[0]["steps"])
            curriculum.load_state_dict({name: torch.cat([part[name] for part in parts])[own] for name in parts[0]})
        self.env.begin_anew()


@dataclass
class _Happened:
    """In one rank's rollout, beside the rollout itself."""

    terms: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Means of the reward's terms, and of the curriculum's difficulty."""
    episodes: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in _EPISODES})
    """By name; success by terrain among them, for terrains on which an episode ended."""
    broken: int = 0
    why_broken: str = ""

    def add(self, extras: dict[str, Any], weight: float) -> None:
        """A step of the environments, as the share `weight` of the rollout."""
        self.broken += int(extras["broken"].sum())
        self.why_broken = extras["why_broken"] or self.why_broken
        for name, value in extras["log"].items():
            self.terms[name] += weight * value
        for name, values in extras.get("episodes", {}).items():
            self.episodes.setdefault(name, []).extend(values.tolist())


def _print_note(message: str) -> None:
    print(message, file=sys.stderr)
