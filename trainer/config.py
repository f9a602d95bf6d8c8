"""What a training run is made of: typed settings, their presets, and the rsl_rl dict they become."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from trainer.algorithms.method import SHARED_OPTIONS
from trainer.algorithms.methods import parse_method
from trainer.algorithms.schedule import check_switches
from trainer.engines.registry import EngineName, check_engine
from trainer.processes import cores
from trainer.runs.metrics import replace_file
from trainer.tasks import TaskConfig, find_task
from trainer.tasks.settings import assigned, from_file, plain, restored

_T = TypeVar("_T")
FEWEST_ENVS = 16
"""Environments of a process below which another core is worth less than what its process costs."""


@dataclass
class PpoConfig:
    """PPO; the paper's table, but for what is left to the preset."""

    gamma: float = 0.99
    """Discount factor."""
    lam: float = 0.95
    """GAE parameter."""
    num_learning_epochs: int | None = None
    """Passes over a rollout; 5 in the paper preset, 3 in the cpu preset."""
    num_mini_batches: int | None = None
    """Parts of a rollout in a pass; 4 in the paper preset, 8 in the cpu preset."""
    entropy_coef: float | None = None
    """Weight of the entropy bonus; the paper's is 0.01, the cpu preset's smaller."""
    clip_param: float = 0.2
    """Clip range of ratio and value."""
    dual_clip: float | None = None
    """Bound on the loss of a sample with a negative advantage, in units of that advantage (above 1, such as 3); none by
    default, as in the paper."""
    entropy: Literal["exploration", "marginal"] = "exploration"
    """Whose entropy the bonus rewards: the exploration noise's, the same for every estimator, or the marginal
    policy's, which also rewards an actor for passing on its latent's noise."""
    value_loss_coef: float = 1.0
    """Weight of the value loss."""
    use_clipped_value_loss: bool | None = None
    """Whether a value's move away from the rollout's is clipped to --ppo.clip-param; in the paper preset it is."""
    learning_rate: float = 1e-3
    """At the beginning; adaptive from then on."""
    desired_kl: float = 0.02
    """The learning rate follows it."""
    max_grad_norm: float = 1.0
    """Of actor and critic, each."""
    num_steps_per_env: int = 24
    """Control steps of a rollout."""
    mirror_share: float | None = None
    """Share of a rollout's steps, 0 to 1, that are trained on a second time with left and right exchanged. An update
    takes about 1.4 times as long with 0.5, 1.8 times with 1. 0 in the paper preset, 1 in the cpu preset for the G1."""


@dataclass
class ModelConfig:
    """Networks and the loss of their representation; encoder and decoder are the paper's.

    What a method's actor does not have, such as a latent without an encoder, cannot be set.
    """

    hidden_dims: tuple[int, ...] | None = None
    """Of actor and critic; the paper's 512 256 128, half of it in the cpu preset."""
    init_std: float | None = None
    """Exploration noise at the beginning; 1.0 in the paper preset, less in the cpu preset."""
    proprio_latent: int | None = None
    """Latent size of the proprioceptive history; 10 by default, with --init-from that of the checkpoint."""
    extero_latent: int | None = None
    """Latent size of the height scan; 100 by default, with --init-from that of the checkpoint."""
    beta: float = 0.1
    """Weight of the latent's KL in the VAE loss."""
    kl_reduction: Literal["mean", "sum"] = "mean"
    """Reduction of the latent's KL over its dimensions; errors of the reconstruction are means."""
    representation_coef: float | None = None
    """Weight of the representation's loss; 1 by default, 0.5 for spr."""
    latent_noise_coef: float = 0.0
    """Weight of the Σλ term, a pressure on the action variance that the latent causes; 0 for none, try 0.02."""
    latent_noise_target: float | None = None
    """Σv/σ² (the latent's action variance over the exploration's, summed over actions) that the weight of the Σλ term
    is adapted to hold, beginning at --model.latent-noise-coef; a constant weight by default."""
    latent_init_scale: float = 1.0
    """Factor on the policy network's first weights of the latent's columns."""


