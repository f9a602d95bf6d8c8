"""What `p3 diagnose` looks at: real states of a checkpoint, and its policy before and after one epoch's update."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from p3kernels.diagnostics import LatentPolicy
from trainer.algorithms import P3PPO, parse_method
from trainer.algorithms.presets import task_of
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import TrainConfig
from trainer.engines.env import one_thread
from trainer.engines.mujoco.env import MujocoEnv
from trainer.models.actor import LatentActor
from trainer.runs.checkpoint import checkpoint_path
from trainer.runs.named_checkpoint import RunCheckpoint, read_run_checkpoint
from trainer.tasks import LocomotionTask, make_task
from trainer.training.rollout import collect

OWN_ENVIRONMENTS = 1024
"""Up to so many environments of a run are taken as the checkpoint has them; of a larger run, fresh ones."""
FRESH_ENVIRONMENTS = 256
WARM_UP = 150
"""Control steps in fresh environments before states are kept: 3 s, so that robots are in the middle of something."""
EVERY = 8
"""Control steps between states that are kept: those of one step and the next are nearly the same."""

Say = Callable[[str], None]


class NothingToDiagnose(ValueError):
    """The method has no latent, or a certain one."""


@dataclass(frozen=True)
class Subject:
    """All that the diagnostics take from a checkpoint."""

    trained_with: str
    """The estimator of the last update before the checkpoint."""
    states: LatentPolicy
    """The policy at states of a rollout."""
    old: LatentPolicy
    """The policy at states of one PPO rollout, before an update of one epoch."""
    new: LatentPolicy
    """The policy after the update."""
    actions: Tensor
    """[B, A]: as taken in that rollout, at the states of `old`."""
    advantages: Tensor
    """[B]."""
    active_latents: int
    settings: dict[str, Any]
    """Settings of the rollout that the states are from."""


def before_switch(checkpoint: RunCheckpoint) -> RunCheckpoint | None:
    """The run's checkpoint at its last change of phase, where `checkpoint` is a later one."""
    switched = checkpoint.content["switched_at"]
    if switched is None or switched >= checkpoint.content["iter"]:
        return None
    path = checkpoint_path(checkpoint.run_dir, switched)
    return read_run_checkpoint(path) if path.exists() else None


def check_method(checkpoint: RunCheckpoint) -> None:
    """Raises NothingToDiagnose for a method whose latent is not a distribution."""
    method = checkpoint.config.method
    if not parse_method(method).has_latent_distribution:
        raise NothingToDiagnose(
            f"{checkpoint.path}: nothing to diagnose: {method} has no latent distribution, its likelihood is exact. "
            "Diagnose a method with one: p3, mm, cm, mcN, shared, vae or z-mean"
        )


def gather(
    checkpoint: RunCheckpoint,
    *,
    task: str | None,
    num_envs: int | None,
    states: int,
    steps: int,
    seed: int,
    num_threads: int | None,
    say: Say,
) -> Subject:
    """Rolls the checkpoint's policy out, exploration included, and updates a copy of it for one epoch.

    Args:
        checkpoint: Checkpoint of a method with a latent distribution.
        task: Another than the run's own; None for that.
        num_envs: Fresh environments; None for the run's own, as they were when the checkpoint was written.
        states: How many are kept, at most, of each of the two rollouts.
        steps: Control steps of the first rollout.
        seed: Seed of the rollouts, the choice of states and the update.
        num_threads: Threads of the simulator; None for one a core.
        say: Called with a line about what happens.

    Raises:
        ValueError: A task whose robot or observations are others than the policy's.
    """
    config = checkpoint.config
    env, continued = _environment(checkpoint, task, num_envs, seed, num_threads)
    algorithm = _algorithm(checkpoint, env, task)
    trained = algorithm.actor.estimator
    torch.manual_seed(seed)
    env.generator.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    where = "as the checkpoint left them" if continued else f"fresh, after {WARM_UP} steps"
    say(f"rolling out {env.num_envs} environments ({where}), {steps} steps")
    if not continued:
        _roll(algorithm.actor, env, WARM_UP, say)
    seen = _roll(algorithm.actor, env, steps, say)
    kept = TensorDict.cat(seen[::EVERY])
    chosen: TensorDict = kept[torch.randperm(len(kept), generator=generator)[:states]]
    say(f"a PPO rollout of {config.ppo.num_steps_per_env} steps and one epoch's update by {trained.label}")
    before, after, rollout = _one_epoch(algorithm, env)
    rows = torch.randperm(len(rollout["actions"]), generator=generator)[:states]
    active = int((_encoded(before, kept).latent_mean.var(0) > 0.01).sum())
    return Subject(
        trained_with=trained.label,
        states=_encoded(before, chosen),
        old=_encoded(before, rollout["observations"][rows]),
        new=_encoded(after, rollout["observations"][rows]),
        actions=rollout["actions"][rows],
        advantages=rollout["advantages"][rows],
        active_latents=active,
        settings={
            "task": env.task.config.name,
            "num_envs": env.num_envs,
            "environments": "as in the checkpoint" if continued else "fresh",
            "steps": steps,
            "states": len(chosen),
            "update_states": len(rows),
            "learning_rate": algorithm.learning_rate,
        },
    )


