"""The cases of helpers/cases.py on the backends for GPUs, of sizes that are above their blocks and no larger."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

import p3kernels
from helpers import cases
from helpers.battery import run
from helpers.device_battery import DeviceBattery
from p3kernels import reference


class EluMomentsCases(cases.EluMomentsCase, DeviceBattery):
    sizes: ClassVar = {**cases.ActivationCase.sizes, "large": (3, 1001)}


class LeakyReluMomentsCases(cases.LeakyReluMomentsCase, DeviceBattery):
    sizes: ClassVar = {**cases.ActivationCase.sizes, "large": (3, 1001)}


class LinearEluMomentsCases(cases.LinearEluMomentsCase, DeviceBattery):
    sizes: ClassVar = {**cases.LinearMomentsCase.sizes, "large": (70, 35, 19, 66)}


class MlpMomentsCases(cases.MlpMomentsCase, DeviceBattery):
    seed = 2
    sizes: ClassVar = {
        **cases.NetworkCase.sizes,
        "one": (1, 1, 1, 1, 1),
        "prime": (31, 13, 11, 17, 5, 7),
        "large": (70, 35, 19, 66, 3),  # the batch in several parts, too
    }


class MixtureLogProbCases(cases.MixtureLogProbCase, DeviceBattery):
    sizes: ClassVar = {**cases.MixtureLogProbCase.sizes, "large": (3, 523, 7)}
    test_gradient_through_one_output_alone = None  # there is one

    def make_inputs(self, size, dtype):
        """Drawn in float32, the noise first: with many actions one sample has nearly all of the likelihood."""
        samples, rows, actions = size
        generator = torch.Generator().manual_seed(2)
        std = 0.3 + torch.rand((rows, actions) if self.row_std else (actions,), generator=generator)
        action = torch.randn(rows, actions, generator=generator)
        means = 0.7 * torch.randn(samples, rows, actions, generator=generator)
        return {"action": action.to(dtype), "means": means.to(dtype), "std": std.to(dtype)}


class GaussianHeadCases(DeviceBattery):
    op = p3kernels.gaussian_head
    reference = reference.gaussian_head
    sizes: ClassVar = {"one": (1, 1), "odd": (3, 5), "prime": (31, 29), "empty": (0, 5), "large": (131, 67)}
    rounding = 64  # sums of 67 terms, some of them close to cancelling
    test_gradients_only_where_asked = None  # the old policy has none
    test_gradient_through_one_output_alone = None  # below, by all three

    def make_inputs(self, size, dtype):
        generator = torch.Generator().manual_seed(4)

        def normal() -> torch.Tensor:
            return torch.randn(size, generator=generator, dtype=torch.float64)

        inputs = {"action": normal(), "mean": normal(), "var": 0.1 + normal().square()}
        inputs["std"] = 0.3 + torch.rand(size[1], generator=generator, dtype=torch.float64)
        old = {"old_mean": normal(), "old_std": 0.5 + 0.2 * normal().abs()}
        self.constants = {name: tensor.bfloat16().to(dtype) for name, tensor in old.items()}  # the same in every dtype
        return {name: tensor.to(dtype) for name, tensor in inputs.items()}

    def arguments(self, inputs):
        like = inputs["action"]
        constants = {name: tensor.to(like.dtype)[: like.shape[0]] for name, tensor in self.constants.items()}
        return {**inputs, **constants}

    def assert_each_output_alone_with_a_std_of_each_row(self) -> None:
        inputs = self.make_inputs((7, 29), torch.float32)
        inputs["std"] = inputs["std"].expand(7, -1) * torch.linspace(0.5, 2, 7)[:, None]
        for index in range(3):
            _, expected = run(lambda x, index=index: self.twin(x)[index], inputs)
            _, gradients = run(lambda x, index=index: self.call(x)[index], inputs)
            for name, gradient in gradients.items():
                value = torch.zeros_like(gradient) if expected[name] is None else expected[name]
                self.assert_near(f"output {index}, gradient of {name}", gradient, value)


class MlpMixtureLogProbCases(cases.MlpMixtureLogProbCase, DeviceBattery):
    sizes: ClassVar = {**cases.MlpMixtureLogProbCase.sizes, "large": (2, 70, 21, 69, 131, 67, 3)}
    test_gradient_through_one_output_alone = None  # there is one

    @pytest.mark.parametrize(("activation", "parameter"), [("elu", 0.5), ("relu", None), ("leaky_relu", 0.2)])
    def test_other_activations(self, activation, parameter):
        self.options = {"activation": activation, "activation_parameter": parameter}
        self.assert_true_to_reference(self.make_inputs(self.sizes["odd"], torch.float32), "odd")

    @pytest.mark.parametrize("widths", [(4,), (7, 4), (5, 6, 7, 8, 4)])
    def test_depths(self, widths):
        self.assert_true_to_reference(self.make_inputs((6, 9, 3, 2, *widths), torch.float32), "odd")
