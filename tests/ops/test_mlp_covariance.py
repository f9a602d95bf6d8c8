from __future__ import annotations

import itertools
import math
from typing import ClassVar

import pytest
import torch
from helpers import layered
from helpers.bad_inputs import BAD_BACKENDS, bad, bad_tensor
from helpers.battery import BACKENDS, OpBattery, grouped, run
from helpers.cases import NetworkCase
from torch.autograd import gradcheck

import p3kernels
from p3kernels import reference
from p3kernels.activations import ELU
from p3kernels.layered import mlp_covariance as kernel
from p3kernels.layered.workspace import Workspace
from p3kernels.records import Backward, MlpCovarianceInputs
from p3kernels.reference.mlp_covariance import latent_directions


def direction(count: int, dtype: torch.dtype) -> torch.Tensor:
    """[J, 1]: one that all inputs share."""
    return torch.full((count, 1), 1 / math.sqrt(max(count, 1)), dtype=dtype)


inputs_of = NetworkCase().make_inputs


class TestMlpCovariance(NetworkCase, OpBattery):
    """With correlation along one direction of the inputs; the other ways of calling it are below."""

    op = p3kernels.mlp_covariance
    reference = reference.mlp_covariance
    sizes: ClassVar = {**NetworkCase.sizes, "large": (2 * 409 + 3, 11, 7, 13, 7, 5)}  # above a tile of 2048 // 5 rows
    # mlp_moments' 128, three more layers of products on the way back, and residuals that are differences: beside a
    # linear part that happens to cancel between units their rounding shows.
    rounding = 1024
    thread_invariant = False
    opchecked: ClassVar = ({}, {"transform": "unscented", "directions": None})
    bad_inputs = (
        *BAD_BACKENDS,
        *bad_tensor("mean", dimensions=2),
        *bad_tensor("var", like="mean", dimensions=2),
        *bad_tensor("directions", like="mean", dimensions=2),
        *layered.bad_moments(3, 5),
        *layered.bad_layers("mean", columns=5),
        bad("transform", ValueError, r"transform: expected one of linear, unscented, got 'cut'", transform="cut"),
        bad(
            "rows of directions",
            ValueError,
            r"directions: expected shape \[3, K\] with K <= 3",
            directions=torch.eye(4),
        ),
        bad("too many directions", ValueError, r"directions: .* got \[3, 4\]", directions=torch.ones(3, 4)),
        bad("directions of points", ValueError, r"directions: only for transform 'linear'", transform="unscented"),
    )

    def arguments(self, inputs):
        var = inputs["var"]
        dtype = torch.float32 if var.dtype == torch.bfloat16 else var.dtype
        return {**super().arguments(inputs), "directions": direction(var.shape[1], dtype)}

    def test_compile_fullgraph(self, backend):
        """The network has a layer less than elsewhere: compiling takes long, most of all the reference."""
        self.sizes = {**self.sizes, "odd": self.sizes["odd"][:-1]}
        super().test_compile_fullgraph(backend)


ACTIVATIONS = [("elu", None), ("relu", None), ("leaky_relu", 0.2)]
DEPTHS = {"no hidden layer": (3,), "one": (7, 3), "two": (7, 5, 3), "three, one action": (7, 5, 4, 1)}


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda pair: pair[0])
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("stochastic", [0, 3, 5])
@pytest.mark.parametrize("transform", ["linear", "unscented"])
def test_cpu_is_the_reference_along_all_directions(transform, stochastic, depth, activation):
    rows = 4 if transform == "linear" else 2 * (4096 // 10) + 3  # above the points' tile
    inputs = inputs_of((rows, 5, stochastic, *DEPTHS[depth]))
    results = [
        run(
            lambda named, backend=backend: p3kernels.mlp_covariance(
                **grouped(named), activation=activation[0], activation_parameter=activation[1], backend=backend
            ),
            inputs,
        )
        for backend in BACKENDS
    ]
    (outputs, gradients), (others, other_gradients) = results
    pairs = [*zip(outputs, others, strict=True), *zip(gradients.values(), other_gradients.values(), strict=True)]
    for ours, theirs in pairs:
        if ours is None:  # not in the reference's graph
            assert theirs.count_nonzero() == 0
        else:
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-11)  # sums over a thousand rows


