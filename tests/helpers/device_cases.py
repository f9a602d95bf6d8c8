"""The cases of helpers/cases.py on the backends for GPUs, of sizes that are above their blocks and no larger."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from helpers import cases
from helpers.device_battery import DeviceBattery


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