@dataclass
class TrainConfig:
    """Train a policy. What is left out comes from the preset."""

    task: str = "g1-flat"
    """g1-flat, g1-parkour, walker-parkour, or one that an installed package brings (docs/trainer.md)."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUE")] = ()
    """Change settings of the task: rewards.progress=2.0 command_x=0.3,1.0 terrains=stairs,gaps noise.scan=0.02."""
    settings: Path | None = None
    """Change the settings of the task that this JSON or TOML file names; --set comes after it."""
    task_settings: Annotated[dict[str, Any] | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    """All settings of the task, resolved: what a run saves in the place of the two above."""
    init_from: str | None = None
    """Begin with the weights and normalisers of this run directory or checkpoint, of any task and method whose networks
    and observations are the same; the optimiser is new, and the exploration noise too if --model.init-std is given."""
    branch_from: str | None = None
    """Go on from this checkpoint of another run (or its newest), environments, optimiser and counters included, in a
    run directory of its own; what is not given, such as another --method, is that run's."""
    method: str = "p3"
    """p3 (mm, then mc15), an estimator of the marginal likelihood (mm, mcN, mcN-common, mcN-sobol, cm, cm-diagonal,
    cm-unscented, shared), several of them in phases joined by + (mm+shared), or a baseline: vae (one sample),
    vae-stored, z-mean, ae, spr, simple-actor-critic."""
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
    switch_at: tuple[int, ...] | None = None
    """Iterations at which the phases of a method change, one a change; by default the last at the preset's share of
    `iterations` and the others evenly before it."""
    switch_on_plateau: bool = False
    """Go to the next phase when progress levels off, instead of at a fixed iteration."""
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
    """Keep so many of the newest checkpoints, and those of the changes of phase; all by default."""
    eval_interval: int = 0
    """Iterations between evaluations on fixed episodes, in native MuJoCo; the best checkpoint by them is best.pt. 0 for
    none."""
    eval_difficulty: tuple[float, ...] = (0.2, 0.5)
    """Difficulties of the terrains that are evaluated, in [0, 1]; nothing to the plane."""
    eval_episodes: int = 32
    """Episodes of an evaluation at each difficulty, over all terrains of the task."""
    eval_seconds: float | None = None
    """Length of these episodes; that of the task by default."""
    rollback_after: int = 3
    """Go back to the last checkpoint after so many iterations in a row in which something was not finite."""
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
    num_learning_epochs: int
    num_mini_batches: int
    use_clipped_value_loss: bool
    mirror_share: dict[str, float]
    """By task, for robots that declare their symmetry."""


_PRESETS = {
    "cpu": _Preset(
        num_envs=256,
        iterations={"g1-flat": 1200, "g1-parkour": 6000, "walker-parkour": 330},
        mm_share=0.85,
        entropy_coef=0.001,
        init_std={"g1-flat": 0.4, "g1-parkour": 0.4, "walker-parkour": 0.6},
        hidden_dims=(256, 128, 64),
        num_learning_epochs=3,
        num_mini_batches=8,
        use_clipped_value_loss=False,
        mirror_share={"g1-flat": 1.0, "g1-parkour": 1.0, "walker-parkour": 0.0},
    ),
    "paper": _Preset(
        num_envs=4096,
        iterations={"g1-flat": 3000, "g1-parkour": 8000, "walker-parkour": 2000},
        mm_share=0.875,
        entropy_coef=0.01,
        init_std={"g1-flat": 1.0, "g1-parkour": 1.0},
        hidden_dims=(512, 256, 128),
        num_learning_epochs=5,
        num_mini_batches=4,
        use_clipped_value_loss=True,
        mirror_share={"g1-flat": 0.0, "g1-parkour": 0.0},
    ),
}


_BY_PRESET = ("entropy_coef", "num_learning_epochs", "num_mini_batches", "use_clipped_value_loss")
"""Settings of PPO that are the preset's where they are not given; so is `mirror_share`, if the robot has a mirror."""


