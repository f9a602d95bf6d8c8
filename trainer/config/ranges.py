"""The range of every setting of every command, in one table; what is outside is refused by name before anything starts.

A command's settings are a dataclass, and the table has each of its numbers: a test holds it to that. What depends on
several settings at once, or on files, is checked where it is used.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`; never NaN, never an infinity.

    Of a setting with several values each has to be in it, and there has to be one.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    """Whether `low` itself is outside."""
    below: bool = False
    """Whether `high` itself is outside."""
    even: bool = False
    """Whether odd numbers are outside."""
    may_be_empty: bool = False
    """Whether a setting with several values may have none at all."""

    def __contains__(self, value: float) -> bool:
        if not math.isfinite(value) or (self.even and value % 2):
            return False
        low = value > self.low if self.above else value >= self.low
        return low and (value < self.high if self.below else value <= self.high)

    def expected(self, value: float) -> str:
        """What would have been right in the place of `value`: the whole range, or the end that it is beyond."""
        if self.even and math.isfinite(value):
            return f"an even number of {self.low:g} to {self.high:g}"
        low = f"above {self.low:g}" if self.above else f"at least {self.low:g}"
        high = f"below {self.high:g}" if self.below else f"at most {self.high:g}"
        if self.high <= _TELLING:
            return f"{low} and {high}" if self.above or self.below else f"{self.low:g} to {self.high:g}"
        if not math.isfinite(value):
            return f"a finite number{'' if math.isinf(self.low) else ', ' + low}"
        if value > self.high:
            return high
        return "a positive number" if self.above and self.low == 0 else low


_TELLING = 1000
"""Above it the high end of a range is a limit of the program, which nobody needs to be told of who is below the low."""
NUMBER = Range()
COUNT = Range(1, 1e9)
COUNT_OR_NONE = Range(0, 1e9)
NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, above=True)
SHARE = Range(0, 1)
SECONDS = Range(0, 1e6, above=True)
SEED = Range(0, 2**31 - 1)
"""Seeds that torch, numpy and MuJoCo all take, with room for the numbers that ranks and rollbacks add."""
THREADS = Range(1, 4096)
WIDTH = Range(1, 65536)
PIXELS = Range(16, 8192, even=True)

_TRAINING = {
    "num_envs": COUNT,
    "iterations": COUNT,
    "switch_at": Range(0, 1e9, may_be_empty=True),
    "plateau_window": Range(2, 1e9),
    "seed": SEED,
    "max_minutes": Range(0, 1e7, above=True),
    "save_interval": COUNT,
    "keep_checkpoints": COUNT,
    "eval_interval": COUNT_OR_NONE,
    "eval_difficulty": SHARE,
    "eval_episodes": COUNT,
    "eval_seconds": SECONDS,
    "rollback_after": COUNT,
    "diagnose_interval": COUNT_OR_NONE,
    "processes": THREADS,
    "num_threads": THREADS,
}
_PPO = {
    "gamma": SHARE,
    "lam": SHARE,
    "num_learning_epochs": COUNT,
    "num_mini_batches": COUNT,
    "entropy_coef": NOT_NEGATIVE,
    "clip_param": Range(0, 1, above=True),
    "dual_clip": Range(1, above=True),
    "value_loss_coef": NOT_NEGATIVE,
    "learning_rate": Range(0, 1, above=True),
    "desired_kl": POSITIVE,
    "max_grad_norm": POSITIVE,
    "num_steps_per_env": COUNT,
    "mirror_share": SHARE,
}
_MODEL = {
    "hidden_dims": WIDTH,
    "init_std": Range(0, 100, above=True),
    "proprio_latent": WIDTH,
    "extero_latent": WIDTH,
    "beta": NOT_NEGATIVE,
    "representation_coef": NOT_NEGATIVE,
    "latent_noise_coef": NOT_NEGATIVE,
    "latent_noise_target": POSITIVE,
    "latent_init_scale": Range(0, 100),
}
_EVALUATION = {
    "difficulty": SHARE,
    "strengths": Range(0, 100),
    "episodes": COUNT,
    "seconds": SECONDS,
    "seed": SEED,
    "num_threads": THREADS,
}
_PLAY = {
    "seconds": SECONDS,
    "difficulty": SHARE,
    "seed": SEED,
    "port": Range(1, 65535),
    "width": PIXELS,
    "height": PIXELS,
}
_COMMAND = Range(-10, 10)
"""Metres or radians a second that a robot is asked for."""
_DEPLOY = {
    "domain": Range(0, 232),
    "command": _COMMAND,
    "keep_heading": Range(0, 100),
    "seconds": SECONDS,
    "stand_seconds": SECONDS,
    "damping": Range(0, 1000, above=True),
    "mode_machine": Range(0, 255),
    "lidar_mount": Range(-100, 100),
    "odometry_latency": Range(0, 10),
    "time_scale": Range(0, 1000, above=True),
    "connect_seconds": SECONDS,
}
_ROBOT_SIM = {
    "domain": Range(0, 232),
    "seconds": SECONDS,
    "difficulty": SHARE,
    "seed": SEED,
    "noise": Range(0, 1000),
    "loss": SHARE,
    "state_delay_ms": Range(0, 1e5),
    "command_delay_ms": Range(0, 1e5),
    "jitter_ms": Range(0, 1e5),
    "motor_hz": Range(1, 1e5),
    "speed": Range(0, 1000, above=True),
    "mode_machine": Range(0, 255),
    "odometry_drift": Range(0, 1),
    "odometry_delay_ms": Range(0, 1e5),
    "stop_after_damping": Range(0, 1e6),
}
_STUDY = {
    "seeds": SEED,
    "num_envs": COUNT,
    "iterations": COUNT,
    "trunk": COUNT_OR_NONE,
    "save_interval": COUNT,
    "eval_interval": COUNT_OR_NONE,
    "eval_difficulties": SHARE,
    "eval_episodes": COUNT,
    "eval_seconds": SECONDS,
    "eval_seed": SEED,
    "eval_checkpoints": COUNT,
    "jobs": THREADS,
}
_LIMITS = (
    *("state_age", "loop_time", "tilt", "position_margin"),
    *("velocity_factor", "torque_factor", "target_rate"),
)
RANGES: Mapping[str, Mapping[str, Range]] = {
    "TrainConfig": _TRAINING,
    "PpoConfig": _PPO,
    "ModelConfig": _MODEL,
    "Protocol": _EVALUATION,
    "PlayConfig": _PLAY,
    "PackConfig": {"average": COUNT},
    "DiagnoseConfig": {"num_envs": Range(2, 1e9), "states": Range(2, 1e9), "seed": SEED, "num_threads": THREADS},
    "RunConfig": {"seconds": SECONDS, "command": _COMMAND, "difficulty": SHARE, "seed": SEED},
    "DeployConfig": _DEPLOY,
    "RobotSimConfig": _ROBOT_SIM,
    "StudyConfig": _STUDY,
    "CostConfig": {"num_envs": COUNT, "repeats": COUNT},
    "ScaleConfig": {"num_envs": COUNT, "counted": Range(48, 1e6)},
    "Limits": dict.fromkeys(_LIMITS, Range(0, 1000, above=True)),
}
"""Class of a command's settings to name to range."""


