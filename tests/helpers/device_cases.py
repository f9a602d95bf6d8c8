"""What each op is tested with on the backends for GPUs: sizes, inputs, roundings and the operators behind it."""

from __future__ import annotations

from typing import ClassVar

import torch

import p3kernels
from helpers import layered
from helpers.battery import Inputs, as_tuple, grouped
from helpers.device_battery import DeviceBattery
from p3kernels import reference


class ActivationCases(DeviceBattery):
    sizes: ClassVar = {"one": (1,), "odd": (3, 5), "prime": (7, 11, 13), "empty": (0, 4), "large": (3, 1001)}
    # As for the other backends: tests/helpers/activation_battery.py.
    rounding = 16

    def make_inputs(self, size, dtype) -> Inputs:
        generator = torch.Generator().manual_seed(3)
        mean = 2 * torch.randn(size, generator=generator, dtype=torch.float64)
        var = 0.01 + 3 * torch.rand(size, generator=generator, dtype=torch.float64) ** 2
        return {"mean": mean.to(dtype), "var": var.to(dtype)}


class EluMomentsCases(ActivationCases):
    op = p3kernels.elu_moments
    reference = reference.elu_moments
    options: ClassVar = {"alpha": 1.3}


class LeakyReluMomentsCases(ActivationCases):
    op = p3kernels.leaky_relu_moments
    reference = reference.leaky_relu_moments
    options: ClassVar = {"negative_slope": 0.2}


class LinearEluMomentsCases(DeviceBattery):
    op = p3kernels.linear_elu_moments
    reference = reference.linear_elu_moments
    sizes: ClassVar = {
        "one": (1, 1, 1, 1),
        "odd": (3, 5, 3, 7),
        "prime": (31, 13, 11, 17),
        "empty": (0, 5, 3, 7),
        "large": (70, 35, 19, 66),  # above every block, with a rest
    }
    options: ClassVar = {"alpha": 1.3}
    # As for the other backends: tests/ops/test_linear_elu_moments.py.
    rounding = 64

    def make_inputs(self, size, dtype):
        rows, inputs, stochastic, outputs = size
        generator = torch.Generator().manual_seed(1)
        named = layered.moments(generator, rows, inputs, stochastic)
        network = layered.layers(generator, (inputs, outputs))
        return layered.cast({**named, "weight": network["weights.0"], "bias": network["biases.0"]}, dtype)


class MlpMomentsCases(DeviceBattery):
    op = p3kernels.mlp_moments
    reference = reference.mlp_moments
    sizes: ClassVar = {
        "one": (1, 1, 1, 1, 1),
        "odd": (3, 5, 3, 7, 5, 3),
        "prime": (31, 13, 11, 17, 5, 7),
        "empty": (0, 5, 3, 7, 5, 3),
        "large": (70, 35, 19, 66, 3),  # above every block, with a rest; the batch in several parts
    }
    options: ClassVar = {"activation": "elu", "activation_parameter": 1.3}
    # As for the other backends: tests/ops/test_mlp_moments.py.
    rounding = 128

    def make_inputs(self, size, dtype):
        rows, inputs, stochastic, *widths = size
        generator = torch.Generator().manual_seed(2)
        named = layered.moments(generator, rows, inputs, stochastic)
        return layered.cast({**named, **layered.layers(generator, (inputs, *widths))}, dtype)


class MixtureLogProbCases(DeviceBattery):
    op = p3kernels.mixture_log_prob
    reference = reference.mixture_log_prob
    row_std = False
    sizes: ClassVar = {
        "one": (1, 1, 1),
        "odd": (7, 3, 5),
        "prime": (13, 31, 29),
        "empty": (7, 0, 5),
        "large": (3, 523, 7),  # several blocks of rows, with a rest
    }
    # As for the other backends: tests/ops/test_mixture_log_prob.py.
    rounding = 64
    test_gradient_through_one_output_alone = None  # there is one

    def make_inputs(self, size, dtype):
        samples, rows, actions = size
        generator = torch.Generator().manual_seed(2)
        std = torch.rand((rows, actions) if self.row_std else (actions,), generator=generator)
        tensors = {
            "action": torch.randn(rows, actions, generator=generator),
            "means": 0.7 * torch.randn(samples, rows, actions, generator=generator),
            "std": 0.3 + std,
        }
        return {name: tensor.to(dtype) for name, tensor in tensors.items()}


class MlpMixtureLogProbCases(DeviceBattery):
    op = p3kernels.mlp_mixture_log_prob
    reference = reference.mlp_mixture_log_prob
    sizes: ClassVar = {  # N, B, C, Z, widths
        "one": (1, 1, 1, 1, 1, 1, 1),
        "odd": (7, 3, 3, 2, 7, 5, 5),
        "prime": (5, 31, 13, 11, 17, 7, 3),
        "empty": (7, 0, 3, 2, 7, 5, 5),
        "large": (2, 70, 21, 69, 131, 67, 3),  # above every block, with a rest
    }
    # As for the other backends: tests/ops/test_mlp_mixture_log_prob.py.
    rounding = 256
    test_gradient_through_one_output_alone = None  # there is one
    opchecked: ClassVar = (
        {},
        {"noise": None, "seed": 3},
        {"noise": None, "seed": 3, "rows": torch.tensor([5, 2**40, 5])},
    )

    def make_inputs(self, size, dtype):
        return layered.policy(size, dtype)

    def arguments(self, inputs):
        return {**grouped(inputs), "num_samples": inputs["noise"].shape[0], **self.options}

    def twin(self, inputs):
        return as_tuple(reference.mlp_mixture_log_prob(**grouped(inputs), **self.options))
