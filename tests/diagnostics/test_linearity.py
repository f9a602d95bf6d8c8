"""`linearity`: 1 for a line, and what a regression gives for a kink."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.linear_policies import policy
from torch import nn

from p3kernels.diagnostics import LatentPolicy, linearity


def kinked(second: float) -> LatentPolicy:
    """a = relu(z) + second · relu(-z), from z = 0, one latent with std 1."""
    network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[0.0, 1.0], [0.0, -1.0]]))
        network[0].bias.zero_()
        network[2].weight.copy_(torch.tensor([[1.0, second]]))
    zeros = torch.zeros(4, 1, dtype=torch.float64)
    return LatentPolicy(network, zeros, zeros, zeros + 1, torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize("radius", ["unit", "typical"])
def test_a_linear_actor_is_linear(radius):
    found = linearity(*policy(), directions=5, radius=radius, seed=1)
    assert found.r_squared == pytest.approx(1, abs=1e-12)
    assert found.worst == pytest.approx(1, abs=1e-12)
    assert len(found.per_action) == 3


@pytest.mark.parametrize("points", [50, 7])
@pytest.mark.parametrize("second", [0.0, 1.0, -0.5, -1.0])
def test_a_kink_is_as_a_regression_has_it(second, points):
    steps = np.linspace(-2, 2, points)
    output = np.maximum(steps, 0) + second * np.maximum(-steps, 0)
    left = output - np.polyval(np.polyfit(steps, output, 1), steps)
    expected = 1 - left.var() / output.var()
    found = linearity(*kinked(second), directions=10, points=points, radius="unit", seed=1)
    # Directions are ±1: R² of a kink is the same from both sides.
    assert found.r_squared == pytest.approx(expected, abs=1e-9)


def test_longer_directions_are_less_linear():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(22, 16), nn.ELU(), nn.Linear(16, 3)).double()
    zeros = torch.zeros(8, 2, dtype=torch.float64)
    one = LatentPolicy(network, zeros, torch.zeros(8, 20).double(), torch.ones(8, 20).double(), torch.ones(3).double())
    unit, typical = (linearity(*one, directions=20, radius=radius, seed=1) for radius in ("unit", "typical"))
    assert 1 > unit.r_squared > typical.r_squared > typical.worst


def test_a_constant_is_linear():
    one = policy()
    found = linearity(*one._replace(latent_std=torch.zeros_like(one.latent_std)), directions=3, seed=1)
    assert found.r_squared == 1


def test_mistakes_are_named():
    for options, message in (
        ({"radius": "round"}, "radius: expected one of unit, typical"),
        ({"points": 2}, "points: expected an integer >= 3"),
        ({"directions": 0}, "directions: expected an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            linearity(*policy(), **options)
