from __future__ import annotations

import torch
from helpers.device_cases import GaussianHeadCases

import p3kernels


class TestGaussianHead(GaussianHeadCases):
    backend = "cuda"


def test_std_of_each_row_and_each_output_alone():
    TestGaussianHead().assert_each_output_alone_with_a_std_of_each_row()


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
