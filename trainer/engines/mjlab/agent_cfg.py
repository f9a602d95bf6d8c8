"""Our algorithm and networks as mjlab's settings of an agent, by `class_name`; the values are the paper preset's."""

from __future__ import annotations

from dataclasses import dataclass

from mjlab.rl import RslRlBaseRunnerCfg

from trainer.algorithms.presets import resolve
from trainer.algorithms.rsl_rl_config import rsl_rl_config
from trainer.config import ModelConfig, PpoUpdate, TrainConfig


@dataclass(frozen=True, kw_only=True)
class P3ActorCfg(ModelConfig):
    """The actor of `trainer.models`, with the settings that `p3 train` calls --model."""

    class_name: str
    """Module and class of the actor; it has to be the method's."""


@dataclass(frozen=True, kw_only=True)
class CriticCfg:
    """rsl_rl's multi-layer perceptron."""

    class_name: str
    """Module and class of the critic."""
    hidden_dims: tuple[int, ...]
    """Widths of the hidden layers."""
    activation: str
    """Activation between them."""
    obs_normalization: bool
    """Whether observations are normalised by their running mean and variance."""


@dataclass(frozen=True, kw_only=True)
class P3PpoCfg(PpoUpdate):
    """PPO on the marginal likelihood, with the settings that `p3 train` calls --ppo."""

    class_name: str
    """Module and class of the algorithm."""
    method: str
    """p3, mm, mc15, mm+shared, ...: those whose actor is a P3Actor."""
    switch_at: tuple[int, ...] | None
    """Iterations at which the phases change, one a change; None for the plateau."""
    plateau_window: int
    """Iterations that the plateau criterion looks back over."""
    rnd_cfg: dict[str, float] | None = None
    """rsl_rl's random network distillation, which is not supported: None."""


@dataclass(kw_only=True)
class P3AgentCfg(RslRlBaseRunnerCfg):
    """What mjlab's `train` hands to the runner."""

    task: str
    """Our name of the task, for the checkpoints."""
    actor: P3ActorCfg
    critic: CriticCfg
    algorithm: P3PpoCfg
    class_name: str = "OnPolicyRunner"


def agent_cfg(task: str) -> P3AgentCfg:
    """The paper preset of `p3 train` for a task."""
    config = resolve(TrainConfig(task=task, engine="mjlab", preset="paper"))
    settings = rsl_rl_config(config)
    algorithm, critic = settings["algorithm"], settings["critic"]
    switch_at = algorithm["switch_at"]
    return P3AgentCfg(
        seed=config.seed,
        task=task,
        num_steps_per_env=config.ppo.num_steps_per_env,
        max_iterations=config.iterations,
        save_interval=config.save_interval,
        experiment_name=f"p3_{task.replace('-', '_')}",
        logger="tensorboard",
        obs_groups={name: tuple(groups) for name, groups in settings["obs_groups"].items()},
        actor=P3ActorCfg(**settings["actor"]),
        critic=CriticCfg(**{**critic, "hidden_dims": tuple(critic["hidden_dims"])}),
        algorithm=P3PpoCfg(**{**algorithm, "switch_at": None if switch_at is None else tuple(switch_at)}),
    )
