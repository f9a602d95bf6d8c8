"""The training loop: rollout, update, log, save; and what it does when one of them goes wrong."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from p3kernels.estimators import Estimator
from trainer.algorithms import P3PPO
from trainer.algorithms.p3_ppo import LEARNING_RATES
from trainer.algorithms.presets import task_of
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import ResolvedConfig
from trainer.engines.registry import EnvMaker, make_env
from trainer.models.ranks import ONE_RANK, Ranks
from trainer.runs.checkpoint import best_path, checkpoint_path, newest_readable, prune_checkpoints, save_checkpoint
from trainer.runs.metrics import ESTIMATOR, MetricsLog
from trainer.runs.random_state import random_state, set_random_state
from trainer.runs.sinks import WandbSettings
from trainer.tasks.settings import plain
from trainer.training.alarms import Alarms
from trainer.training.branch import branched, read_trunk
from trainer.training.diagnostics import latent_scalars, policy_scalars
from trainer.training.interrupt import Interrupt, Interrupted
from trainer.training.judging import Judge, NoJudge
from trainer.training.memory import keep_freed_memory
from trainer.training.monitor import Monitor, Timing
from trainer.training.progress import Progress
from trainer.training.recovery import Diverged, NotSaved, Recovery
from trainer.training.rollout import Happened, collect
from trainer.training.warm_start import read_weights, take_over


class Runner:
    """A training run.

    Args:
        config: The settings.
        wandb: Where to log in Weights & Biases; None for nowhere.
        make_env: What makes the environments.
        ranks: This process among those that train together. Each has its share of the environments; the first one
            logs and saves.
        evaluation: What judges the policy now and then, as `config.eval_interval` asks for; None for nothing.

    Attributes:
        monitor: What the run has done so far.
        recovery: Iterations in trouble, and returns to checkpoints.

    Raises:
        ValueError: The environments do not divide evenly over the ranks, or there is no evaluation that the settings
            ask for.
    """

    def __init__(
        self,
        config: ResolvedConfig,
        wandb: WandbSettings | None = None,
        make_env: EnvMaker = make_env,
        ranks: Ranks = ONE_RANK,
        evaluation: Judge | None = None,
    ) -> None:
        if evaluation is None and config.eval_interval:
            raise ValueError("evaluation: expected one for the evaluations that --eval-interval asks for, got None")
        self.config, self.run_dir, self._wandb = config, config.run_dir, wandb
        self.ranks, seed, device = ranks, ranks.seed(config.seed), ranks.device(config.device)
        keep_freed_memory()
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
        self.evaluation: Judge = NoJudge() if evaluation is None else evaluation
        self.monitor, self.recovery = Monitor(), Recovery(config.rollback_after)
        self._switched_at: int | None = None
        self._unsaved = False
        self._log: MetricsLog | None = None
        self._alarms = Alarms(LEARNING_RATES)
        self._note: Callable[[str], None] = _print_note if ranks.is_first else lambda _: None

    @property
    def rollbacks(self) -> int:
        """How often the run went back to a checkpoint."""
        return self.monitor.rollbacks

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
                if self.recovery.is_due:
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
                if self._unsaved and (self.recovery.trouble == 0 or stop):
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
        algorithm, count = self.algorithm, self.config.ppo.num_steps_per_env
        restored, happened = algorithm.restored_weights, Happened()
        started = time.perf_counter()
        simulating = collect(algorithm, self.env, lambda extras: happened.add(extras, 1.0 / count))
        rolled_out = time.perf_counter()
        losses = algorithm.update()
        timing = Timing(simulating, rolled_out - started - simulating, time.perf_counter() - rolled_out)

        went_wrong = losses["skipped_steps"] > 0 or algorithm.restored_weights > restored
        self.recovery.note(went_wrong=went_wrong)
        everyone = self.ranks.gather(happened.read())
        self._tell_of_broken(everyone)
        scalars = {f"loss/{name}": value for name, value in losses.items()}
        scalars |= self.monitor.add(everyone)
        scalars |= self.monitor.episodes()
        if self.ranks.is_first:
            scalars |= self._policy_scalars()
        scalars |= self.monitor.totals(count * self.env.num_envs * self.ranks.size, timing)
        return scalars | {
            "steps/replaced_rows": float(algorithm.replaced_rows),
            "steps/restored_weights": float(algorithm.restored_weights),
        }

    def _tell_of_broken(self, everyone: list[Happened]) -> None:
        broken = sum(happened.broken for happened in everyone)
        if broken:
            why = next(happened.why_broken for happened in everyone if happened.broken)
            self._note(f"iteration {self.iteration}: {broken} broken environments began anew: {why}")

    def _policy_scalars(self) -> dict[str, float]:
        """On the current observations, which no update has seen yet."""
        actor, observations, every = self.algorithm.actor, self.env.get_observations(), self.config.diagnose_interval
        scalars = policy_scalars(actor, observations)
        if every and (self.iteration % every == 0 or self.iteration == 1):
            scalars |= latent_scalars(actor, observations, clip=self.config.ppo.clip_param, seed=self.iteration)
        return scalars

    def _judge(self) -> dict[str, float]:
        """Evaluates where that is due and the weights are sound; keeps the policy that is the best so far."""
        if self.recovery.trouble or not self.evaluation.is_due(self.iteration):
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
        happened = self.recovery.describe(self.iteration)
        try:
            path, content, _ = self._newest()
        except FileNotFoundError:
            raise Diverged(f"{happened}, and no checkpoint to go back to") from None
        self.recovery.return_to(path, self.iteration)
        rollbacks = self.rollbacks + 1
        self._load(content)
        self.monitor.rollbacks = rollbacks
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
            "switched_at": self._switched_at,
            "trouble": self.recovery.trouble,
            "best": self.evaluation.best,
            **self.monitor.state_dict(),
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
        self.evaluation.resume(content, self.run_dir)
        return path

    def _newest(self) -> tuple[Path, dict[str, Any], list[str]]:
        """The newest readable checkpoint, as rank 0 finds it: other ranks may not see the run directory."""
        return self.ranks.from_first(lambda: newest_readable(self.run_dir, self.config.task))

    def _load(self, content: dict[str, Any]) -> None:
        self.algorithm.load(content["algorithm"], None, True)
        self.monitor.load_state_dict(content)
        self._switched_at, self.recovery.trouble = content["switched_at"], content["trouble"]
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


def _print_note(message: str) -> None:
    print(message, file=sys.stderr)
