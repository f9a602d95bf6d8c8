"""The activations that moments pass through, by name: one table for ops, kernels and networks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from torch import nn

from triton_kernels.activation_codes import ELU, LEAKY_RELU

Result = TypeVar("Result")


class Activation(NamedTuple):
    """An activation as the kernels know it."""

    code: int
    """`ELU` or `LEAKY_RELU`."""
    parameter: float
    """ELU's alpha, LeakyReLU's slope."""


_DEFAULTS = {
    "elu": Activation(ELU, 1.0),
    "relu": Activation(LEAKY_RELU, 0.0),
    "leaky_relu": Activation(LEAKY_RELU, 0.01),
}


def resolve_activation(activation: str, parameter: float | None) -> Activation:
    """The activation of a name.

    Args:
        activation: "elu", "relu" or "leaky_relu".
        parameter: ELU's alpha (> 0) or LeakyReLU's negative slope (>= 0); None for torch's default.
    """
    if not isinstance(activation, str) or activation not in _DEFAULTS:
        raise ValueError(f"activation: expected one of {', '.join(_DEFAULTS)}, got {activation!r}")
    default = _DEFAULTS[activation]
    if parameter is None:
        return default
    if activation == "relu":
        raise ValueError("activation_parameter: relu has none; use leaky_relu")
    check_parameter("activation_parameter", parameter, positive=activation == "elu")
    return Activation(default.code, float(parameter))


def activation_by_name(function: Callable[..., Result]) -> Callable[..., Result]:
    """Lets a function of an `Activation` take `activation` and `activation_parameter` instead, as the ops do."""

    @functools.wraps(function)
    def call(
        *inputs: Any, activation: str | Activation = "elu", activation_parameter: float | None = None, **options: Any
    ) -> Result:
        if not isinstance(activation, Activation):
            activation = resolve_activation(activation, activation_parameter)
        return function(*inputs, activation=activation, **options)

    return call


def check_parameter(name: str, value: float, *, positive: bool) -> None:
    """A finite number, > 0 where `positive`, >= 0 otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not 0 <= value < math.inf or (positive and value == 0):
        raise ValueError(f"{name}: expected a finite number {'> 0' if positive else '>= 0'}, got {value}")


def activation_of_module(module: nn.Module) -> tuple[str, float | None] | None:
    """(name, parameter) of an activation module, or None if it is not one that we know."""
    if isinstance(module, nn.ELU):
        return "elu", float(module.alpha)
    if isinstance(module, nn.LeakyReLU):
        return "leaky_relu", float(module.negative_slope)
    if isinstance(module, nn.ReLU):
        return "relu", None
    return None