@pytest.mark.parametrize("transform", ["linear", "unscented"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_along_all_directions(backend, transform):
    inputs = inputs_of((2, 3, 2, 4, 3, 2))
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]

    def function(*tensors):
        named = grouped(dict(zip(inputs, tensors, strict=True)))
        return p3kernels.mlp_covariance(**named, transform=transform, backend=backend)

    assert gradcheck(function, leaves)


@pytest.mark.parametrize("transform", ["linear", "unscented"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_network_is_exact(backend, transform):
    """LeakyReLU of slope 1 is the identity: the covariance is M diag(var) Mᵀ, M the product of the weights."""
    named = grouped(inputs_of((4, 6, 4, 9, 8, 7, 3)))
    mean, covariance = p3kernels.mlp_covariance(
        **named, activation="leaky_relu", activation_parameter=1.0, transform=transform, backend=backend
    )
    hidden = named["mean"]
    for weight, bias in zip(named["weights"], named["biases"], strict=True):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
    product = torch.linalg.multi_dot(named["weights"][::-1])[:, 2:]
    torch.testing.assert_close(mean, hidden, rtol=1e-12, atol=1e-12)
    dense = (product * named["var"][:, None]) @ product.t()
    torch.testing.assert_close(covariance, dense, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("transform", ["linear", "unscented"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_zero_variance_is_the_network_itself(backend, transform):
    named = grouped(inputs_of((4, 6, 4, 9, 8, 3)))
    named["var"] = torch.zeros_like(named["var"]).requires_grad_()
    mean, covariance = p3kernels.mlp_covariance(**named, transform=transform, backend=backend)
    hidden = named["mean"]
    for weight, bias in itertools.islice(zip(named["weights"], named["biases"], strict=True), 2):
        hidden = torch.nn.functional.elu(torch.nn.functional.linear(hidden, weight, bias))
    torch.testing.assert_close(mean, torch.nn.functional.linear(hidden, named["weights"][2], named["biases"][2]))
    assert covariance.abs().max() <= 1e-25  # what the smallest variance under a square root leaves
    (gradient,) = torch.autograd.grad(covariance.sum() + mean.sum(), named["var"])
    assert gradient.isfinite().all()
    assert gradient.count_nonzero() > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_hidden_layers_variances_are_moment_matchings(backend):
    """Independent inputs: the first layer's units have exact moments, and their correlation is what is new."""
    named = grouped(inputs_of((4, 6, 4, 9, 3)))
    identity = {**named, "weights": [named["weights"][0], torch.eye(9, dtype=torch.float64)], "biases": [None, None]}
    mean, covariance = p3kernels.mlp_covariance(**identity, backend=backend)
    expected = p3kernels.mlp_moments(**identity, backend=backend)
    torch.testing.assert_close(mean, expected[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(covariance.diagonal(dim1=1, dim2=2), expected[1], rtol=1e-11, atol=1e-13)
    assert (covariance - torch.diag_embed(expected[1])).abs().max() > 0.1


@pytest.mark.parametrize("backend", BACKENDS)
def test_covariance_is_symmetric_and_positive(backend):
    named = grouped(inputs_of((64, 9, 7, 16, 12, 6), torch.float32))
    for scale in (1e-6, 1.0, 100.0):
        _, covariance = p3kernels.mlp_covariance(**{**named, "var": scale * named["var"]}, backend=backend)
        size = covariance.diagonal(dim1=1, dim2=2).amax(1)
        assert ((covariance - covariance.mT).abs().amax((1, 2)) <= 1e-5 * size).all()
        assert (torch.linalg.eigvalsh(covariance.double())[:, 0] >= -1e-5 * size).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_inputs_stay_finite(backend):
    tensors, network = layered.extreme()
    outputs = p3kernels.mlp_covariance(*tensors, **network, backend=backend)
    for tensor in (*outputs, *torch.autograd.grad([out.sum() for out in outputs], tensors)):
        assert tensor.isfinite().all()


def test_memory_of_rows_does_not_grow_with_the_batch(monkeypatch):
    """The largest thing between the layers is a tile's."""
    sizes, take = [], Workspace.take

    def counted(self, name, *shape):
        sizes.append(math.prod(shape))
        return take(self, name, *shape)

    monkeypatch.setattr(Workspace, "take", counted)
    named = grouped(inputs_of((3000, 6, 4, 9, 8, 3), torch.float32))
    inputs = MlpCovarianceInputs(**named, directions=torch.eye(4), activation_code=ELU, activation_parameter=1.0)
    out = kernel.forward(inputs)
    kernel.backward(Backward(inputs, out, out, frozenset(named)))
    # Rows of 3 actions and tangents of 4 directions fit a tile; the units' shared curvature has 8² numbers a row.
    tile = kernel.TILE_ROWS // 5
    assert 0 < max(sizes) <= max(kernel.TILE_ROWS * 9, tile * 8 * 8)


def test_directions_are_the_strongest_of_the_first_two_layers():
    weights = list(grouped(inputs_of((1, 9, 7, 12, 10, 3)))["weights"])
    directions = latent_directions(weights, 7, 2)
    product = weights[1] @ weights[0][:, 2:]
    torch.testing.assert_close(directions.t() @ directions, torch.eye(2, dtype=torch.float64))
    passed = (product @ directions).norm()
    strongest = torch.linalg.svdvals(product)[:2].norm()
    torch.testing.assert_close(passed, strongest)
    assert latent_directions(weights, 7, 7) is None
    assert latent_directions(weights[:2], 7, 2) is None
