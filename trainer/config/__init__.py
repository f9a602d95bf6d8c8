"""The settings of a training: typed, with their help. Their ranges are in `trainer/config/ranges.py`.

Nothing here imports torch, so that `p3 train --help` answers at once. What is left out comes from a preset
(`trainer/algorithms/presets.py`).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

EngineName = Literal["mujoco", "mjlab", "isaaclab", "physx"]
HIDDEN_DIMS = (512, 256, 128)
"""Widths of the paper's actor and critic."""


@dataclass(frozen=True)
class PpoUpdate:
    """One update of PPO: the paper's values, but for what is left to the preset."""

    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """λ of generalised advantage estimation."""
    num_learning_epochs: int | None = None
    """Passes over a rollout; 5 in the paper preset, 2 in the cpu preset."""
    num_mini_batches: int | None = None
    """Minibatches that a rollout is divided into in each pass; 4 in the paper preset, 8 in the cpu preset."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus; 0.01 in the paper preset, in the cpu preset 0.001 on the plane and 0 on terrains."""
    clip_param: float = 0.2
    """Range that the likelihood ratio, and the value where it is clipped, may move in."""
    dual_clip: float | None = None
    """Bound on the loss of a sample with a negative advantage, in units of that advantage (above 1, such as 3); no
    bound by default, as in the paper."""
    entropy: Literal["exploration", "marginal"] = "exploration"
    """Whose entropy the bonus rewards: the exploration noise's, the same for every estimator, or the marginal
    policy's, which also rewards an actor for passing on its latent's noise."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool | None = None
    """Whether a value's move away from the rollout's is clipped to --ppo.clip-param; in the paper preset it is."""
    learning_rate: float = 1e-3
    """Learning rate to begin with; it adapts to the KL from then on."""
    desired_kl: float = 0.02
    """KL per epoch that the adaptive learning rate aims at."""
    max_grad_norm: float = 1.0
    """Norm that the gradients are clipped to, those of the actor and of the critic each."""
    mirror_share: float | None = None
    """Share of a rollout's steps, 0 to 1, that are trained on a second time with left and right exchanged. An update
    takes about 1.4 times as long with 0.5, 1.8 times with 1. 0 in the paper preset, 0.5 in the cpu preset."""


@dataclass(frozen=True)
class PpoConfig(PpoUpdate):
    """PPO: rollout and update."""

    num_steps_per_env: int = 24
    """Control steps of a rollout."""


@dataclass(frozen=True)
class ActorConfig:
    """The policy network, which every method has."""

    hidden_dims: tuple[int, ...] | None = None
    """Widths of actor and critic; 512 256 128 in the paper preset, half of that in the cpu preset."""
    init_std: float | None = None
    """Exploration noise to begin with; 1.0 in the paper preset, less in the cpu preset."""


@dataclass(frozen=True)
class EncoderConfig(ActorConfig):
    """An encoder whose latent the policy acts on, and the loss that trains its representation."""

    proprio_latent: int | None = None
    """Latent size of the proprioceptive history; 10 by default, with --init-from that of the checkpoint."""
    extero_latent: int | None = None
    """Latent size of the height scan; 100 in the paper preset, 32 in the cpu preset, with --init-from that of the
    checkpoint."""
    representation_coef: float | None = None
    """Weight of the representation's loss; 1 by default, 0.5 for spr."""


