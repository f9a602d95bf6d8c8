"""What a training run is made of: typed settings, their presets, and the rsl_rl dict they become."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer.algorithms.method import SHARED_OPTIONS
from trainer.algorithms.methods import parse_method
from trainer.engines.registry import EngineName, check_engine
from trainer.metrics import replace_file
from trainer.tasks import TASKS


@dataclass
class PpoConfig:
    """PPO; the defaults are the paper's table."""

    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """GAE parameter."""
    num_learning_epochs: int = 5
    """Passes over a rollout."""
    num_mini_batches: int = 4
    """Parts of a rollout in a pass."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus; the paper's is 0.01, the cpu preset's smaller."""
    clip_param: float = 0.2
    """Clip range of ratio and value."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    learning_rate: float = 1e-3
    """At the beginning; adaptive from then on."""
    desired_kl: float = 0.02
    """The learning rate follows it."""
    max_grad_norm: float = 1.0
    """Of actor and critic, each."""
    num_steps_per_env: int = 24
    """Control steps of a rollout."""


@dataclass
class ModelConfig:
    """Networks and the loss of their representation; encoder and decoder are the paper's.

    What a method's actor does not have, such as a latent without an encoder, cannot be set.
    """

    hidden_dims: tuple[int, ...] | None = None
    """Of actor and critic; the paper's 512 256 128, half of it in the cpu preset."""
    init_std: float | None = None
    """Exploration noise at the beginning; 1.0 in the paper preset, less in the cpu preset."""
    proprio_latent: int = 10
    """Latent size of the proprioceptive history."""
    extero_latent: int = 100
    """Latent size of the height scan."""
    beta: float = 0.1
    """Weight of the latent's KL in the VAE loss."""
    representation_coef: float | None = None
    """Weight of the representation's loss; 1 by default, 0.5 for spr."""


@dataclass
class TrainConfig:
    """Train a policy. What is left out comes from the preset."""

    task: str = "g1-flat"
    """g1-flat, g1-parkour or walker-parkour."""
    method: str = "p3"
    """p3 (MM, then MC), mm, mc(N), cm, cm-diagonal, cm-unscented (covariance matching), vae (one sample), z-mean, ae,
    spr or simple-actor-critic."""
    engine: EngineName = "mujoco"
    """What simulates: native MuJoCo on the CPU's cores, or mjlab (the G1's tasks), which is for GPUs."""
    device: str = "cpu"
    """Where the networks are trained and mjlab simulates: cpu, cuda:0, ..."""
    preset: Literal["cpu", "paper"] = "cpu"
    """cpu: sizes for a few cores and an hour; paper: 4096 environments, 8000 iterations, its entropy bonus."""
    num_envs: int | None = None
    """Parallel environments, of all processes together; 256 in the cpu preset."""
    iterations: int | None = None
    """Train up to this iteration, counted from the run's beginning, also on resume."""
    switch_at: int | None = None
    """Iteration at which p3 goes from MM to MC; the preset's share of `iterations` by default, 0 or more."""
    switch_on_plateau: bool = False
    """Go from MM to MC when progress levels off, instead of at a fixed iteration."""
    plateau_window: int = 400
    """Iterations the plateau criterion looks at."""
    seed: int = 1
    """Of networks, environments and noise."""
    run_dir: Path | None = None
    """Where everything goes; runs/TASK-METHOD-SEED by default."""
    resume: bool = False
    """Continue from the last checkpoint in the run directory; all settings are the run's, but for --iterations and
    --max-minutes."""
    max_minutes: float | None = None
    """Stop, with everything saved, after this time; resume to go on."""
    save_interval: int = 50
    """Iterations between checkpoints."""
    keep_checkpoints: int | None = None
    """Keep so many of the newest checkpoints, and that of the switch from MM to MC; all by default."""
    rollback_after: int = 3
    """Go back to the last checkpoint after so many iterations in a row in which something was not finite."""
    diagnose_interval: int = 10
    """Iterations between measurements of D_eff and of what the latent adds to the action's std; 0 for none."""
    num_threads: int | None = None
    """Simulator threads of a process; by default all cores, divided by the processes of torchrun on this machine."""
    tensorboard: bool = True
    """Write TensorBoard events."""
    wandb_project: str | None = None
    """Also log to this project of Weights & Biases; WANDB_MODE=offline needs no account."""
    ppo: PpoConfig = field(default_factory=PpoConfig)
    model: ModelConfig = field(default_factory=ModelConfig)


