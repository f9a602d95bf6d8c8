"""Settings filled in: what a preset gives to those that were left out, and what they have to agree on."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from trainer.algorithms.method import Method
from trainer.algorithms.methods import parse_method
from trainer.algorithms.schedule import check_switches
from trainer.config import (
    HIDDEN_DIMS,
    EncoderConfig,
    ModelConfig,
    PpoConfig,
    ResolvedConfig,
    ResolvedModel,
    ResolvedPpo,
    TrainConfig,
)
from trainer.config.ranges import check_ranges
from trainer.processes import cores
from trainer.tasks import TaskConfig, find_task
from trainer.tasks.actuation import MOTOR_FACTORS, randomizes_motors
from trainer.tasks.settings import assigned, from_file, plain, restored

_T = TypeVar("_T")
FEWEST_ENVS = 16
"""Environments of a process below which another core is worth less than what its process costs."""


@dataclass(frozen=True)
class _Preset:
    method: str
    num_envs: int
    iterations: dict[str, int]
    """By task."""
    mm_share: float
    """Share of the iterations before the last change of phase, which for P³ begins LSFT."""
    entropy_coef: dict[str, float]
    """By task."""
    init_std: dict[str, float]
    """By task."""
    hidden_dims: tuple[int, ...]
    extero_latent: int | None
    """For methods that encode the height scan; None for the network's own."""
    num_learning_epochs: int
    num_mini_batches: int
    use_clipped_value_loss: bool
    mirror_share: dict[str, float]
    """By task, for robots that declare their symmetry."""


_PRESETS = {
    "cpu": _Preset(
        method="quiet",
        num_envs=256,
        iterations={"g1-flat": 1200, "g1-parkour": 6000, "walker-parkour": 410},
        mm_share=0.85,
        entropy_coef={"g1-flat": 0.001, "g1-parkour": 0.0, "walker-parkour": 0.0},
        init_std={"g1-flat": 0.4, "g1-parkour": 0.4, "walker-parkour": 0.6},
        hidden_dims=(256, 128, 64),
        extero_latent=32,
        num_learning_epochs=2,
        num_mini_batches=8,
        use_clipped_value_loss=False,
        mirror_share={"g1-flat": 0.5, "g1-parkour": 0.5, "walker-parkour": 0.5},
    ),
    "paper": _Preset(
        method="p3",
        num_envs=4096,
        iterations={"g1-flat": 3000, "g1-parkour": 8000, "walker-parkour": 2000},
        mm_share=0.875,
        entropy_coef={"g1-flat": 0.01, "g1-parkour": 0.01},
        init_std={"g1-flat": 1.0, "g1-parkour": 1.0},
        hidden_dims=HIDDEN_DIMS,
        extero_latent=None,
        num_learning_epochs=5,
        num_mini_batches=4,
        use_clipped_value_loss=True,
        mirror_share={"g1-flat": 0.0, "g1-parkour": 0.0},
    ),
}


_BY_PRESET = ("num_learning_epochs", "num_mini_batches", "use_clipped_value_loss")
"""Settings of PPO that are the preset's where they are not given; `entropy_coef` and `mirror_share` are its by task."""


def _of_kin(table: dict[str, _T], task: TaskConfig) -> _T:
    """A task's own value, else that of the task whose name its own begins with, else that of the G1's nearest task."""
    kin = [name for name in table if task.name.startswith(name)]
    return table[max(kin, key=len) if kin else "g1-parkour" if task.terrains else "g1-flat"]


def resolve(config: TrainConfig) -> ResolvedConfig:
    """The settings with everything that was left out filled in, and every value checked.

    Raises:
        ValueError: A setting cannot have its value; names the option.
    """
    check_ranges(config)
    task, method = task_of(config), method_of(config)
    check_engine(config.engine, config.device, task)
    if (config.ppo.mirror_share or 0.0) > 0 and task.robot.mirror is None:
        raise ValueError(
            f"--ppo.mirror-share: the robot {task.robot.name!r} of {config.task} declares no left/right symmetry"
        )
    resolved = filled(_with_latent(config, method))
    _check_together(resolved, method)
    return resolved


def filled(config: TrainConfig) -> ResolvedConfig:
    """The settings with everything that was left out filled in: those of a run that was resolved when it began.

    Raises:
        ValueError: There is no such task or method, or the changes of phase are not the method's.
    """
    name, preset = method_name(config), _PRESETS[config.preset]
    task, method = task_of(config), parse_method(name)
    num_envs = preset.num_envs if config.num_envs is None else config.num_envs
    iterations = _of_kin(preset.iterations, task) if config.iterations is None else config.iterations
    given = {setting.name: getattr(config, setting.name) for setting in dataclasses.fields(TrainConfig)}
    return ResolvedConfig(
        **given
        | {
            "task_settings": plain(task),
            "method": name,
            "set": (),
            "settings": None,
            "num_envs": num_envs,
            "iterations": iterations,
            "switch_at": _switches(config, method, last=preset.mm_share * iterations),
            "processes": _default_processes(config, num_envs) if config.processes is None else config.processes,
            "run_dir": config.run_dir or Path("runs") / f"{config.task}-{name}-{config.seed}",
            "eval_seconds": task.episode_seconds if config.eval_seconds is None else config.eval_seconds,
            "ppo": _filled_ppo(config.ppo, preset, task),
            "model": _filled_model(config, method, preset, task),
        }
    )