def _environment(
    checkpoint: RunCheckpoint, task: str | None, num_envs: int | None, seed: int, num_threads: int | None
) -> tuple[MujocoEnv, bool]:
    """The environment, and whether it goes on where the checkpoint was written."""
    config = checkpoint.config
    own = config.num_envs
    whole = "environment" in checkpoint.content  # not of a policy file
    alone = not checkpoint.content.get("other_ranks")  # else the environments are in parts, one a rank
    here = config.engine == "mujoco"  # robots that another engine simulated cannot go on in this one
    if task in (None, config.task) and num_envs is None and own <= OWN_ENVIRONMENTS and whole and alone and here:
        env = MujocoEnv(LocomotionTask(checkpoint.task), own, seed=config.seed, num_threads=num_threads)
        env.load_state_dict(checkpoint.content["environment"])
        return env, True
    try:
        chosen = LocomotionTask(checkpoint.task) if task is None else make_task(task)
    except ValueError as error:
        raise ValueError(f"--{error}") from error
    return MujocoEnv(chosen, num_envs or FRESH_ENVIRONMENTS, seed=seed, num_threads=num_threads), False


def _algorithm(checkpoint: RunCheckpoint, env: MujocoEnv, task: str | None) -> P3PPO:
    """As it was when it last updated: at the checkpoint of a change of phase, with the estimator before it."""
    content = checkpoint.content
    algorithm = P3PPO.construct_algorithm(env.get_observations(), env, rsl_rl_config(checkpoint.config), "cpu")
    try:
        # A copy: an optimiser takes the tensors of its state as they are and then changes them.
        algorithm.load(copy.deepcopy(content["algorithm"]), checkpoint.loaded, True)
    except ValueError as error:
        if task in (None, checkpoint.config.task):
            raise
        raise ValueError(
            f"--task: {task} does not fit a policy of {checkpoint.config.task}: {_sizes(checkpoint.config, env.task)}"
        ) from error
    if content.get("switched_at") == content["iter"]:
        algorithm.estimators.step_back()
        algorithm.actor.estimator = algorithm.estimators.estimator
    algorithm.train_mode()
    algorithm.report = lambda message: None
    return algorithm


def _sizes(config: TrainConfig, task: LocomotionTask) -> str:
    own = LocomotionTask(task_of(config))
    return f"{task.num_actions} actions where it has {own.num_actions}, or other observations"


def _roll(actor: LatentActor, env: MujocoEnv, steps: int, say: Say) -> list[TensorDict]:
    """The observations before each of `steps` steps of the stochastic policy."""
    seen = []
    with torch.inference_mode(), one_thread():
        observations = env.get_observations()
        for step in range(steps):
            seen.append(observations.clone())
            policy, _ = actor.policy(observations)
            observations, *_ = env.step(policy.sample())
            if (step + 1) % 50 == 0:
                say(f"  step {step + 1} of {steps}")
    return seen


def _one_epoch(algorithm: P3PPO, env: MujocoEnv) -> tuple[LatentActor, LatentActor, dict[str, Any]]:
    """The actor before and after an update of one epoch, and the rollout behind it.

    Statistics of the observations are those of the rollout for both: they move after an update and are no part of it.
    """
    before = copy.deepcopy(algorithm.actor)
    collect(algorithm, env)
    storage = algorithm.storage
    rollout = {
        "observations": storage.observations.flatten(0, 1).clone(),
        "actions": storage.actions.flatten(0, 1).clone(),
        "advantages": storage.advantages.flatten().clone(),
    }
    algorithm.num_learning_epochs = 1
    algorithm.schedule = "fixed"  # it would adapt after the epoch, to no effect here
    algorithm.update()
    after = copy.deepcopy(algorithm.actor)
    for name, buffer in after.named_buffers():
        buffer.copy_(before.get_buffer(name))
    return before, after, rollout


@torch.no_grad()
def _encoded(actor: LatentActor, observations: TensorDict) -> LatentPolicy:
    context, latent = actor.encode(observations)
    tensors = (context, latent.mean, latent.std, actor.action_std)
    return LatentPolicy(actor.mlp, *(tensor.detach().clone() for tensor in tensors))