@dataclass(frozen=True)
class _Preset:
    num_envs: int
    iterations: dict[str, int]
    """By task."""
    mm_share: float
    """Of the iterations, before LSFT."""
    entropy_coef: float
    init_std: dict[str, float]
    """By task."""
    hidden_dims: tuple[int, ...]


_PRESETS = {
    "cpu": _Preset(
        num_envs=256,
        iterations={"g1-flat": 1200, "g1-parkour": 6000, "walker-parkour": 330},
        mm_share=0.85,
        entropy_coef=0.001,
        init_std={"g1-flat": 0.4, "g1-parkour": 0.4, "walker-parkour": 0.6},
        hidden_dims=(256, 128, 64),
    ),
    "paper": _Preset(
        num_envs=4096,
        iterations={"g1-flat": 3000, "g1-parkour": 8000, "walker-parkour": 2000},
        mm_share=0.875,
        entropy_coef=0.01,
        init_std=dict.fromkeys(TASKS, 1.0),
        hidden_dims=(512, 256, 128),
    ),
}


def resolve(config: TrainConfig) -> TrainConfig:
    """A copy with every None filled in and every value checked.

    Raises:
        ValueError: Naming the option that cannot be.
    """
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo), model=dataclasses.replace(config.model))
    if config.task not in TASKS:
        raise ValueError(f"--task: no task {config.task!r}; the tasks are {', '.join(TASKS)}")
    check_engine(config.engine, config.device, TASKS[config.task])
    method = parse_method(config.method)
    preset, ppo, model = _PRESETS[config.preset], config.ppo, config.model
    config.num_envs = preset.num_envs if config.num_envs is None else config.num_envs
    config.iterations = preset.iterations[config.task] if config.iterations is None else config.iterations
    ppo.entropy_coef = preset.entropy_coef if ppo.entropy_coef is None else ppo.entropy_coef
    model.init_std = preset.init_std[config.task] if model.init_std is None else model.init_std
    model.hidden_dims = preset.hidden_dims if model.hidden_dims is None else model.hidden_dims
    if config.switch_on_plateau and config.switch_at is not None:
        raise ValueError("--switch-at and --switch-on-plateau exclude each other")
    if method.then is not None and config.switch_at is None and not config.switch_on_plateau:
        config.switch_at = round(preset.mm_share * config.iterations)
    if config.run_dir is None:
        config.run_dir = Path("runs") / f"{config.task}-{config.method}-{config.seed}"
    _check(config)
    taken = (*SHARED_OPTIONS, *method.options)
    for option in dataclasses.fields(ModelConfig):
        if option.name not in taken and getattr(model, option.name) != option.default:
            raise ValueError(f"--model.{option.name.replace('_', '-')}: {method.name} has no such thing")
    return config


_LEAST = {
    "num_envs": 1,
    "iterations": 1,
    "save_interval": 1,
    "plateau_window": 2,
    "rollback_after": 1,
    "diagnose_interval": 0,
}