def _filled_ppo(ppo: PpoConfig, preset: _Preset, task: TaskConfig) -> ResolvedPpo:
    given = {setting.name: getattr(ppo, setting.name) for setting in dataclasses.fields(PpoConfig)}
    given |= {name: getattr(preset, name) for name in _BY_PRESET if given[name] is None}
    if ppo.entropy_coef is None:
        given["entropy_coef"] = _of_kin(preset.entropy_coef, task)
    if ppo.mirror_share is None:
        given["mirror_share"] = 0.0 if task.robot.mirror is None else _of_kin(preset.mirror_share, task)
    return ResolvedPpo(**given)


def _filled_model(config: TrainConfig, method: Method, preset: _Preset, task: TaskConfig) -> ResolvedModel:
    given = {setting.name: getattr(config.model, setting.name) for setting in dataclasses.fields(ModelConfig)}
    if given["hidden_dims"] is None:
        given["hidden_dims"] = preset.hidden_dims
    if given["init_std"] is None and config.init_from is None:  # else the checkpoint's, whatever it is
        given["init_std"] = _of_kin(preset.init_std, task)
    if given["latent_noise_coef"] is None:
        given["latent_noise_coef"] = method.latent_noise_coef
    return ResolvedModel(**given)


def _with_latent(config: TrainConfig, method: Method) -> TrainConfig:
    """The settings with the preset's size of the scan's latent, where a new run was given none.

    A run that was saved without one has the network's own size.
    """
    given = config.model.extero_latent is not None or config.init_from is not None or config.task_settings is not None
    if given or not issubclass(method.options, EncoderConfig):
        return config
    model = dataclasses.replace(config.model, extero_latent=_PRESETS[config.preset].extero_latent)
    return dataclasses.replace(config, model=model)


def _switches(config: TrainConfig, method: Method, last: float) -> tuple[int, ...] | None:
    """The iterations at which the phases change; None for a method of one phase, and where a plateau decides."""
    if config.switch_at is not None:
        return check_switches(config.switch_at, method, "--switch-at") or None
    if config.switch_on_plateau or not method.changes:
        return None
    evenly = tuple(round(last * (change + 1) / method.changes) for change in range(method.changes))
    return check_switches(evenly, method, "--switch-at")


def _default_processes(config: TrainConfig, num_envs: int) -> int:
    """One process a core, as far as the environments divide evenly and are not too few for a process."""
    if config.engine != "mujoco" or config.num_threads is not None:
        return 1
    most = max(1, min(cores(), num_envs // FEWEST_ENVS))
    return next(number for number in range(most, 0, -1) if num_envs % number == 0)


def method_name(config: TrainConfig) -> str:
    """What trains: as given, else the preset's."""
    return _PRESETS[config.preset].method if config.method is None else config.method


def method_of(config: TrainConfig) -> Method:
    """The method of a run.

    Raises:
        ValueError: There is no such method.
    """
    return parse_method(method_name(config))


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


def check_engine(engine: str, device: str, task: TaskConfig | None = None) -> None:
    """Checks that an engine can run a task on a device, before anything is built.

    Raises:
        ValueError: There is no such device, or the engine does not run on it, or not this task.
    """
    if engine in ("mujoco", "physx") and device != "cpu":
        name = "native MuJoCo" if engine == "mujoco" else "standalone PhysX"
        raise ValueError(f"--device: {name} runs on the CPU, got {device!r}; a GPU needs --engine mjlab")
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise ValueError(f"--device: expected cpu, cuda:0, ..., got {device!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"--device: {device}, but torch finds no CUDA device here")
    if engine != "mujoco" and task is not None and task.robot.name != "g1":
        raise ValueError(f"--engine: {engine} runs the G1's tasks, not {task.name}")
    if engine in ("isaaclab", "physx") and task is not None and randomizes_motors(task.dynamics):
        names = ", ".join(f"dynamics.{name}" for name in MOTOR_FACTORS)
        raise ValueError(f"--engine: in {engine} motors are as they are; {names} have to be 1,1")


def _check_together(config: ResolvedConfig, method: Method) -> None:
    """Settings that have to agree with each other."""
    if config.switch_on_plateau and config.switch_at is not None:
        raise ValueError("--switch-at and --switch-on-plateau exclude each other")
    if not config.eval_difficulty or len(set(config.eval_difficulty)) < len(config.eval_difficulty):
        raise ValueError(f"--eval-difficulty: expected one or more, each once, got {config.eval_difficulty}")
    if config.num_envs % config.processes:
        raise ValueError(f"--num-envs: {config.num_envs} do not divide evenly over {config.processes} processes")
    samples = config.num_envs // config.processes * config.ppo.num_steps_per_env
    if samples < config.ppo.num_mini_batches:
        raise ValueError(
            f"--ppo.num-mini-batches: {config.ppo.num_mini_batches} is more than the rollout's {samples} samples"
        )
    if config.model.latent_noise_target is not None and config.model.latent_noise_coef == 0:
        raise ValueError("--model.latent-noise-target: expected a --model.latent-noise-coef to begin with, got 0")
    if method.latent_noise_coef > 0 and config.model.latent_noise_coef == 0:
        raise ValueError(f"--model.latent-noise-coef: without it {method.name} is mm; expected more than 0, got 0")
    taken = {setting.name for setting in dataclasses.fields(method.options)}
    without = dataclasses.replace(ModelConfig(), latent_noise_coef=method.latent_noise_coef)
    for setting in dataclasses.fields(ModelConfig):
        if setting.name not in taken and getattr(config.model, setting.name) != getattr(without, setting.name):
            raise ValueError(
                f"--model.{setting.name.replace('_', '-')}: the networks of {method.name} have no such setting"
            )
