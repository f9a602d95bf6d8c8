"""Both estimators of the marginal policy: one contract, one actor, and the numbers each must give."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers.battery import BACKENDS
from torch import nn
from torch.distributions import Independent, Normal

import p3kernels
from p3kernels import MomentMatching, MonteCarlo
from p3kernels.nn import mlp_layers
from p3kernels.reference.latent_noise import SAMPLING

ROWS, CONTEXT, LATENT, ACTIONS = 6, 3, 2, 4
ESTIMATORS = [*(MomentMatching(backend=name) for name in BACKENDS), *(MonteCarlo(8, backend=name) for name in BACKENDS)]
SIGMAS = 6
"""Standard errors allowed to a sampled number: a false alarm in 5e8; the seed is fixed besides."""


def actor(activation: nn.Module | None = None, latent: int = LATENT) -> nn.Sequential:
    activation = nn.ELU() if activation is None else activation
    return nn.Sequential(nn.Linear(CONTEXT + latent, 8), activation, nn.Linear(8, ACTIONS)).double()


def inputs(latent: int = LATENT, rows: int = ROWS) -> dict[str, torch.Tensor]:
    return {
        "context": torch.randn(rows, CONTEXT).double(),
        "latent_mean": torch.randn(rows, latent).double(),
        "latent_std": 0.2 + torch.rand(rows, latent).double(),
        "action_std": 0.3 + torch.rand(ACTIONS).double(),
    }


def quadrature(network: nn.Sequential, named: dict[str, torch.Tensor], action: torch.Tensor | None = None):
    """Mean and variance of the actor's output over a 1-D latent, and log p(action), by the trapezoidal rule.

    On a Gaussian that reaches 10 std both ways, with 4001 points, its error is far below 1e-10.
    """
    nodes = torch.linspace(-10, 10, 4001, dtype=torch.float64)
    weights = torch.softmax(-0.5 * nodes.square(), 0)[:, None, None]
    latent = named["latent_mean"] + named["latent_std"] * nodes[:, None, None]
    means = network(torch.cat([named["context"].expand(4001, -1, -1), latent], -1)).detach()
    mean = (weights * means).sum(0)
    var = (weights * (means - mean).square()).sum(0)
    if action is None:
        return mean, var
    log_probs = Normal(means, named["action_std"]).log_prob(action).sum(-1)
    return torch.logsumexp(log_probs + weights[..., 0].log(), 0)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("row_std", [False, True])
def test_contract(estimator, row_std):
    named = inputs()
    if row_std:
        named["action_std"] = named["action_std"].expand(ROWS, ACTIONS) * torch.linspace(1, 2, ROWS)[:, None]
    policy = estimator.policy(actor(), **named)
    action = policy.sample()
    assert action.shape == policy.mean.shape == policy.stddev.shape == (ROWS, ACTIONS)
    assert not action.requires_grad
    assert not torch.equal(action, policy.sample())
    assert policy.log_prob(action).shape == policy.entropy().shape == (ROWS,)
    assert (policy.stddev >= named["action_std"]).all()
    for value in (action, policy.mean, policy.stddev, policy.log_prob(action), policy.entropy()):
        assert value.isfinite().all()
        assert value.dtype == torch.float64


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_gradients_reach_everything(estimator):
    network = actor()
    named = {name: tensor.requires_grad_() for name, tensor in inputs().items()}
    action = torch.randn(ROWS, ACTIONS).double().requires_grad_()
    estimator.policy(network, **named).log_prob(action).sum().backward()
    for name, tensor in {**named, **dict(network.named_parameters()), "action": action}.items():
        assert tensor.grad is not None, name
        assert tensor.grad.isfinite().all(), name
        assert tensor.grad.count_nonzero() > 0, name


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_gradients_of_mean_stddev_and_entropy(estimator):
    named = {name: tensor.requires_grad_() for name, tensor in inputs().items()}
    policy = estimator.policy(actor(), **named)
    assert torch.autograd.grad(policy.mean.sum(), named["latent_mean"], retain_graph=True)[0].count_nonzero() > 0
    assert torch.autograd.grad(policy.stddev.sum(), named["latent_std"], retain_graph=True)[0].count_nonzero() > 0
    assert torch.autograd.grad(policy.entropy().sum(), named["action_std"])[0].count_nonzero() > 0


def test_switching_estimators_changes_nothing():
    network, named = actor(), inputs()
    network.register_buffer("steps", torch.tensor(3))
    before, copies = copy.deepcopy(network.state_dict()), copy.deepcopy(named)
    action = torch.randn(ROWS, ACTIONS).double()
    first = MomentMatching().policy(network, **named).log_prob(action)
    for estimator in ESTIMATORS:
        policy = estimator.policy(network, **named)
        policy.sample(), policy.log_prob(action).sum().backward()
    assert list(network.state_dict()) == list(before)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    for name, value in named.items():
        assert torch.equal(value, copies[name]), name
    assert torch.equal(MomentMatching().policy(network, **named).log_prob(action), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_moment_matching_is_a_normal(backend):
    network, named = actor(), inputs()
    policy = MomentMatching(backend).policy(network, **named)
    layers = mlp_layers(network)
    observation = torch.cat([named["context"], named["latent_mean"]], -1)
    mean, var = p3kernels.mlp_moments(
        observation, named["latent_std"].square(), layers.weights, layers.biases, backend=backend
    )
    normal = Independent(Normal(mean, (var + named["action_std"].square()).sqrt()), 1)
    action = torch.randn(ROWS, ACTIONS).double()
    assert torch.equal(policy.mean, mean)
    # Float64 sums of four terms.
    torch.testing.assert_close(policy.stddev, normal.stddev, rtol=1e-14, atol=0)
    torch.testing.assert_close(policy.log_prob(action), normal.log_prob(action), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(policy.entropy(), normal.entropy(), rtol=1e-14, atol=1e-14)


def test_moment_matching_is_exact_through_one_hidden_layer():
    """One stochastic input into independent units is not exact in general; one unit is, so is its action's variance."""
    network = nn.Sequential(nn.Linear(CONTEXT + 1, 1), nn.ELU(), nn.Linear(1, ACTIONS)).double()
    named = inputs(latent=1)
    policy = MomentMatching().policy(network, **named)
    mean, var = quadrature(network, named)
    # The kink at 0 costs the trapezoidal rule its exponential accuracy: h² ≈ 2.5e-5 of a std times density.
    torch.testing.assert_close(policy.mean, mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(policy.stddev, (var + named["action_std"].square()).sqrt(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_a_certain_latent_is_the_plain_policy(estimator):
    """latent_std = 0: both estimators are N(actor([context, latent_mean]), action_std²)."""
    network, named = actor(), inputs()
    named["latent_std"] = torch.zeros_like(named["latent_std"])
    policy = estimator.policy(network, **named)
    mean = network(torch.cat([named["context"], named["latent_mean"]], -1))
    normal = Independent(Normal(mean, named["action_std"]), 1)
    action = torch.randn(ROWS, ACTIONS).double()
    torch.testing.assert_close(policy.mean, mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(policy.stddev, named["action_std"].expand(ROWS, -1), rtol=1e-12, atol=0)
    torch.testing.assert_close(policy.log_prob(action), normal.log_prob(action), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(policy.entropy(), normal.entropy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
def test_monte_carlo_approaches_the_exact_likelihood(sampling, backend):
    network, named = actor(latent=1), inputs(latent=1)
    action = torch.randn(ROWS, ACTIONS).double()
    exact = quadrature(network, named, action)
    errors = []
    for samples in (50, 20_000):
        policy = MonteCarlo(samples, sampling, backend).policy(network, **named)
        errors.append((policy.log_prob(action) - exact).abs())
    # The standard error of log(mean of w) is std(w) / (mean(w) √N); w's moments from a draw of its own.
    latent = named["latent_mean"] + named["latent_std"] * torch.randn(20_000, ROWS, 1).double()
    means = network(torch.cat([named["context"].expand(20_000, -1, -1), latent], -1))
    likelihood = Normal(means, named["action_std"]).log_prob(action).sum(-1).exp()
    error = (likelihood.std(0) / likelihood.mean(0)).detach() / math.sqrt(20_000)
    assert (errors[1] <= SIGMAS * error).all()
    assert errors[1].mean() < errors[0].mean()
    if sampling == "sobol":  # a 1-D smooth integrand: far better than √N
        assert (errors[1] <= 0.2 * error).all()


@pytest.mark.parametrize("estimator", [MomentMatching(), MonteCarlo(5)], ids=repr)
def test_samples_have_the_policys_mean_and_spread(estimator):
    """40,000 rows of one observation. Moment matching's are its own moments, Monte Carlo's those of quadrature."""
    count, network, named = 40_000, actor(latent=1), inputs(latent=1, rows=1)
    repeated = {name: value.repeat(count, 1) if value.dim() == 2 else value for name, value in named.items()}
    action = estimator.policy(network, **repeated).sample()
    if isinstance(estimator, MonteCarlo):
        mean, var = quadrature(network, named)
        var = var + named["action_std"].square()
    else:
        policy = estimator.policy(network, **named)
        mean, var = policy.mean, policy.stddev.square()
    assert ((action.mean(0) - mean).abs() <= SIGMAS * (var / count).sqrt()).all()
    kurtosis = (action - action.mean(0)).pow(4).mean(0) / action.var(0).square()
    assert ((action.var(0) - var).abs() <= SIGMAS * var * ((kurtosis - 1) / count).sqrt()).all()


def test_monte_carlo_mean_and_stddev_approach_quadrature():
    network, named, count = actor(latent=1), inputs(latent=1), 2000
    policy = MonteCarlo(count).policy(network, **named)
    mean, var = quadrature(network, named)
    assert ((policy.mean - mean).abs() <= SIGMAS * (var / count).sqrt()).all()
    spread = policy.stddev.square() - named["action_std"].square()
    # A variance's standard error is √((kurtosis − 1) / N) of it; ELU of a Gaussian through two layers stays below 15.
    assert ((spread - var).abs() <= SIGMAS * var * math.sqrt(14 / count)).all()
    assert torch.equal(policy.mean, policy.mean)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_policys_latents_are_its_own(sampling, backend):
    network, named = actor(), inputs()
    action = torch.randn(ROWS, ACTIONS).double()
    estimator = MonteCarlo(8, sampling, backend)
    policy = estimator.policy(network, **named)
    first = policy.log_prob(action)
    policy.sample()
    torch.manual_seed(99)
    assert torch.equal(policy.log_prob(action), first)
    assert (estimator.policy(network, **named).log_prob(action) != first).all()
    torch.manual_seed(5)
    one = estimator.policy(network, **named).log_prob(action)
    torch.manual_seed(5)
    assert torch.equal(estimator.policy(network, **named).log_prob(action), one)


def test_one_policy_for_both_sides_of_a_ratio():
    """Unchanged weights and one draw: the ratio of new to old likelihood is exactly 1."""
    network, named = actor(), inputs()
    policy = MonteCarlo(4).policy(network, **named)
    action = policy.sample()
    old = policy.log_prob(action).detach()
    assert torch.equal((policy.log_prob(action) - old).exp(), torch.ones(ROWS).double())


def test_monte_carlo_entropy_is_the_explorations():
    named = inputs()
    expected = Independent(Normal(torch.zeros(ACTIONS).double(), named["action_std"]), 1).entropy()
    got = MonteCarlo(3).policy(actor(), **named).entropy()
    torch.testing.assert_close(got, expected.expand(ROWS), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("module", [nn.ELU(0.5), nn.ReLU(), nn.LeakyReLU(0.2)], ids=repr)
def test_the_actors_activation_is_used(module):
    network, named = actor(module), inputs()
    action = torch.randn(ROWS, ACTIONS).double()
    for estimator in (MomentMatching, lambda backend: MonteCarlo(8, backend=backend)):
        torch.manual_seed(3)
        expected = estimator(backend="reference").policy(network, **named).log_prob(action)
        torch.manual_seed(3)
        got = estimator(backend="cpu").policy(network, **named).log_prob(action)
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)  # float64, the same draw
        torch.manual_seed(3)
        other = estimator(backend="cpu").policy(actor(), **named).log_prob(action)
        assert (other != got).any()


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_autocast_gives_float32(estimator):
    """An encoder under autocast hands over bfloat16; actor and action_std are float32."""
    network = actor().float()
    named = {name: value.float() for name, value in inputs().items()}
    low = {name: value if name == "action_std" else value.bfloat16() for name, value in named.items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        policy = estimator.policy(network, **low)
        action = policy.sample()
        results = [action, policy.mean, policy.stddev, policy.log_prob(action), policy.entropy()]
    assert [value.dtype for value in results] == [torch.float32] * 5
    assert all(value.isfinite().all() for value in results)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), r"num_samples: expected an integer >= 1, got 0"),
        ((2.5,), r"num_samples: expected an integer >= 1, got 2\.5"),
        ((True,), r"num_samples: expected an integer >= 1, got True"),
        ((3, "halton"), r"sampling: expected one of iid, antithetic, sobol, got 'halton'"),
    ],
)
def test_bad_estimator(arguments, message):
    with pytest.raises(ValueError, match=message):
        MonteCarlo(*arguments)


@pytest.mark.parametrize("estimator", [MomentMatching(), MonteCarlo()], ids=repr)
def test_a_network_that_is_no_actor(estimator):
    with pytest.raises(TypeError, match=r"actor\[1\]: expected Linear, ELU, ReLU or LeakyReLU, got Tanh"):
        estimator.policy(nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 4)), **inputs())


def test_defaults():
    assert MonteCarlo().num_samples == 15
    assert MonteCarlo().sampling == "iid"
