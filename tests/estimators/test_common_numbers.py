"""`MonteCarlo` with common random numbers: latents that a seed and the rows' numbers name."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers.battery import BACKENDS
from torch import Tensor, nn

import p3kernels
from p3kernels import MonteCarlo
from p3kernels.reference.latent_noise import SAMPLING, latent_noise

ROWS, CONTEXT, LATENT, ACTIONS = 37, 3, 5, 4
SEED = 2**61 + 3
SAMPLES = (1, 2, 15)


def actor(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(CONTEXT + LATENT, 16), nn.ELU(), nn.Linear(16, 8), nn.ELU(), nn.Linear(8, ACTIONS)
    return nn.Sequential(*layers).to(dtype)


def inputs(dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """context, latent_mean, latent_std, action_std [B, A]."""
    torch.manual_seed(1)
    sizes = (CONTEXT, LATENT, LATENT, ACTIONS)
    context, mean, std, action_std = (torch.randn(ROWS, size, dtype=dtype) for size in sizes)
    return context, mean, 0.3 + std.abs(), 0.2 + action_std.abs()


def part_of(tensors: tuple[Tensor, ...], part: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor[part] for tensor in tensors)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("samples", SAMPLES)
def test_unchanged_weights_have_a_log_ratio_of_zero(samples, sampling, backend):
    network, named, action = actor(), inputs(), torch.randn(ROWS, ACTIONS)
    estimator = MonteCarlo(samples, sampling, backend, common=True)
    old = estimator.policy(network, *named, seed=SEED).log_prob(action)
    order = torch.randperm(ROWS)
    for part in order.split(10):
        new = estimator.policy(network, *part_of(named, part), seed=SEED, rows=part).log_prob(action[part])
        assert (new - old[part]).abs().max() <= 1e-5
    fresh = estimator.policy(network, *named).log_prob(action)
    assert (fresh - old).abs().max() > 1e-3


@pytest.mark.parametrize("samples", SAMPLES)
def test_the_ratio_is_the_self_normalised_estimate(samples):
    """Σ w_i ρ_i with w_i = p_old(a | z_i) / Σ p_old and ρ_i = p_new / p_old at the same noise, written out."""
    network, named = actor(torch.float64), inputs(torch.float64)
    changed = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    action = torch.randn(ROWS, ACTIONS, dtype=torch.float64)
    rows = torch.randperm(1000)[:ROWS]
    estimator = MonteCarlo(samples, common=True)
    old, new = (estimator.policy(net, *named, seed=SEED, rows=rows).log_prob(action) for net in (network, changed))

    context, mean, std, action_std = named
    latent = mean + std * latent_noise(SEED, samples, rows, LATENT, dtype=torch.float64)
    stacked = torch.cat([context.expand(samples, -1, -1), latent], -1)
    component = [
        torch.distributions.Normal(net(stacked), action_std).log_prob(action).sum(-1) for net in (network, changed)
    ]
    weight = torch.softmax(component[0], 0)
    ratio = (weight * (component[1] - component[0]).exp()).sum(0)
    torch.testing.assert_close((new - old).exp(), ratio, rtol=1e-10, atol=0)  # float64, sums in another order
    assert (ratio - 1).abs().max() > 0.01


def test_common_numbers_take_the_noise_out_of_the_ratio():
    """After a small step the log-ratios are as small as the step; with independent draws they are as large as ever."""
    network, named, action = actor(), inputs(), torch.randn(ROWS, ACTIONS)
    changed = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in changed.parameters():
            parameter.add_(1e-3 * torch.randn_like(parameter))
    common = MonteCarlo(15, common=True)
    log_ratio = {
        "common": common.policy(changed, *named, seed=SEED).log_prob(action)
        - common.policy(network, *named, seed=SEED).log_prob(action),
        "independent": MonteCarlo(15).policy(changed, *named).log_prob(action)
        - MonteCarlo(15).policy(network, *named).log_prob(action),
    }
    assert log_ratio["common"].std() < 0.1 * log_ratio["independent"].std()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("samples", SAMPLES)
def test_moments_are_those_of_the_common_latents(samples, sampling, backend):
    network, named = actor(torch.float64), inputs(torch.float64)
    rows = torch.randperm(1000)[:ROWS]
    policy = MonteCarlo(samples, sampling, backend, common=True).policy(network, *named, seed=SEED, rows=rows)
    context, mean, std, action_std = named
    latent = mean + std * latent_noise(SEED, samples, rows, LATENT, sampling, torch.float64)
    means = network(torch.cat([context.expand(samples, -1, -1), latent], -1))
    torch.testing.assert_close(policy.mean, means.mean(0), rtol=1e-8, atol=1e-8)
    var = means.var(0) if samples > 1 else torch.zeros_like(means[0])
    torch.testing.assert_close(policy.stddev, (var + action_std.square()).sqrt(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_one_sample_the_decoder_sees_the_common_latent(backend):
    network, named = actor(torch.float64), inputs(torch.float64)
    estimator = MonteCarlo(1, backend=backend, common=True)
    policy, again = (estimator.policy(network, *named, seed=SEED, rows=torch.arange(ROWS) + 9) for _ in range(2))
    assert torch.equal(policy.latent(), again.latent())
    expected = named[1] + named[2] * latent_noise(SEED, 1, torch.arange(ROWS) + 9, LATENT, dtype=torch.float64)[0]
    torch.testing.assert_close(policy.latent(), expected, rtol=1e-12, atol=1e-12)
    means = network(torch.cat([named[0], policy.latent()], -1))
    action = torch.randn(ROWS, ACTIONS, dtype=torch.float64)
    expected = torch.distributions.Normal(means, named[3]).log_prob(action).sum(-1)
    torch.testing.assert_close(policy.log_prob(action), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("samples", SAMPLES)
def test_what_is_sampled_does_not_depend_on_the_common_latents(samples):
    """Actions are drawn by fresh latents: a likelihood of its own latent would be too high."""
    network, named = actor(), inputs()
    policy = MonteCarlo(samples, common=True).policy(network, *named, seed=SEED)
    assert not torch.equal(policy.sample(), policy.sample())


@pytest.mark.parametrize("samples", SAMPLES)
def test_a_seed_or_rows_alone_make_latents_common(samples):
    network, named, action = actor(), inputs(), torch.randn(ROWS, ACTIONS)
    plain = MonteCarlo(samples)
    seeded = [plain.policy(network, *named, seed=SEED).log_prob(action) for _ in range(2)]
    assert torch.equal(*seeded)
    told = plain.policy(network, *named, rows=torch.arange(ROWS))
    assert torch.equal(
        told.log_prob(action), plain.policy(network, *named, seed=told.seed, rows=told.rows).log_prob(action)
    )
    assert not torch.equal(told.log_prob(action), plain.policy(network, *named, rows=told.rows).log_prob(action))


def test_without_common_nothing_changes():
    """The draws of a run without common numbers are those of torch's generator, one by one, as ever."""
    network, named, action = actor(), inputs(), torch.randn(ROWS, ACTIONS)
    torch.manual_seed(7)
    policy = MonteCarlo(4).policy(network, *named)
    got = policy.log_prob(action), policy.mean
    torch.manual_seed(7)
    seed = torch.randint(2**62, (1,))
    noise = latent_noise(seed, 4, ROWS, LATENT)
    fresh = torch.stack([torch.randn_like(named[1]) for _ in range(4)])
    means = [network(torch.cat([named[0].expand(4, -1, -1), named[1] + named[2] * e], -1)) for e in (noise, fresh)]
    expected = p3kernels.mixture_log_prob(action, means[0], named[3])
    torch.testing.assert_close(got[0], expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], means[1].mean(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("samples", [1, 3])
def test_compiles_as_one_graph(samples):
    network, named, action = actor(), inputs(), torch.randn(ROWS, ACTIONS)
    estimator = MonteCarlo(samples, common=True)
    torch._dynamo.reset()

    def function(latent_mean: Tensor, seed: Tensor, rows: Tensor) -> Tensor:
        return estimator.policy(network, named[0], latent_mean, *named[2:], seed=seed, rows=rows).log_prob(action)

    arguments = (named[1].clone().requires_grad_(), torch.tensor([SEED]), torch.randperm(99)[:ROWS])
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    got, expected = compiled(*arguments), function(*arguments)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(out.sum(), arguments[0])[0] for out in (got, expected)]
    assert gradients[1].count_nonzero() > 0
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seed": -1}, ValueError, r"seed: expected 0 <= seed < 2\*\*63, got -1"),
        ({"seed": 1.5}, TypeError, r"seed: expected an integer, got float"),
        ({"seed": torch.zeros(2).long()}, TypeError, r"seed: expected one int64, got 2 of torch\.int64"),
        ({"rows": torch.arange(3)}, ValueError, r"rows: expected shape \[37\], got \[3\]"),
        ({"rows": torch.arange(ROWS).int()}, TypeError, r"rows: expected int64, got int32"),
        ({"rows": list(range(ROWS))}, TypeError, r"rows: expected a tensor of int64, got list"),
        ({"rows": torch.arange(ROWS) - 4}, ValueError, r"rows: expected numbers >= 0, got -4"),
        (
            {"rows": torch.arange(ROWS).to("meta")},
            ValueError,
            r"rows: expected the device of latent_mean, cpu, got meta",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_a_policy_refuses(changes, error, message):
    for estimator in (MonteCarlo(1, common=True), MonteCarlo(3)):
        with pytest.raises(error, match=message):
            estimator.policy(actor(), *inputs(), **changes)


@pytest.mark.parametrize("common", [1, None, "yes", math.nan])
def test_common_is_a_bool(common):
    with pytest.raises(TypeError, match="common: expected True or False, got"):
        MonteCarlo(3, common=common)
