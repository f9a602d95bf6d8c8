"""Statistical linearisation of an activation: f(x) = E[f] + g (x − mean) + what is uncorrelated with x."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from p3kernels.activations import ELU, LEAKY_RELU
from p3kernels.reference.elementwise import Formulas, Order, evaluate
from p3kernels.reference.elu_moments import elu_derivatives, elu_gradients, elu_moments
from p3kernels.reference.leaky_relu_moments import leaky_relu_derivatives, leaky_relu_gradients, leaky_relu_moments


class LinearisedUnits(NamedTuple):
    """The best linear fit of f(x), x ~ N(mean, var), elementwise, and what it leaves."""

    mean: Tensor
    """E[f]."""
    gain: Tensor
    """E[f′]."""
    residual: Tensor
    """Var[f] − gain² var ≥ 0."""
    curvature: Tensor
    """E[f″]."""


def _formulas(code: int) -> Formulas:
    """The four numbers of `LinearisedUnits`, and their derivatives."""
    moments, first, higher = _functions(code)

    def values(mean: Tensor, var: Tensor, parameter: float) -> tuple[Tensor, ...]:
        m, v = mean.double(), var.double()
        out_mean, out_var = moments(m, v, parameter)
        gain = first(m, v, parameter)[0]
        residual = (out_var - gain.square() * v).clamp_min(0)
        curvature = higher(m, v, parameter)[0]
        return tuple(value.to(mean.dtype) for value in (out_mean, gain, residual, curvature))

    def slopes(mean: Tensor, var: Tensor, parameter: float) -> tuple[Tensor, ...]:
        m, v = mean.double(), var.double()
        gain, mean_var, var_mean, var_var = first(m, v, parameter)
        second, third, fourth = higher(m, v, parameter)
        # The clamp of the residual only meets rounding: its gradient is that of the difference everywhere.
        residual_mean = var_mean - 2 * gain * v * second
        residual_var = var_var - gain.square() - gain * v * third
        numbers = (gain, mean_var, second, 0.5 * third, residual_mean, residual_var, third, 0.5 * fourth)
        return tuple(value.to(mean.dtype) for value in numbers)

    return Formulas("linearised activations", (Order(values, (0, 2, 4, 6), (1, 3, 5, 7)), Order(slopes)))


def _functions(code: int) -> tuple[Any, Any, Any]:
    """Moments, their gradients, and the expected derivatives of order two to four."""
    if code == ELU:
        return elu_moments, elu_gradients, elu_derivatives
    return leaky_relu_moments, leaky_relu_gradients, leaky_relu_derivatives


_LINEARISED = {code: _formulas(code) for code in (ELU, LEAKY_RELU)}


def linearised_activation(mean: Tensor, var: Tensor, code: int, parameter: float) -> LinearisedUnits:
    """The units for pre-activations of these means and variances, with exact first derivatives."""
    return LinearisedUnits(*evaluate(mean, var, _LINEARISED[code], parameter))
