from __future__ import annotations

import math

import pytest
import torch
from helpers import layered
from helpers.bad_inputs import BAD_BACKENDS, bad, bad_tensor
from helpers.battery import BACKENDS, DTYPES, OpBattery, as_tuple, grouped, run
from helpers.cases import MlpMixtureLogProbCase
from helpers.memory import peak_bytes

import p3kernels
from p3kernels import reference
from p3kernels.layered import mlp_mixture_log_prob as kernel

BAD_SAMPLES = (
    bad("no samples", ValueError, r"num_samples: expected an integer >= 1, got 0", num_samples=0),
    bad("negative samples", ValueError, r"num_samples: expected an integer >= 1, got -3", num_samples=-3),
    bad("half a sample", ValueError, r"num_samples: expected an integer >= 1, got 1\.5", num_samples=1.5),
    bad("samples a bool", ValueError, r"num_samples: expected an integer >= 1, got True", num_samples=True),
    bad("samples of noise", ValueError, r"noise: expected shape \[5, 3, 2\], got \[7, 3, 2\]", num_samples=5),
    bad("noise 2-D", ValueError, r"noise: expected 3 dimensions, got shape \[3, 2\]", noise=lambda noise: noise[0]),
    bad("noise columns", ValueError, r"noise: expected shape \[7, 3, 2\], got \[7, 3, 1\]", noise=lambda n: n[..., :1]),
    bad("sampling", ValueError, r"sampling: expected one of iid, antithetic, sobol, got 'halton'", sampling="halton"),
    bad("seed a float", TypeError, r"seed: expected an integer, got float", seed=1.0),
    bad("seed a bool", TypeError, r"seed: expected an integer, got bool", seed=True),
    bad("seed a string", TypeError, r"seed: expected an integer, got str", seed="1"),
    bad("seed negative", ValueError, r"seed: expected 0 <= seed < 2\*\*63, got -1", seed=-1),
    bad("seed too large", ValueError, r"seed: expected 0 <= seed < 2\*\*63, got 9223372036854775808", seed=2**63),
    bad("seed of floats", TypeError, r"seed: expected one int64, got 1 of torch\.float32", seed=torch.zeros(1)),
    bad("two seeds", TypeError, r"seed: expected one int64, got 2 of torch\.int64", seed=torch.zeros(2).long()),
    bad("seed on meta", ValueError, r"seed: expected .*cpu.*meta", seed=torch.zeros(1).long().to("meta"), noise=None),
    bad("rows a list", TypeError, r"rows: expected a tensor of int64, got list", rows=[0, 1, 2], noise=None),
    bad("rows int32", TypeError, r"rows: expected int64, got int32", rows=torch.arange(3).int(), noise=None),
    bad("rows of floats", TypeError, r"rows: expected int64, got float32", rows=torch.zeros(3), noise=None),
    bad("too few rows", ValueError, r"rows: expected shape \[3\], got \[2\]", rows=torch.arange(2), noise=None),
    bad("rows 2-D", ValueError, r"rows: expected shape \[3\], got \[3, 1\]", rows=torch.zeros(3, 1).long(), noise=None),
    bad("rows on meta", ValueError, r"rows: .*device of action, cpu, got meta", rows=torch.arange(3).to("meta")),
    bad("rows negative", ValueError, r"rows: expected numbers >= 0, got -7", rows=torch.tensor([1, -7, 0]), noise=None),
    bad("rows and noise", ValueError, r"rows: expected None beside noise", rows=torch.arange(3)),
    bad("seed tensor negative", ValueError, r"seed: expected 0 <= seed.* got -5", seed=torch.tensor([-5]), noise=None),
)