def _of_kin(table: dict[str, _T], task: TaskConfig) -> _T:
    """A task's own value, else that of the task whose name its own begins with, else that of the G1's nearest task."""
    kin = [name for name in table if task.name.startswith(name)]
    return table[max(kin, key=len) if kin else "g1-parkour" if task.terrains else "g1-flat"]


def resolve(config: TrainConfig) -> TrainConfig:
    """A copy with every None filled in and every value checked.

    Raises:
        ValueError: Naming the option that cannot be.
    """
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo), model=dataclasses.replace(config.model))
    task = task_of(config)
    config.task_settings, config.set, config.settings = plain(task), (), None
    check_engine(config.engine, config.device, task)
    if (config.ppo.mirror_share or 0.0) > 0 and task.robot.mirror is None:
        raise ValueError(
            f"--ppo.mirror-share: the robot {task.robot.name!r} of {config.task} declares no left/right symmetry"
        )
    method = parse_method(config.method)
    preset, ppo, model = _PRESETS[config.preset], config.ppo, config.model
    config.num_envs = preset.num_envs if config.num_envs is None else config.num_envs
    config.iterations = _of_kin(preset.iterations, task) if config.iterations is None else config.iterations
    for name in _BY_PRESET:
        if getattr(ppo, name) is None:
            setattr(ppo, name, getattr(preset, name))
    if config.ppo.mirror_share is None:
        ppo.mirror_share = 0.0 if task.robot.mirror is None else _of_kin(preset.mirror_share, task)
    if model.init_std is None and config.init_from is None:  # else the checkpoint's, whatever it is
        model.init_std = _of_kin(preset.init_std, task)
    model.hidden_dims = preset.hidden_dims if model.hidden_dims is None else model.hidden_dims
    if config.switch_on_plateau and config.switch_at is not None:
        raise ValueError("--switch-at and --switch-on-plateau exclude each other")
    if config.switch_at is not None:
        config.switch_at = check_switches(config.switch_at, method, "--switch-at") or None
    elif method.changes and not config.switch_on_plateau:
        last = preset.mm_share * config.iterations
        evenly = tuple(round(last * (change + 1) / method.changes) for change in range(method.changes))
        config.switch_at = check_switches(evenly, method, "--switch-at")
    config.processes = _default_processes(config) if config.processes is None else config.processes
    if config.run_dir is None:
        config.run_dir = Path("runs") / f"{config.task}-{config.method}-{config.seed}"
    _check(config)
    taken = (*SHARED_OPTIONS, *method.options)
    for option in dataclasses.fields(ModelConfig):
        if option.name not in taken and getattr(model, option.name) != option.default:
            raise ValueError(f"--model.{option.name.replace('_', '-')}: {method.name} has no such thing")
    return config


