"""Our algorithm and networks as mjlab's settings of an agent, by `class_name`; the values are the paper preset's."""

from __future__ import annotations

from dataclasses import dataclass, field

from mjlab.rl import RslRlBaseRunnerCfg

from trainer.config import TrainConfig, resolve, rsl_rl_config


@dataclass
class P3ActorCfg:
    """The actor of `trainer.models`."""

    class_name: str = "trainer.models:P3Actor"
    """Has to be the method's."""
    hidden_dims: tuple[int, ...] = (512, 256, 128)
    init_std: float = 1.0
    """Exploration noise at the beginning."""
    proprio_latent: int = 10
    """Latent size of the proprioceptive history."""
    extero_latent: int = 100
    """Latent size of the height scan."""
    beta: float = 0.1
    """Weight of the latent's KL."""
    kl_reduction: str = "mean"
    """Reduction of that KL over the latent's dimensions: mean or sum."""
    latent_noise_coef: float = 0.0
    """Weight of the Σλ term; 0 for none."""
    latent_noise_target: float | None = None
    """Σv/σ² that the weight of the Σλ term is adapted to hold; None for a constant weight."""
    latent_init_scale: float = 1.0
    """Factor on the policy network's first weights of the latent's columns."""


@dataclass
class CriticCfg:
    """rsl_rl's multi-layer perceptron."""

    class_name: str = "rsl_rl.models:MLPModel"
    hidden_dims: tuple[int, ...] = (512, 256, 128)
    activation: str = "elu"
    obs_normalization: bool = True


@dataclass
class P3PpoCfg:
    """PPO on the marginal likelihood."""

    class_name: str = "trainer.algorithms:P3PPO"
    method: str = "p3"
    """p3, mm, mc15, mm+shared, ...: those whose actor is a P3Actor."""
    switch_at: tuple[int, ...] | None = None
    """Iterations at which the phases change, one a change; None for the plateau."""
    plateau_window: int = 400
    gamma: float = 0.99
    lam: float = 0.95
    num_learning_epochs: int = 5
    num_mini_batches: int = 4
    entropy_coef: float = 0.01
    clip_param: float = 0.2
    dual_clip: float | None = None
    """Bound on the loss of a sample with a negative advantage, in units of that advantage; None for none."""
    entropy: str = "exploration"
    """Whose entropy the bonus rewards: exploration or marginal."""
    value_loss_coef: float = 1.0
    use_clipped_value_loss: bool = True
    """Whether a value's move away from the rollout's is clipped to clip_param."""
    learning_rate: float = 1e-3
    desired_kl: float = 0.02
    max_grad_norm: float = 1.0
    mirror_share: float = 0.0
    """Share of a rollout's steps that are trained on a second time with left and right exchanged."""
    rnd_cfg: dict[str, float] | None = None
    """Not supported: None."""


@dataclass
class P3AgentCfg(RslRlBaseRunnerCfg):
    """What mjlab's `train` hands to the runner."""

    class_name: str = "OnPolicyRunner"
    task: str = "g1-parkour"
    """Our name of the task, for the checkpoints."""
    actor: P3ActorCfg = field(default_factory=P3ActorCfg)
    critic: CriticCfg = field(default_factory=CriticCfg)
    algorithm: P3PpoCfg = field(default_factory=P3PpoCfg)


def agent_cfg(task: str) -> P3AgentCfg:
    """The paper preset of `p3 train` for a task."""
    config = resolve(TrainConfig(task=task, engine="mjlab", preset="paper"))
    settings = rsl_rl_config(config)
    settings["critic"]["hidden_dims"] = tuple(settings["critic"]["hidden_dims"])
    assert config.iterations is not None
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
        critic=CriticCfg(**settings["critic"]),
        algorithm=P3PpoCfg(**settings["algorithm"]),
    )