class TestMlpMixtureLogProb(MlpMixtureLogProbCase, OpBattery):
    thread_invariant = False
    twice_differentiable = frozenset({"reference"})
    bad_inputs = (
        *BAD_BACKENDS,
        *BAD_SAMPLES,
        *bad_tensor("action", dimensions=2),
        *bad_tensor("context", like="action", dimensions=2),
        *bad_tensor("latent_mean", like="action", dimensions=2),
        *bad_tensor("latent_std", like="action", dimensions=2),
        *bad_tensor("std", like="action"),
        *bad_tensor("noise", like="action", dimensions=3),
        *layered.bad_layers("action", columns=5),
        bad("context rows", ValueError, r"context: expected 3 rows.*, got \[2, 3\]", context=lambda x: x[1:]),
        bad("latent rows", ValueError, r"latent_mean: expected 3 rows.*, got \[2, 2\]", latent_mean=lambda x: x[1:]),
        bad(
            "latent_std",
            ValueError,
            r"latent_std: expected shape \[3, 2\], got \[3, 1\]",
            latent_std=lambda x: x[:, 1:],
        ),
        bad("std shape", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[4\]", std=lambda std: std[1:]),
        bad(
            "actions",
            ValueError,
            r"weights\[2\]: expected 5 rows, one an action, got shape \[4, 5\]",
            weights=lambda weights: [*weights[:2], weights[2][:4]],
            biases=lambda biases: [*biases[:2], biases[2][:4]],
        ),
    )


class TestMlpMixtureLogProbRowStd(TestMlpMixtureLogProb):
    """std [B, A]."""

    row_std = True
    bad_inputs = (bad("std", ValueError, r"std: expected shape \[5\] or \[3, 5\], got \[5, 3\]", std=torch.Tensor.t),)


ACTIVATIONS = [("elu", None), ("elu", 0.5), ("relu", None), ("leaky_relu", 0.2)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("activation", "parameter"), ACTIVATIONS)
def test_is_the_expanded_computation(activation, parameter, backend):
    """A torch network run on every [context, z_i], and torch's mixture of Normals."""
    named = layered.policy_without_noise()
    noise = torch.randn(6, 9, 2, dtype=torch.float64)
    module = {"elu": torch.nn.ELU, "relu": torch.nn.ReLU, "leaky_relu": torch.nn.LeakyReLU}[activation]
    function = module() if parameter is None else module(parameter)
    hidden = torch.cat([named["context"].expand(6, 9, 3), named["latent_mean"] + named["latent_std"] * noise], -1)
    for index, (weight, bias) in enumerate(zip(named["weights"], named["biases"], strict=True)):
        hidden = torch.nn.functional.linear(hidden, weight, bias)
        hidden = function(hidden) if index < 2 else hidden
    components = torch.distributions.Normal(hidden, named["std"]).log_prob(named["action"]).sum(-1)
    got = p3kernels.mlp_mixture_log_prob(
        **named, num_samples=6, noise=noise, activation=activation, activation_parameter=parameter, backend=backend
    )
    # Float64, sums in another order.
    torch.testing.assert_close(got, components.logsumexp(0) - math.log(6), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("activation", "parameter"), ACTIVATIONS)
def test_gradcheck_with_activation(activation, parameter, backend):
    inputs = layered.policy((3, 2, 2, 2, 4, 2), torch.float64)

    def function(*tensors):
        named = grouped(dict(zip(inputs, tensors, strict=True)))
        options = {"activation": activation, "activation_parameter": parameter}
        return p3kernels.mlp_mixture_log_prob(**named, num_samples=3, backend=backend, **options)

    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("widths", [(4,), (7, 4)])
def test_few_layers_and_no_biases(widths, backend):
    inputs = layered.policy((6, 9, 3, 2, *widths), torch.float64)
    inputs = {name: tensor for name, tensor in inputs.items() if not name.startswith("biases")}
    none = [None] * len(widths)

    def on(backend):
        return lambda x: as_tuple(
            p3kernels.mlp_mixture_log_prob(**grouped(x), biases=none, num_samples=6, backend=backend)
        )

    def twin(x):
        return as_tuple(reference.mlp_mixture_log_prob(**grouped(x), biases=none))

    TestMlpMixtureLogProb().assert_same(run(on(backend), inputs), run(twin, inputs), bitwise=False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("context", "latent"), [(0, 4), (4, 0)])
def test_without_context_or_latent(context, latent, backend):
    inputs = layered.policy((6, 9, context, latent, 7, 3), torch.float64)
    battery = TestMlpMixtureLogProb()
    outputs, gradients = run(battery.on(backend), inputs)
    expected, expected_gradients = run(battery.twin, inputs)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)  # float64, sums in another order
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-11, atol=1e-12, msg=name)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_more_samples_than_a_tile_holds(dtype):
    inputs = layered.policy((5000, 3, 3, 2, 7, 5), dtype)
    assert inputs["noise"].shape[0] > kernel.TILE_ROWS
    battery = TestMlpMixtureLogProb()
    exact, exact_gradients = run(battery.twin, layered.cast(inputs, torch.float64))
    outputs, gradients = run(battery.on("cpu"), inputs)
    battery.assert_near("log_prob", outputs[0], exact[0])
    for name, gradient in gradients.items():
        battery.assert_near(f"gradient of {name}", gradient, exact_gradients[name])