def _default_processes(config: TrainConfig) -> int:
    """One a core, as far as the environments divide evenly and are not too few for a process."""
    if config.engine != "mujoco" or config.num_threads is not None:
        return 1
    assert config.num_envs is not None
    most = max(1, min(cores(), config.num_envs // FEWEST_ENVS))
    return next(number for number in range(most, 0, -1) if config.num_envs % number == 0)


def task_of(config: TrainConfig) -> TaskConfig:
    """The task of a run with its settings.

    Raises:
        ValueError: There is no such task or setting, or it cannot have this value.
        FileNotFoundError: There is no such file of settings.
    """
    try:
        task = find_task(config.task)
    except ValueError as error:
        raise ValueError(f"--{error}") from error
    if config.task_settings is not None:
        try:
            task = restored(task, config.task_settings)
        except ValueError as error:
            raise ValueError(f"task_settings: written by another version? {error}") from error
    if config.settings is not None:
        task = from_file(task, config.settings)
    return assigned(task, config.set)


_LEAST = {
    "num_envs": 1,
    "processes": 1,
    "iterations": 1,
    "save_interval": 1,
    "plateau_window": 2,
    "rollback_after": 1,
    "diagnose_interval": 0,
    "eval_interval": 0,
    "eval_episodes": 1,
}


def _check(config: TrainConfig) -> None:
    for name, least in _LEAST.items():
        if getattr(config, name) < least:
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least}, got {getattr(config, name)}")
    if config.keep_checkpoints is not None and config.keep_checkpoints < 1:
        raise ValueError(f"--keep-checkpoints: expected at least 1, got {config.keep_checkpoints}")
    if config.max_minutes is not None and not config.max_minutes > 0:
        raise ValueError(f"--max-minutes: expected a positive number, got {config.max_minutes}")
    if config.eval_seconds is not None and not config.eval_seconds > 0:
        raise ValueError(f"--eval-seconds: expected a positive number, got {config.eval_seconds}")
    if not config.eval_difficulty or not all(0 <= difficulty <= 1 for difficulty in config.eval_difficulty):
        raise ValueError(f"--eval-difficulty: expected numbers in [0, 1], got {config.eval_difficulty}")
    if len(set(config.eval_difficulty)) < len(config.eval_difficulty):
        raise ValueError(f"--eval-difficulty: expected each once, got {config.eval_difficulty}")
    envs, processes = config.num_envs or 0, config.processes or 1
    if envs % processes:
        raise ValueError(f"--num-envs: {envs} do not divide evenly over {processes} processes")
    _check_ppo(config.ppo, envs // processes * config.ppo.num_steps_per_env)
    _check_model(config.model)


def _check_ppo(ppo: PpoConfig, samples: int) -> None:
    for name in ("num_learning_epochs", "num_mini_batches", "num_steps_per_env"):
        if getattr(ppo, name) < 1:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected at least 1, got {getattr(ppo, name)}")
    if samples < (ppo.num_mini_batches or 0):
        raise ValueError(f"--ppo.num-mini-batches: {ppo.num_mini_batches} is more than the rollout's {samples} samples")
    for name, low, high in (
        ("gamma", 0.0, 1.0),
        ("lam", 0.0, 1.0),
        ("clip_param", 0.0, 1.0),
        ("mirror_share", 0.0, 1.0),
    ):
        if not low <= getattr(ppo, name) <= high:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected {low} to {high}, got {getattr(ppo, name)}")
    if ppo.dual_clip is not None and not ppo.dual_clip > 1:
        raise ValueError(f"--ppo.dual-clip: expected a number above 1, got {ppo.dual_clip}")
    for name in ("learning_rate", "desired_kl", "max_grad_norm"):
        if not getattr(ppo, name) > 0:
            raise ValueError(f"--ppo.{name.replace('_', '-')}: expected a positive number, got {getattr(ppo, name)}")


def _check_model(model: ModelConfig) -> None:
    for name in ("latent_noise_coef", "latent_init_scale"):
        if not getattr(model, name) >= 0:
            raise ValueError(f"--model.{name.replace('_', '-')}: expected at least 0, got {getattr(model, name)}")
    if model.latent_noise_target is not None:
        if not model.latent_noise_target > 0:
            raise ValueError(
                f"--model.latent-noise-target: expected a positive number, got {model.latent_noise_target}"
            )
        if model.latent_noise_coef == 0:
            raise ValueError("--model.latent-noise-target: expected a --model.latent-noise-coef to begin with, got 0")


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
            "switch_at": None if config.switch_at is None else list(config.switch_at),
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
    switch_at = top.get("switch_at")
    if switch_at is not None:  # a single iteration in earlier versions
        top["switch_at"] = (switch_at,) if isinstance(switch_at, int) else tuple(switch_at)
    for name in ("run_dir", "settings"):
        if top.get(name) is not None:
            top[name] = Path(top[name])
    for name in ("set", "eval_difficulty"):
        if name in top:
            top[name] = tuple(top[name])
    return TrainConfig(**top, ppo=PpoConfig(**ppo), model=ModelConfig(**model))
