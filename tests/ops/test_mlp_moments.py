from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from helpers import layered
from helpers.bad_inputs import BAD_BACKENDS, bad_tensor
from helpers.battery import BACKENDS, OpBattery, grouped
from helpers.cases import MlpMomentsCase

import p3kernels


class TestMlpMoments(MlpMomentsCase, OpBattery):
    sizes: ClassVar = {
        **MlpMomentsCase.sizes,
        "large": (2 * 2048 + 3, 11, 7, 13, 7, 5),
    }  # above CHUNK_ROWS, with a rest
    thread_invariant = False
    twice_differentiable = frozenset({"reference"})
    compile_backend = "inductor"
    bad_inputs = (
        *BAD_BACKENDS,
        *bad_tensor("mean", dimensions=2),
        *bad_tensor("var", like="mean", dimensions=2),
        *layered.bad_moments(3, 5),
        *layered.bad_layers("mean", columns=5),
    )


ACTIVATIONS = [("elu", None), ("elu", 0.5), ("relu", None), ("leaky_relu", None), ("leaky_relu", 0.2)]
MODULES = {"elu": torch.nn.functional.elu, "relu": lambda x, *_: x.relu(), "leaky_relu": torch.nn.functional.leaky_relu}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("activation", "parameter"), ACTIVATIONS)
def test_is_layer_after_layer(activation, parameter, backend):
    generator = torch.Generator().manual_seed(4)
    named = layered.moments(generator, 17, 6, 4)
    network = grouped(layered.layers(generator, (6, 9, 8, 3)))
    got = p3kernels.mlp_moments(
        **named, **network, activation=activation, activation_parameter=parameter, backend=backend
    )
    op = getattr(p3kernels, f"{activation}_moments")
    mean, var = named["mean"], named["var"]
    for index, (weight, bias) in enumerate(zip(network["weights"], network["biases"], strict=True)):
        mean, var = p3kernels.linear_moments(mean, var, weight, bias)
        if index < 2:
            mean, var = op(mean, var, *([] if parameter is None else [parameter]), backend=backend)
    # Float64: the same mathematics in another order of sums.
    torch.testing.assert_close(got[0], mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(got[1], var, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("activation", "parameter"), ACTIVATIONS)
def test_gradcheck_with_activation(activation, parameter, backend):
    generator = torch.Generator().manual_seed(4)
    inputs = layered.moments(generator, 2, 3, 2) | layered.layers(generator, (3, 4, 2))
    inputs["var"] *= 0.2  # near zero, not at it

    def function(*tensors):
        named = grouped(dict(zip(inputs, tensors, strict=True)))
        return p3kernels.mlp_moments(**named, activation=activation, activation_parameter=parameter, backend=backend)

    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("activation", MODULES)
def test_zero_variance_is_the_network(activation, backend):
    generator = torch.Generator().manual_seed(4)
    mean = torch.randn(17, 6, dtype=torch.float64, generator=generator)
    network = grouped(layered.layers(generator, (6, 9, 3)))
    weights, biases = network["weights"], network["biases"]
    for columns in (0, 6):
        out_mean, out_var = p3kernels.mlp_moments(
            mean, torch.zeros(17, columns, dtype=torch.float64), weights, biases, activation, backend=backend
        )
        hidden = MODULES[activation](torch.nn.functional.linear(mean, weights[0], biases[0]))
        torch.testing.assert_close(
            out_mean, torch.nn.functional.linear(hidden, weights[1], biases[1]), rtol=1e-12, atol=1e-14
        )
        assert torch.equal(out_var, torch.zeros_like(out_var))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_layer_is_linear_moments(backend):
    mean, var, weight = torch.randn(7, 5), torch.rand(7, 5), torch.randn(3, 5)
    got = p3kernels.mlp_moments(mean, var, [weight], [None], backend=backend)
    for out, expected in zip(got, p3kernels.linear_moments(mean, var, weight), strict=True):
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-6)  # order of a five-term sum


@pytest.mark.parametrize("backend", BACKENDS)
def test_missing_biases_are_zeros(backend):
    generator = torch.Generator().manual_seed(4)
    named = layered.cast(layered.moments(generator, 5, 6, 4), torch.float32)
    weights = grouped(layered.cast(layered.layers(generator, (6, 9, 3)), torch.float32))["weights"]
    bias = torch.randn(9)
    without = p3kernels.mlp_moments(**named, weights=weights, biases=[bias, None], backend=backend)
    zeros = p3kernels.mlp_moments(**named, weights=weights, biases=[bias, torch.zeros(3)], backend=backend)
    for got, expected in zip(without, zeros, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # adding 0 may change the product's routine


def test_one_tensor_as_two_weights_gets_both_gradients():
    mean, var = torch.randn(7, 5, dtype=torch.float64), torch.rand(7, 5, dtype=torch.float64)
    gradients = []
    for backend in BACKENDS:
        weight = (torch.ones(5, 5, dtype=torch.float64) / 4 - torch.eye(5, dtype=torch.float64)).requires_grad_()
        out_mean, out_var = p3kernels.mlp_moments(mean, var, [weight, weight], [None, None], backend=backend)
        (out_mean.sum() + out_var.sum()).backward()
        gradients.append(weight.grad)
    assert gradients[0].count_nonzero() > 0
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-13)


def test_first_layer_variance_is_exact_by_sampling():
    """Independent inputs: one hidden layer's units have the moments of samples; only later layers approximate."""
    generator = torch.Generator().manual_seed(8)
    named, count = layered.moments(generator, 1, 6, 4), 400_000
    network = grouped(layered.layers(generator, (6, 5, 5)))
    identity = [network["weights"][0], torch.eye(5, dtype=torch.float64)]
    out_mean, out_var = p3kernels.mlp_moments(**named, weights=identity, biases=[network["biases"][0], None])
    x = named["mean"].repeat(count, 1)
    x[:, 2:] += named["var"].sqrt() * torch.randn(count, 4, dtype=torch.float64, generator=generator)
    y = torch.nn.functional.elu(torch.nn.functional.linear(x, network["weights"][0], network["biases"][0]))
    # 5 standard errors; that of a variance is √((kurtosis − 1) / n), with the samples' own kurtosis.
    assert ((y.mean(0) - out_mean[0]).abs() <= 5 * (out_var[0] / count).sqrt()).all()
    fourth = (y - y.mean(0)).pow(4).mean(0) / y.var(0).square()
    assert ((y.var(0) - out_var[0]).abs() <= 5 * out_var[0] * ((fourth - 1) / count).sqrt()).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_inputs_stay_finite(backend):
    layered.assert_extreme_moments_are_finite(backend)


def test_values_are_checked_on_request(monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", "1")
    var = torch.ones(4, 2)
    var[3, 1] = -1.0
    for call in (
        lambda: p3kernels.mlp_moments(torch.zeros(4, 2), var, [torch.eye(2)], [None]),
        lambda: p3kernels.linear_moments(torch.zeros(4, 2), var, torch.eye(2)),
        lambda: p3kernels.linear_elu_moments(torch.zeros(4, 2), var, torch.eye(2)),
    ):
        with pytest.raises(ValueError, match=r"var: expected values >= 0, got 1 that are not, the first -1\.0"):
            call()