@pytest.mark.parametrize("budget", [0, 2000 * 4, 5000 * 20 * 4, 8515 * 13 * 4 + 4])
def test_what_is_kept_for_the_backward_pass_changes_nothing(budget, monkeypatch):
    """Hidden activations kept whole, in part or not at all: the same numbers, to the rounding of matrix products.

    Not to the last bit on every machine: a BLAS may round a product differently where its operands begin at another
    alignment, and what is kept lies elsewhere than the scratch buffers.
    """
    battery = TestMlpMixtureLogProb()
    inputs = battery.make_inputs(battery.sizes["large"], torch.float32)
    expected = run(battery.on("cpu"), inputs)
    monkeypatch.setattr(kernel, "KEPT_BYTES", budget)
    battery.assert_same(run(battery.on("cpu"), inputs), expected, bitwise=False)


def peak(num_samples: int, backend: str, gradients: bool) -> int:
    named = layered.policy_without_noise((1, 1024, 8, 4, 32, 32, 4), torch.float32)
    if gradients:
        named = {
            name: [item.requires_grad_() for item in value] if isinstance(value, list) else value.requires_grad_()
            for name, value in named.items()
        }

    def call() -> None:
        out = p3kernels.mlp_mixture_log_prob(**named, num_samples=num_samples, seed=1, backend=backend)
        if gradients:
            out.sum().backward()

    return peak_bytes(call)


def test_memory_is_flat_in_the_number_of_samples(monkeypatch):
    assert peak(50, "cpu", gradients=False) <= 1.2 * peak(5, "cpu", gradients=False)
    # With gradients, activations are kept within a budget that does not depend on N, and nothing beyond it.
    assert peak(50, "cpu", gradients=True) <= 1.2 * peak(5, "cpu", gradients=True) + kernel.KEPT_BYTES
    monkeypatch.setattr(kernel, "KEPT_BYTES", 0)
    assert peak(50, "cpu", gradients=True) <= 1.2 * peak(5, "cpu", gradients=True)
    # The measure sees growth where there is some: the expanded computation.
    assert peak(50, "reference", gradients=True) > 5 * peak(5, "reference", gradients=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_without_likelihood(backend):
    """−inf, and the other rows' gradients are as if it were not there."""
    named = layered.policy_without_noise()
    named["action"][2] = 1e200
    named["std"].requires_grad_()
    got = p3kernels.mlp_mixture_log_prob(**named, num_samples=6, seed=3, backend=backend)
    assert got[2] == -math.inf
    (gradient,) = torch.autograd.grad(got, named["std"], torch.ones_like(got))
    assert gradient.isfinite().all()
    assert gradient.count_nonzero() > 0


def test_values_are_checked_on_request(monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", "1")
    for name in ("latent_std", "std"):
        named = layered.policy_without_noise()
        named[name].view(-1)[1] = -1.0
        with pytest.raises(ValueError, match=rf"{name}: expected values >= 0, got 1 that are not, the first -1\.0"):
            p3kernels.mlp_mixture_log_prob(**named, num_samples=2)