def check_ranges(settings: Any) -> None:
    """Refuses the first setting that is out of its range.

    Args:
        settings: A command's settings, a dataclass; parts that are dataclasses are looked into.

    Raises:
        ValueError: Naming the option, what came and what was expected.
    """
    for name, value, expected in _numbers(settings):
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, tuple | list):
            if not value and not expected.may_be_empty:
                raise ValueError(f"{option}: expected at least one number, got none")
            wrong = [each for each in value if each not in expected]
            if wrong:
                raise ValueError(f"{option}: expected {expected.expected(wrong[0])}, got {wrong[0]}")
        elif value not in expected:
            raise ValueError(f"{option}: expected {expected.expected(value)}, got {value}")


def check_types(settings: Any, prefix: str = "") -> None:
    """Refuses the first setting whose value is of another type than it is declared with, as a file may bring it.

    Args:
        settings: A dataclass; parts that are dataclasses are looked into.
        prefix: Name of the part with a dot, for messages.

    Raises:
        ValueError: Naming the setting.
    """
    hints = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        value, hint = getattr(settings, field.name), hints[field.name]
        if dataclasses.is_dataclass(value):
            check_types(value, f"{prefix}{field.name}.")
        elif not _fits(value, hint):
            expected = getattr(hint, "__name__", None) if isinstance(hint, type) else str(hint).replace("typing.", "")
            raise ValueError(f"{prefix}{field.name}: expected {expected}, got {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a declared type; an int is a float too, a bool is no number."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is tuple:
        each = arguments[:1] * len(value) if isinstance(value, tuple) and arguments[-1] is ... else arguments
        return isinstance(value, tuple) and len(value) == len(each) and all(map(_fits, value, each))
    if hint is Any:
        return True
    if hint in (int, float):
        return isinstance(value, (int, hint)) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def ranges_of(kind: type) -> dict[str, Range]:
    """Name to range of a class of settings, with those of its bases."""
    return {name: each for base in reversed(kind.__mro__) for name, each in RANGES.get(base.__name__, {}).items()}


def _numbers(settings: Any, prefix: str = "") -> Iterator[tuple[str, Any, Range]]:
    """Name, value and range of every number that is set."""
    ranges = ranges_of(type(settings))
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if dataclasses.is_dataclass(value):
            yield from _numbers(value, f"{prefix}{field.name}.")
        elif value is not None and field.name in ranges:
            yield f"{prefix}{field.name}", value, ranges[field.name]
