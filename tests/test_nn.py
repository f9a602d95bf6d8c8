"""Networks read as MLPs, and moments through them."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers.battery import BACKENDS
from torch import nn

import p3kernels
from p3kernels.nn import MomentMLP, mlp_layers


def network(activation: nn.Module | None = None, *, bias: bool = True) -> nn.Sequential:
    activation = nn.ELU() if activation is None else activation
    return nn.Sequential(
        nn.Linear(5, 7, bias=bias),
        activation,
        nn.Identity(),
        nn.Linear(7, 6),
        copy.deepcopy(activation),
        nn.Linear(6, 3),
    )


ACTIVATIONS = [
    (nn.ELU(), "elu", 1.0),
    (nn.ELU(0.5), "elu", 0.5),
    (nn.ReLU(), "relu", None),
    (nn.LeakyReLU(), "leaky_relu", 0.01),
    (nn.LeakyReLU(0.2), "leaky_relu", 0.2),
]


@pytest.mark.parametrize(("module", "name", "parameter"), ACTIVATIONS)
def test_layers_are_the_networks_own(module, name, parameter):
    actor = network(module)
    layers = mlp_layers(actor)
    assert (layers.activation, layers.activation_parameter) == (name, parameter)
    linear = [child for child in actor if isinstance(child, nn.Linear)]
    assert len(layers.weights) == 3
    for weight, bias, child in zip(layers.weights, layers.biases, linear, strict=True):
        assert weight is child.weight
        assert bias is child.bias


def test_a_layer_without_bias():
    assert mlp_layers(network(bias=False)).biases[0] is None


def test_a_single_linear_layer():
    layers = mlp_layers(nn.Sequential(nn.Linear(3, 2)))
    assert len(layers.weights) == 1


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (nn.Linear(3, 2), TypeError, r"actor: expected an nn\.Sequential, got Linear"),
        (nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1)), TypeError, r"actor\[1\]: expected .* got Tanh"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(), nn.Linear(2, 1)), TypeError, r"actor\[1\]: .* got Dropout"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)),
            ValueError,
            r"actor\[1\]: expected an activation here, got Linear",
        ),
        (nn.Sequential(nn.ELU(), nn.Linear(2, 1)), ValueError, r"actor\[0\]: expected a Linear here, got ELU"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ELU(), nn.ELU(), nn.Linear(2, 1)),
            ValueError,
            r"actor\[2\]: expected a Linear here, got ELU",
        ),
        (nn.Sequential(nn.Linear(3, 2), nn.ELU()), ValueError, r"actor: expected the last layer to be a Linear"),
        (nn.Sequential(), ValueError, r"actor: expected the last layer to be a Linear"),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ELU(), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)),
            ValueError,
            r"actor\[3\]: expected the activation of the layers before, \('elu', 1\.0\), got \('relu', None\)",
        ),
        (
            nn.Sequential(nn.Linear(3, 2), nn.ELU(), nn.Linear(2, 2), nn.ELU(0.5), nn.Linear(2, 1)),
            ValueError,
            r"actor\[3\]: expected the activation of the layers before, \('elu', 1\.0\), got \('elu', 0\.5\)",
        ),
    ],
)
def test_a_network_that_is_no_mlp(wrong, error, message):
    with pytest.raises(error, match=message):
        mlp_layers(wrong)
    with pytest.raises(error, match=message):
        MomentMLP(wrong)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("module", "name", "parameter"), ACTIVATIONS)
def test_moment_mlp_is_the_op(module, name, parameter, backend):
    actor = network(module)
    mean, var = torch.randn(11, 5), torch.rand(11, 2)
    layers = mlp_layers(actor)
    expected = p3kernels.mlp_moments(mean, var, layers.weights, layers.biases, name, parameter, backend=backend)
    for got, value in zip(MomentMLP(actor, backend=backend)(mean, var), expected, strict=True):
        assert torch.equal(got, value)


def test_parameters_are_shared_and_unchanged():
    actor = network()
    before = copy.deepcopy(actor.state_dict())
    moments = MomentMLP(actor)
    assert set(moments.state_dict()) == {f"network.{key}" for key in before}
    assert [id(parameter) for parameter in moments.parameters()] == [id(parameter) for parameter in actor.parameters()]
    mean, var = moments(torch.randn(11, 5), torch.rand(11, 5))
    (mean.sum() + var.sum()).backward()
    for name, parameter in actor.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.grad.count_nonzero() > 0, name


def test_a_changed_network_is_seen():
    """Layers are read at every call: weights replaced after construction count."""
    actor = network()
    moments = MomentMLP(actor)
    actor[0] = nn.Linear(5, 7)
    mean = torch.randn(4, 5)
    # Deterministic inputs: the network itself, to float32 rounding.
    torch.testing.assert_close(moments(mean, torch.zeros(4, 0))[0], actor(mean), rtol=1e-5, atol=1e-6)


def test_wrong_input_names_the_argument():
    with pytest.raises(ValueError, match=r"weights\[0\]: expected 4 columns, got shape \[7, 5\]"):
        MomentMLP(network())(torch.zeros(2, 4), torch.zeros(2, 4))