@dataclass(frozen=True)
class ModelConfig(EncoderConfig):
    """Networks and the loss of their representation; encoder and decoder are the paper's.

    A setting that the method's actor does not have, such as beta without a VAE, is refused.
    """

    beta: float = 0.1
    """Weight of the latent's KL in the VAE loss."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the latent's KL over its dimensions; errors of the reconstruction are means."""
    latent_noise_coef: float | None = None
    """Weight of the Σλ term, a pressure on the action variance that the latent causes, with any method that has a
    latent; 0 for none, the method's own by default, which only quiet has."""
    latent_noise_target: float | None = None
    """Σv/σ² (the latent's action variance over the exploration's, summed over actions) that the weight of the Σλ term
    is adapted to hold, beginning at --model.latent-noise-coef; a constant weight by default."""
    latent_init_scale: float = 1.0
    """Factor on the policy network's first weights of the latent's columns."""


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy. What is left out comes from the preset."""

    task: str = "g1-flat"
    """Task to learn: g1-flat, g1-parkour, walker-parkour, or one that an installed package brings (docs/trainer.md)."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUE")] = ()
    """Settings of the task to change: rewards.progress=2.0 command_x=0.3,1.0 terrains=stairs,gaps noise.scan=0.02."""
    settings: Path | None = None
    """JSON or TOML file of settings of the task to change; --set comes after it."""
    task_settings: Annotated[dict[str, Any] | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    """All settings of the task, resolved: what a run saves in the place of the two above."""
    init_from: str | None = None
    """Begin with the weights and normalisers of this run directory or checkpoint, of any task and method whose networks
    and observations are the same; the optimiser is new, and the exploration noise too if --model.init-std is given."""
    branch_from: str | None = None
    """Go on from this checkpoint of another run (or its newest), environments, optimiser and counters included, in a
    run directory of its own; what is not given, such as another --method, is that run's."""
    method: str | None = None
    """Training method, quiet in the cpu preset and p3 in the paper preset by default: p3 (mm, then mc15), quiet (mm
    with a pressure on the latent's noise), an estimator of the marginal likelihood (mm, mcN, mcN-common, mcN-sobol, cm,
    cm-diagonal, cm-unscented, shared), several of them in phases joined by + (mm+shared), or a baseline: vae (one
    sample), vae-stored, z-mean, ae, spr, simple-actor-critic."""
    engine: EngineName = "mujoco"
    """Simulator: native MuJoCo on the CPU's cores, or mjlab (the G1's tasks), which is for GPUs."""
    device: str = "cpu"
    """Device on which the networks are trained and mjlab simulates: cpu, cuda:0, ..."""
    preset: Literal["cpu", "paper"] = "cpu"
    """Where values come from that are left out. cpu: sizes for a few cores and an hour; paper: its method, 4096
    environments, 8000 iterations, its entropy bonus."""
    num_envs: int | None = None
    """Parallel environments of all processes together; 256 in the cpu preset, 4096 in the paper preset."""
    iterations: int | None = None
    """Iteration to train up to, counted from the run's beginning, also on resume."""
    switch_at: tuple[int, ...] | None = None
    """Iterations at which the phases of a method change, one a change; by default the last at the preset's share of
    `iterations` and the others evenly before it."""
    switch_on_plateau: bool = False
    """Go to the next phase when progress levels off, instead of at a fixed iteration."""
    plateau_window: int = 400
    """Iterations that the plateau criterion looks back over."""
    seed: int = 1
    """Seed of the networks, the environments and all noise."""
    run_dir: Path | None = None
    """Directory that everything of the run is written to; runs/TASK-METHOD-SEED by default."""
    resume: bool = False
    """Continue from the last checkpoint in the run directory; all settings are the run's, but for --iterations and
    --max-minutes."""
    max_minutes: float | None = None
    """Minutes after which the training stops with everything saved; --resume goes on."""
    save_interval: int = 50
    """Iterations between checkpoints."""
    keep_checkpoints: int | None = None
    """How many of the newest checkpoints to keep, beside those of the changes of phase; all by default."""
    eval_interval: int = 0
    """Iterations between evaluations on fixed episodes, in native MuJoCo; the best checkpoint by them is best.pt. 0 for
    none."""
    eval_difficulty: tuple[float, ...] = (0.2, 0.5)
    """Difficulties of the terrains that are evaluated, in [0, 1]; the plane has none."""
    eval_episodes: int = 32
    """Episodes of an evaluation at each difficulty, over all terrains of the task."""
    eval_seconds: float | None = None
    """Seconds that these episodes last; as long as the task's by default."""
    rollback_after: int = 3
    """Iterations in a row with numbers that are not finite after which the run goes back to its last checkpoint."""
    diagnose_interval: int = 10
    """Iterations between measurements of D_eff and of what the latent adds to the action's std; 0 for none."""
    processes: int | None = None
    """Processes that train together on this machine, each with its share of the environments, one simulator thread and
    one torch thread; by default one a core for native MuJoCo while each has 16 environments or more, and 1 for other
    engines or where --num-threads is given. On resume the run's own number continues bit for bit."""
    num_threads: int | None = None
    """Simulator threads of a process; by default all cores, divided by the processes on this machine."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb_project: str | None = None
    """Project of Weights & Biases to log to as well; WANDB_MODE=offline needs no account."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    model: ModelConfig = field(default_factory=ModelConfig)


@dataclass(frozen=True, kw_only=True)
class ResolvedPpo(PpoConfig):
    """PPO's settings with the preset's values filled in."""

    num_learning_epochs: int
    num_mini_batches: int
    entropy_coef: float
    use_clipped_value_loss: bool
    mirror_share: float


@dataclass(frozen=True, kw_only=True)
class ResolvedModel(ModelConfig):
    """The networks' settings with the preset's widths filled in; what is still None is the network's own default."""

    hidden_dims: tuple[int, ...]
    latent_noise_coef: float


@dataclass(frozen=True, kw_only=True)
class ResolvedConfig(TrainConfig):
    """Settings of a run that `trainer.algorithms.presets.resolve` has filled in and checked."""

    task_settings: dict[str, Any]
    method: str
    num_envs: int
    iterations: int
    run_dir: Path
    processes: int
    eval_seconds: float
    ppo: ResolvedPpo
    model: ResolvedModel

    def given(self) -> TrainConfig:
        """The same settings as a command line would give them all."""
        return TrainConfig(
            **_values(self, TrainConfig)
            | {
                "ppo": PpoConfig(**_values(self.ppo, PpoConfig)),
                "model": ModelConfig(**_values(self.model, ModelConfig)),
            }
        )


def _values(settings: object, kind: type) -> dict[str, Any]:
    return {setting.name: getattr(settings, setting.name) for setting in dataclasses.fields(kind)}