def _check(config: TrainConfig) -> None:
    for name, least in _LEAST.items():
        if getattr(config, name) < least:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least}, got {getattr(config, name)}")
    if config.keep_checkpoints is not None and config.keep_checkpoints < 1:
        raise ValueError(f"--keep-checkpoints: expected at least 1, got {config.keep_checkpoints}")
    if config.max_minutes is not None and not config.max_minutes > 0:
        raise ValueError(f"--max-minutes: expected a positive number, got {config.max_minutes}")
    if config.switch_at is not None and config.switch_at < 0:
        raise ValueError(f"--switch-at: expected an iteration >= 0, got {config.switch_at}")
    ppo = config.ppo
    for name in ("num_learning_epochs", "num_mini_batches", "num_steps_per_env"):
        if getattr(ppo, name) < 1:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected at least 1, got {getattr(ppo, name)}")
    samples = (config.num_envs or 0) * ppo.num_steps_per_env
    if samples < ppo.num_mini_batches:
        raise ValueError(f"--ppo.num-mini-batches: {ppo.num_mini_batches} is more than the rollout's {samples} samples")
    for name, low, high in (("gamma", 0.0, 1.0), ("lam", 0.0, 1.0), ("clip_param", 0.0, 1.0)):
        if not low <= getattr(ppo, name) <= high:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected {low} to {high}, got {getattr(ppo, name)}")
    for name in ("learning_rate", "desired_kl", "max_grad_norm"):
        if not getattr(ppo, name) > 0:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected a positive number, got {getattr(ppo, name)}")


def rsl_rl_config(config: TrainConfig) -> dict[str, Any]:
    """The run's algorithm and models, in rsl_rl's form."""
    ppo = dataclasses.asdict(config.ppo)
    steps = ppo.pop("num_steps_per_env")
    method, model = parse_method(config.method), dataclasses.asdict(config.model)
    taken = {name: model[name] for name in (*SHARED_OPTIONS, *method.options) if model[name] is not None}
    return {
        "num_steps_per_env": steps,
        "save_interval": config.save_interval,
        "obs_groups": {"actor": ["proprio", "history", "extero"], "critic": ["critic"]},
        "multi_gpu": None,
        "algorithm": {
            "class_name": "trainer.algorithms:P3PPO",
            "method": config.method,
            "switch_at": config.switch_at,
            "plateau_window": config.plateau_window,
            "rnd_cfg": None,
            **ppo,
        },
        "actor": {"class_name": method.actor, **taken},
        "critic": {
            "class_name": "rsl_rl.models:MLPModel",
            "hidden_dims": list(model["hidden_dims"]),
            "activation": "elu",
            "obs_normalization": True,
        },
    }


def save_config(config: TrainConfig, path: Path) -> None:
    """Writes the resolved settings as JSON."""
    text = json.dumps(dataclasses.asdict(config), indent=2, default=str)
    replace_file(path, (text + "\n").encode())


def load_config(path: Path) -> TrainConfig:
    """Reads what `save_config` wrote.

    Raises:
        ValueError: It is damaged, or of a version with other settings.
    """
    try:
        return config_of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: expected the settings of a run as JSON ({error})") from error


def config_of(values: Mapping[str, Any]) -> TrainConfig:
    """The settings of plain values: of `dataclasses.asdict`, or of what JSON or YAML made of it.

    Raises:
        ValueError: There is no such setting.
        KeyError: A part is missing.
    """
    top = {name: value for name, value in values.items() if name not in ("ppo", "model")}
    ppo, model = dict(values["ppo"]), dict(values["model"])
    for kind, found in ((TrainConfig, top), (PpoConfig, ppo), (ModelConfig, model)):
        unknown = found.keys() - {option.name for option in dataclasses.fields(kind)}
        if unknown:
            raise ValueError(f"written by another version; this one has no setting {', '.join(sorted(unknown))}")
    if model.get("hidden_dims") is not None:
        model["hidden_dims"] = tuple(model["hidden_dims"])
    if top.get("run_dir") is not None:
        top["run_dir"] = Path(top["run_dir"])
    return TrainConfig(**top, ppo=PpoConfig(**ppo), model=ModelConfig(**model))
