"""One of two ranks: `python two_ranks.py OUT`, with the environment that torchrun gives. Writes what it saw to OUT.

Every rank also makes the update of one rank that has all environments, from the same rollout, minibatches and noise, so
that the two can be compared.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
from pathlib import Path
from unittest import mock

import torch

from helpers.trainer.small_runs import small
from helpers.trainer.synthetic import adam_state, config, statistics, trained, weights
from p3kernels import MonteCarlo
from trainer.algorithms import P3PPO
from trainer.evaluation.while_training import TrainingEvaluation
from trainer.models.ranks import Ranks
from trainer.runs.checkpoint import load_checkpoint
from trainer.runs.config_file import save_config
from trainer.training.distributed import join, leave

ENVIRONMENTS, STEPS = 16, 8
METHODS = ("mm", "mc(3)", "mc3-common", "shared", "vae", "cm", "spr")
MIRRORED = ("mm", "mc3-common", "shared", "spr")


def rows_of(rank, size, steps=STEPS):
    """The rows of a rank's rollout in that of all environments: step t of environment e is row t·E + e.

    Mirrored steps come after the others, in the same order.
    """
    own = ENVIRONMENTS // size
    return (torch.arange(steps)[:, None] * ENVIRONMENTS + torch.arange(own) + own * rank).flatten()


class Chance:
    """The random numbers of an update, which belong to a row, whichever rank it is on.

    The minibatches of one rank with everything are those of two ranks, one after the other.
    """

    def __init__(self, ranks, mirrored_steps=0):
        self.ranks, self.orders, self.draws, self.mirrored_steps = ranks, 0, 0, mirrored_steps

    def _each(self, draw, seed):
        """`draw(generator)` of one rank, or of both."""
        mine = range(2) if self.ranks.size == 1 else [self.ranks.rank]
        return [draw(torch.Generator().manual_seed(2 * seed + rank)) for rank in mine]

    def randperm(self, count, device=None):
        self.orders += 1
        steps = STEPS + self.mirrored_steps
        own = steps * ENVIRONMENTS // 2
        assert count == own * (3 - self.ranks.size)
        orders = self._each(lambda generator: _randperm(own, generator=generator), 1000 + self.orders)
        if self.ranks.size == 2:
            return orders[0]
        parts = zip(*(rows_of(rank, 2, steps)[order].chunk(2) for rank, order in enumerate(orders)), strict=True)
        return torch.cat([rows for minibatch in parts for rows in minibatch])

    def randn_like(self, like):
        self.draws += 1
        steps = len(like) // ENVIRONMENTS
        whole = len(like) in (STEPS * ENVIRONMENTS, self.mirrored_steps * ENVIRONMENTS)  # one rank has everything
        rows = len(like) // (3 - self.ranks.size)
        size = (rows, *like.shape[1:])
        parts = self._each(lambda generator: torch.randn(size, generator=generator, dtype=like.dtype), self.draws)
        if not whole:
            return torch.cat(parts)
        noise = torch.empty_like(like)
        for rank, part in enumerate(parts):
            noise[rows_of(rank, 2, steps)] = part
        return noise

    @contextlib.contextmanager
    def rules(self):
        with (
            mock.patch("torch.randperm", self.randperm),
            mock.patch("torch.randn_like", self.randn_like),
            mock.patch("torch.randint", lambda _, size: torch.full(size, 7)),  # of the noise that has row numbers
            mock.patch.object(MonteCarlo, "policy", _with_explicit_noise),
        ):
            yield


_randperm, _policy = torch.randperm, MonteCarlo.policy


def _with_explicit_noise(estimator, actor, context, latent_mean, latent_std, action_std, seed=None, rows=None):
    policy = _policy(estimator, actor, context, latent_mean, latent_std, action_std, seed, rows)
    if policy.noise is not None or estimator.common:  # one sample, or numbered rows
        return policy
    noise = [torch.randn_like(latent_mean) for _ in range(estimator.num_samples)]
    return dataclasses.replace(policy, noise=torch.stack(noise))


def part_of(whole, env, method, ranks, **options):
    """The algorithm of one rank, with its environments' part of the rollout."""
    own = slice(ranks.rank * ENVIRONMENTS // 2, (ranks.rank + 1) * ENVIRONMENTS // 2)
    obs = env.get_observations()[own]
    small_env = type(env)(ENVIRONMENTS // 2)
    part = P3PPO.construct_algorithm(obs, small_env, config(method, **options) | {"multi_gpu": ranks.rsl_rl()}, "cpu")
    part.train_mode()
    part.load(copy.deepcopy(whole.save()), None, True)  # or they would share the tensors of Adam
    here, there = part.storage, whole.storage
    for name in ("actions", "rewards", "dones", "values", "actions_log_prob"):
        getattr(here, name).copy_(getattr(there, name)[:, own])
    here.observations = there.observations[:, own].clone()
    here.distribution_params = tuple(params[:, own].clone() for params in there.distribution_params)
    here.step = there.step
    with torch.inference_mode():
        part.compute_returns(obs)
    part._rewards = (1.0 + ranks.rank) * torch.ones(()) * STEPS
    return part


def outcome(algorithm, chance):
    told = []
    with mock.patch.object(algorithm.estimators, "advance", lambda _, progress, level: told.append(progress)):
        advantages = algorithm.storage.advantages.clone()
        with chance.rules():
            losses = algorithm.update()
    return {
        "advantages": advantages,
        "losses": losses,
        "learning_rate": algorithm.learning_rate,
        "weights": weights(algorithm),
        "statistics": statistics(algorithm),
        "adam": adam_state(algorithm),
        "progress": told[0],
    }


def update(method, ranks, dtype, **options):
    torch.set_default_dtype(dtype)
    try:
        torch.manual_seed(3)
        whole, env = trained(method, ENVIRONMENTS, **options)
        before = weights(whole)
        part = part_of(whole, env, method, ranks, **options)
        mirrored = round(STEPS * options.get("mirror_share", 0.0))
        return {
            "before": before,
            "whole": outcome(whole, Chance(Ranks(), mirrored)),
            "part": outcome(part, Chance(ranks, mirrored)),
        }
    finally:
        torch.set_default_dtype(torch.float32)


def not_finite(ranks):
    """A NaN that only the second rank has: in a return, then in a weight."""
    torch.manual_seed(3)
    whole, env = trained("mm", ENVIRONMENTS)
    part = part_of(whole, env, "mm", ranks)
    reports = []
    part.report = reports.append
    if ranks.rank == 1:
        part.storage.returns[0, 0] = torch.nan
    torch.manual_seed(ranks.rank)
    losses = part.update()
    after_update = weights(part)
    with torch.no_grad():
        if ranks.rank == 1:
            part.actor.mlp[0].weight[0, 0] = torch.nan
    with torch.inference_mode():
        part.act(env.get_observations()[: ENVIRONMENTS // 2])
    return {
        "losses": losses,
        "after_update": after_update,
        "mended": weights(part),
        "restored": part.restored_weights,
        "reports": reports,
    }


def runs(ranks, directory):
    """Four iterations at once, two and two, and two by two ranks with two by one."""

    def train(name, iterations, who):
        runner = small(directory / name, "p3(2)", iterations, switch_at=3, save_interval=2, ranks=who)
        notes = []
        runner._note = notes.append
        if any((directory / name).glob("model_*.pt")):
            who.from_first(lambda: None)  # all of them have looked
            runner.restore()
        runner.learn(quiet=True)
        return runner, notes

    first = small(directory / "first", "mm", 1, ranks=ranks)
    drawn = {"weights": weights(first.algorithm), "observations": dict(first.env.get_observations().items())}
    whole, _ = train("whole", 4, ranks)
    train("parts", 2, ranks)
    train("parts", 4, ranks)
    train("fewer", 2, ranks)
    saved = load_checkpoint(directory / "fewer" / "model_2.pt")
    by_rank = [saved, *saved["other_ranks"]]
    alone = ()
    if ranks.is_first:
        one, notes = train("fewer", 4, Ranks())
        alone = (notes, one.env.num_envs, one.env.curriculum.terrain_type.tolist())
    ranks.gather(None)  # until the first one is done with it
    ranks.from_first(lambda: save_config(whole.config, directory / "whole" / "config.json"))
    warm = small(directory / "warm", "mm", 1, seed=7, ranks=ranks, init_from=str(directory / "whole"))
    warm.initialise()
    evaluated = small(directory / "evaluated", "mm", 1, ranks=ranks, eval_interval=1, eval_episodes=2, eval_seconds=0.2)
    evaluated.learn(quiet=True)
    actor, alone_too = evaluated.algorithm.actor, TrainingEvaluation(evaluated.config, Ranks())
    judged = {"together": evaluated.evaluation.best, "alone": alone_too.measure(actor)}
    return {
        "evaluated": judged,
        "warm": (weights(warm.algorithm), statistics(warm.algorithm)),
        "drawn": drawn,
        "weights": weights(whole.algorithm),
        "statistics": statistics(whole.algorithm),
        "totals": (whole.monitor.steps, whole.monitor.broken),
        "alone": alone,
        "terrains": [kind for state in by_rank for kind in state["environment"]["curriculum"]["terrain_type"].tolist()],
    }


def main(out):
    ranks = Ranks.from_environment()
    join(ranks)
    results = {method: update(method, ranks, torch.float64) for method in METHODS}
    results["per minibatch"] = update("mm", ranks, torch.float64, normalize_advantage_per_mini_batch=True)
    results |= {f"mirrored {name}": update(name, ranks, torch.float64, mirror_share=0.75) for name in MIRRORED}
    results["float32"] = update("mm", ranks, torch.float32)
    results["not finite"] = not_finite(ranks)
    results["runs"] = runs(ranks, out.parent)
    torch.save(results, out)
    leave(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
