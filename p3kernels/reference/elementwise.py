"""Functions of a Gaussian's mean and variance, elementwise, with derivatives by formulas: reverse, forward, under vmap.

autograd could differentiate the formulas themselves, but its derivatives would cancel where the formulas do not. So a
function is a list of orders: the values, all their first derivatives, all their second ones. The derivative of an order
is the next one; that of the last is an error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Values = Callable[[Tensor, Tensor, float], tuple[Tensor, ...]]
"""(mean, var, parameter) → tensors of the shape and dtype of `mean`."""


@dataclass(frozen=True)
class Order:
    """Numbers, and where among those of the next order their derivatives are."""

    values: Values
    by_mean: tuple[int, ...] = ()
    """The place of each number's derivative by the mean; empty in the last order."""
    by_var: tuple[int, ...] = ()


@dataclass(frozen=True)
class Formulas:
    """The orders of a function, and what it is called where they end."""

    name: str
    orders: tuple[Order, ...]

    def refusal(self) -> RuntimeError:
        """What is raised where another derivative is asked for."""
        times = {1: "twice", 2: "three times"}[len(self.orders) - 1]
        known = {1: "first", 2: "first and second"}[len(self.orders) - 1]
        return RuntimeError(f"cannot differentiate {times}: {self.name} offer {known} derivatives only")


def _combine(terms: Any) -> Tensor:
    first, *rest = terms
    for term in rest:
        first = first + term
    return first


def _function(order: int, *, transformable: bool = True) -> Any:
    """The `autograd.Function` of an order: (mean, var, formulas, parameter) → its numbers.

    Args:
        order: From 0.
        transformable: Whether it takes part in forward mode and `torch.func`; torch.compile traces only one that does
            not, and whose derivatives are then plain numbers.
    """

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(mean: Tensor, var: Tensor, formulas: Formulas, parameter: float) -> tuple[Tensor, ...]:
            return formulas.orders[order].values(mean, var, parameter)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            mean, var, ctx.formulas, ctx.parameter = inputs
            ctx.save_for_backward(mean, var)
            if transformable:
                ctx.save_for_forward(mean, var)

        @staticmethod
        def backward(ctx: Any, *d_out: Tensor) -> tuple[Tensor, Tensor, None, None]:
            slopes, at = _slopes(ctx)
            d_mean = _combine(d * slopes[place] for d, place in zip(d_out, at.by_mean, strict=True))
            d_var = _combine(d * slopes[place] for d, place in zip(d_out, at.by_var, strict=True))
            return d_mean, d_var, None, None

    def _slopes(ctx: Any) -> tuple[tuple[Tensor, ...], Order]:
        mean, var = ctx.saved_tensors
        if order + 1 == len(ctx.formulas.orders):
            raise ctx.formulas.refusal()
        if not transformable:
            return ctx.formulas.orders[order + 1].values(mean, var, ctx.parameter), ctx.formulas.orders[order]
        return _FUNCTIONS[order + 1].apply(mean, var, ctx.formulas, ctx.parameter), ctx.formulas.orders[order]

    if not transformable:
        return Function

    class TransformableFunction(Function):
        generate_vmap_rule = True

        @staticmethod
        def jvp(ctx: Any, d_mean: Tensor, d_var: Tensor, *_: None) -> tuple[Tensor, ...]:
            slopes, at = _slopes(ctx)
            places = zip(at.by_mean, at.by_var, strict=True)
            return tuple(slopes[mean] * d_mean + slopes[var] * d_var for mean, var in places)

    return TransformableFunction


_FUNCTIONS = [_function(order) for order in range(3)]
_COMPILED = _function(0, transformable=False)


def evaluate(mean: Tensor, var: Tensor, formulas: Formulas, parameter: float) -> tuple[Tensor, ...]:
    """The numbers of order 0, differentiable as often as there are orders after it (inside torch.compile, once)."""
    if torch.compiler.is_compiling():
        return _COMPILED.apply(mean, var, formulas, parameter)
    return _FUNCTIONS[0].apply(mean, var, formulas, parameter)


MOMENTS_BY_MEAN, MOMENTS_BY_VAR = (0, 2), (1, 3)
"""E and Var, among ∂E/∂mean, ∂E/∂var, ∂Var/∂mean, ∂Var/∂var."""
GRADIENTS_BY_MEAN, GRADIENTS_BY_VAR = (0, 1, 3, 4), (1, 2, 4, 5)
"""Those, among ∂²E/∂mean², ∂²E/∂mean∂var, ∂²E/∂var², and the same of Var."""


def moments_formulas(name: str, moments: Values, gradients: Values, curvatures: Values) -> Formulas:
    """The formulas of an activation's moments: 2, 4 and 6 numbers."""
    return Formulas(
        name,
        (
            Order(moments, MOMENTS_BY_MEAN, MOMENTS_BY_VAR),
            Order(gradients, GRADIENTS_BY_MEAN, GRADIENTS_BY_VAR),
            Order(curvatures),
        ),
    )
