"""What each op is tested with on every backend: sizes, inputs and roundings; a battery is inherited beside it."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

import p3kernels
from helpers import layered
from helpers.battery import Inputs, as_tuple, grouped
from p3kernels import reference


class ActivationCase:
    sizes: ClassVar = {"one": (1,), "odd": (3, 5), "prime": (7, 11, 13), "empty": (0, 4), "large": (3, 7001)}
    # An elementwise result is within 7 eps of the largest; tests/helpers/accuracy.py has the sharp, pointwise bounds.
    rounding = 16

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        generator = torch.Generator().manual_seed(3)
        mean = 2 * torch.randn(size, generator=generator, dtype=torch.float64)
        var = 0.01 + 3 * torch.rand(size, generator=generator, dtype=torch.float64) ** 2
        return {"mean": mean.to(dtype), "var": var.to(dtype)}


class EluMomentsCase(ActivationCase):
    op = p3kernels.elu_moments
    reference = reference.elu_moments
    options: ClassVar = {"alpha": 1.3}


class LeakyReluMomentsCase(ActivationCase):
    op = p3kernels.leaky_relu_moments
    reference = reference.leaky_relu_moments
    options: ClassVar = {"negative_slope": 0.2}


class LinearMomentsCase:
    op = p3kernels.linear_moments
    reference = reference.linear_moments
    sizes: ClassVar = {
        "one": (1, 1, 1, 1),
        "odd": (3, 5, 3, 7),
        "prime": (31, 13, 11, 17),
        "empty": (0, 5, 3, 7),
        "large": (2 * 2048 + 3, 11, 7, 5),  # above CHUNK_ROWS, with a rest
    }
    # One matrix product each way, of at most 17 terms, or 4099 in a weight's gradient: √4099 roundings. Where there is
    # an elementwise part it adds 7 eps.
    rounding = 64

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        rows, inputs, stochastic, outputs = size
        generator = torch.Generator().manual_seed(1)
        named = layered.moments(generator, rows, inputs, stochastic)
        network = layered.layers(generator, (inputs, outputs))
        return layered.cast({**named, "weight": network["weights.0"], "bias": network["biases.0"]}, dtype)


class LinearEluMomentsCase(LinearMomentsCase):
    op = p3kernels.linear_elu_moments
    reference = reference.linear_elu_moments
    options: ClassVar = {"alpha": 1.3}


class NetworkCase:
    """mean, var, weights and biases for (B, I, J, *widths)."""

    sizes: ClassVar = {
        "one": (1, 1, 1, 1, 1, 1),
        "odd": (3, 5, 3, 7, 5, 3),
        "prime": (31, 13, 11, 17, 7, 3),
        "empty": (0, 5, 3, 7, 5, 3),
    }
    options: ClassVar = {"activation": "elu", "activation_parameter": 1.3}
    seed = 1

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype = torch.float64) -> Inputs:
        rows, inputs, stochastic, *widths = size
        generator = torch.Generator().manual_seed(self.seed)
        named = layered.moments(generator, rows, inputs, stochastic)
        return layered.cast(named | layered.layers(generator, (inputs, *widths)), dtype)


class MlpMomentsCase(NetworkCase):
    op = p3kernels.mlp_moments
    reference = reference.mlp_moments
    # Three layers of what linear_elu_moments allows, each carried on by weights of norm near 1.
    rounding = 128


class MixtureLogProbCase:
    op = p3kernels.mixture_log_prob
    reference = reference.mixture_log_prob
    row_std = False
    sizes: ClassVar = {
        "one": (1, 1, 1),
        "odd": (7, 3, 5),
        "prime": (13, 31, 29),
        "empty": (7, 0, 5),
        "large": (3, 4099, 7),
    }
    # A sum of 29 squares, and of 4099 rows in the gradient of a shared std; weights e^x with x off by |x| eps.
    rounding = 64

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        samples, rows, actions = size
        generator = torch.Generator().manual_seed(2)
        shape = (rows, actions) if self.row_std else (actions,)
        tensors = {
            "action": torch.randn(rows, actions, generator=generator, dtype=torch.float64),
            "means": 0.7 * torch.randn(samples, rows, actions, generator=generator, dtype=torch.float64),
            "std": 0.3 + torch.rand(shape, generator=generator, dtype=torch.float64),
        }
        return {name: tensor.to(dtype) for name, tensor in tensors.items()}


class MlpMixtureLogProbCase:
    op = p3kernels.mlp_mixture_log_prob
    reference = reference.mlp_mixture_log_prob
    row_std = False
    sizes: ClassVar = {  # N, B, C, Z, widths
        "one": (1, 1, 1, 1, 1, 1, 1),
        "odd": (7, 3, 3, 2, 7, 5, 5),
        "prime": (5, 31, 13, 11, 17, 7, 3),
        "empty": (7, 0, 3, 2, 7, 5, 5),
        "large": (5, 1703, 5, 3, 13, 7, 3),  # more than two tiles, with a rest
    }
    # Three layers as in mlp_moments, then a sum of squares over std ≥ 0.5.
    rounding = 256
    options: ClassVar[dict[str, Any]] = {}
    opchecked: ClassVar = (
        {},
        {"noise": None, "seed": 3},
        {"noise": None, "seed": 3, "rows": torch.tensor([5, 2**40, 5])},
    )

    def make_inputs(self, size: tuple[int, ...], dtype: torch.dtype) -> Inputs:
        return layered.policy(size, dtype, row_std=self.row_std)

    def arguments(self, inputs: Inputs) -> dict[str, Any]:
        return {**grouped(inputs), "num_samples": inputs["noise"].shape[0], **self.options}

    def twin(self, inputs: Inputs) -> tuple[torch.Tensor, ...]:
        return as_tuple(reference.mlp_mixture_log_prob(**grouped(inputs), **self.options))
