from __future__ import annotations

from typing import ClassVar

import torch
from helpers.battery import run
from helpers.device_battery import DeviceBattery

import p3kernels
from p3kernels import reference


class TestGaussianHead(DeviceBattery):
    backend = "cuda"
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


def test_std_of_each_row_and_each_output_alone():
    battery = TestGaussianHead()
    inputs = battery.make_inputs((7, 29), torch.float32)
    inputs["std"] = inputs["std"].expand(7, -1) * torch.linspace(0.5, 2, 7)[:, None]
    for index in range(3):
        _, expected = run(lambda x, index=index: battery.twin(x)[index], inputs)
        _, gradients = run(lambda x, index=index: battery.call(x)[index], inputs)
        for name, gradient in gradients.items():
            value = torch.zeros_like(gradient) if expected[name] is None else expected[name]
            battery.assert_near(f"output {index}, gradient of {name}", gradient, value)


def test_is_the_trainers_parts():
    """The policy's own log_prob and entropy, and the KL divergence by torch's distributions."""
    inputs = TestGaussianHead().make_inputs((6, 4), torch.float64)
    old_mean, old_std = torch.randn(6, 4).double(), 0.5 + torch.rand(6, 4).double()
    log_prob, entropy, kl = p3kernels.gaussian_head(**inputs, old_mean=old_mean, old_std=old_std)
    new = torch.distributions.Normal(inputs["mean"], (inputs["var"] + inputs["std"].square()).sqrt())
    torch.testing.assert_close(log_prob, new.log_prob(inputs["action"]).sum(-1))
    torch.testing.assert_close(entropy, new.entropy().sum(-1))
    old = torch.distributions.Normal(old_mean, old_std)
    torch.testing.assert_close(kl, torch.distributions.kl_divergence(old, new).sum(-1))
