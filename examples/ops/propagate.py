"""Uncertain inputs through a network: mean and variance of its outputs in closed form, held against sampling.

python examples/ops/propagate.py
"""

from __future__ import annotations

import torch

import p3kernels


def main() -> None:
    """Prints the moments by three ways, and the gradient of an uncertainty with respect to an input's."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(8, 64), torch.nn.ELU(), torch.nn.Linear(64, 64), torch.nn.ELU(), torch.nn.Linear(64, 2)
    )
    layers = [layer for layer in network if isinstance(layer, torch.nn.Linear)]
    weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
    mean, var = torch.randn(1, 8), torch.full((1, 8), 0.25)

    with torch.no_grad():
        matched_mean, matched_var = p3kernels.mlp_moments(mean, var, weights, biases)
        covariant_mean, covariance = p3kernels.mlp_covariance(mean, var, weights, biases)
        samples = network(mean + var.sqrt() * torch.randn(200_000, 8))
    print("outputs of a network whose inputs have a standard deviation of 0.5")
    print(f"  {'':<22}{'mean':>20}{'variance':>20}")
    for name, means, variances in (
        ("moment matching", matched_mean[0], matched_var[0]),
        ("covariance matching", covariant_mean[0], covariance[0].diagonal()),
        ("200,000 samples", samples.mean(0), samples.var(0)),
    ):
        print(f"  {name:<22}{_numbers(means):>20}{_numbers(variances):>20}")

    # Everything is differentiable: which input's uncertainty matters most to the first output?
    var.requires_grad_()
    p3kernels.mlp_covariance(mean, var, weights, biases)[1][0, 0, 0].backward()
    assert var.grad is not None
    print(f"  d variance[0] / d var: {_numbers(var.grad[0])}")


def _numbers(values: torch.Tensor) -> str:
    return " ".join(f"{value:8.4f}" for value in values.tolist())


if __name__ == "__main__":
    main()
