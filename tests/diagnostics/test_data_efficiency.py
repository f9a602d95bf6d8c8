"""`data_efficiency`: against the distribution of the ratio where that is known, and at the limits."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import mpmath
import pytest
import torch
from torch import nn

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.diagnostics import DataEfficiency, data_efficiency

SIGMAS = 6
"""Standard errors allowed to a sampled share: a false alarm in 5e8; the seed is fixed besides."""


def linear(weight: float) -> nn.Sequential:
    """a = 0.3 context + weight · z - 0.1, in float64."""
    network = nn.Sequential(nn.Linear(2, 1)).double()
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[0.3, weight]]))
        network[0].bias.fill_(-0.1)
    return network


def column(value: float, rows: int) -> torch.Tensor:
    return torch.full((rows, 1), value, dtype=torch.float64)


def small(latent: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2 + latent, 8), nn.ELU(), nn.Linear(8, 4)).double()


def inputs(rows: int = 64, latent: int = 3) -> dict[str, torch.Tensor]:
    return {
        "context": torch.randn(rows, 2).double(),
        "latent_mean": torch.randn(rows, latent).double(),
        "latent_std": 0.5 + torch.rand(rows, latent).double(),
        "action_std": 0.1 + 0.1 * torch.rand(4).double(),
    }


def one_sample_share(spread: float, action_std: float, clip: float) -> float:
    """D_eff of a linear actor with one action and N = 1, exactly.

    With u = a - E[a] ~ N(0, d² + σ²) and z_i = E[z] + s x_i, where d = spread is the action's std by the latent,
    2σ² log r = (u - d x₂)² - (u - d x₁)² = d (x₁ - x₂)(2u - d (x₁ + x₂)): a product of two independent normals with
    variances 2d² and 4(d² + σ²) + 2d². So log r = k p q with p, q ~ N(0, 1) and k = d √(3d² + 2σ²) / σ², and the
    density of p q is K₀(|x|) / π.
    """
    k = spread * math.sqrt(3 * spread**2 + 2 * action_std**2) / action_std**2
    ends = (-math.log(1 - clip) / k, math.log(1 + clip) / k)
    return float(sum(mpmath.quad(lambda x: mpmath.besselk(0, x), [0, end]) for end in ends) / mpmath.pi)


@pytest.mark.parametrize(
    ("weight", "latent_std", "action_std", "clip"),
    [(0.7, 0.5, 0.6, 0.2), (-2.0, 1.0, 0.5, 0.2), (0.1, 0.5, 0.6, 0.2), (0.7, 0.5, 0.6, 0.02), (0.7, 0.5, 0.6, 0.9)],
)
def test_one_sample_of_a_linear_actor_is_as_computed(weight, latent_std, action_std, clip):
    rows = 40_000
    found = data_efficiency(
        MonteCarlo(1),
        linear(weight),
        torch.randn(rows, 1).double(),
        torch.randn(rows, 1).double(),
        column(latent_std, rows),
        torch.tensor([action_std], dtype=torch.float64),
        clip=clip,
        seed=1,
    )
    exact = one_sample_share(abs(weight) * latent_std, action_std, clip)
    error = math.sqrt(exact * (1 - exact) / rows)
    assert abs(found.share - exact) < SIGMAS * error
    assert found.standard_error == pytest.approx(error, rel=0.1)
    assert found.count == rows


def test_more_samples_leave_more_inside():
    network, named = small(), inputs(2000)
    shares = [data_efficiency(MonteCarlo(count), network, **named, seed=2) for count in (1, 5, 15, 50, 200)]
    for fewer, more in itertools.pairwise(shares):
        assert more.share - fewer.share > SIGMAS * math.hypot(fewer.standard_error, more.standard_error)
    assert shares[-1].share < 1


def test_a_wider_interval_leaves_more_inside():
    network, named = small(), inputs(500)
    shares = [data_efficiency(MonteCarlo(5), network, **named, clip=clip, seed=2).share for clip in (0.1, 0.2, 0.4)]
    assert shares == sorted(set(shares))


@pytest.mark.parametrize("row_std", [False, True])
def test_moment_matching_has_exactly_one(row_std):
    named = inputs()
    if row_std:
        named["action_std"] = named["action_std"] * torch.linspace(1, 2, 64)[:, None].double()
    found = data_efficiency(MomentMatching(), small(), **named, clip=1e-6, repeats=3)
    assert found == DataEfficiency(1.0, 0.0, 192)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 15])
def test_a_certain_latent_has_exactly_one(count, dtype):
    named = {name: tensor.to(dtype) for name, tensor in inputs().items()}
    named["latent_std"] = torch.zeros_like(named["latent_std"])
    assert data_efficiency(MonteCarlo(count), small().to(dtype), **named).share == 1.0


@pytest.mark.parametrize("estimator", [MomentMatching(), MonteCarlo(1), MonteCarlo(15)], ids=repr)
def test_no_latent_has_exactly_one(estimator):
    assert data_efficiency(estimator, small(0), **inputs(latent=0)) == DataEfficiency(1.0, 0.0, 64)


def test_repeats_are_draws_of_their_own_and_rows_keep_what_is_theirs():
    """Half of the rows have a certain latent, and 1; the others have p. The error is that of the rows' shares."""
    rows, repeats = 400, 200
    spread = torch.where(torch.arange(rows) % 2 == 0, 0.0, 0.5).double()[:, None]
    zeros = column(0.0, rows)
    std = torch.tensor([0.6], dtype=torch.float64)
    found = data_efficiency(MonteCarlo(1), linear(0.7), zeros, zeros, spread, std, repeats=repeats, seed=3)
    inside = one_sample_share(0.35, 0.6, 0.2)
    assert found.count == rows * repeats
    error = math.sqrt(inside * (1 - inside) / (rows / 2 * repeats)) / 2
    assert abs(found.share - (1 + inside) / 2) < SIGMAS * error
    between = (1 - inside) / 2
    assert found.standard_error == pytest.approx(between / math.sqrt(rows), rel=0.02)


def test_one_row_has_no_standard_error():
    found = data_efficiency(MonteCarlo(1), small(), **inputs(1), repeats=50, seed=1)
    assert math.isnan(found.standard_error)
    assert found.count == 50
    assert 0 < found.share < 1


@dataclass(frozen=True)
class Given:
    """A policy of given log-likelihoods."""

    values: torch.Tensor

    def sample(self):
        return torch.zeros(len(self.values), 4).double()

    def log_prob(self, action):
        assert action.shape == (len(self.values), 4)
        return self.values

    def remember(self, action):
        return {"log_prob": self.log_prob(action)}


class GivenRatio:
    """An estimator whose policies have these ratios when they are recalled."""

    deferred = False

    def __init__(self, ratio: torch.Tensor):
        self.ratio = ratio

    def policy(self, *_):
        return Given(torch.zeros_like(self.ratio))

    def recall(self, *_):
        return Given(self.ratio.log())


def test_what_is_inside_is_counted_and_what_is_not_a_number_is_outside():
    ratio = torch.tensor([1.0, 0.51, 1.49, 0.49, 1.51, math.nan, math.inf, 0.0]).double()
    assert data_efficiency(GivenRatio(ratio), small(), **inputs(8), clip=0.5).share == 3 / 8


def test_a_seed_repeats_and_leaves_the_generator_alone():
    network, named = small(), inputs(200)
    before = torch.get_rng_state()
    first = data_efficiency(MonteCarlo(5), network, **named, seed=7)
    assert torch.equal(torch.get_rng_state(), before)
    torch.randn(5)
    assert data_efficiency(MonteCarlo(5), network, **named, seed=7) == first
    others = {data_efficiency(MonteCarlo(5), network, **named, seed=seed).share for seed in range(8, 12)}
    assert others != {first.share}


def test_without_a_seed_torch_decides():
    network, named = small(), inputs(200)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = data_efficiency(MonteCarlo(1), network, **named)
    assert not torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert data_efficiency(MonteCarlo(1), network, **named) == first


def test_the_generator_is_back_after_an_error():
    class Fails:
        def policy(self, *_):
            torch.randn(1)
            raise RuntimeError("on purpose")

        recall = policy

    network, named = small(), inputs()
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="on purpose"):
        data_efficiency(Fails(), network, **named, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_stay_as_they_are_and_nothing_is_recorded_for_gradients():
    network = small()
    named = {name: tensor.requires_grad_() for name, tensor in inputs().items()}
    copies = {name: tensor.detach().clone() for name, tensor in named.items()}
    data_efficiency(MonteCarlo(3), network, **named)
    for name, tensor in named.items():
        assert torch.equal(tensor, copies[name])
    assert all(parameter.grad is None for parameter in network.parameters())
    with torch.inference_mode():
        assert data_efficiency(MonteCarlo(3), network, **named, seed=1).count == 64


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"estimator": object()}, TypeError, "estimator: expected MomentMatching, MonteCarlo or alike, got object"),
        ({"actor": nn.Linear(5, 4)}, TypeError, "actor: expected an nn.Sequential"),
        ({"actor": small(2)}, ValueError, r"actor: expected 2 \+ 3 inputs, .* got 4"),
        ({"actor": small().float()}, TypeError, "actor: expected the dtype of context"),
        ({"context": torch.zeros(0, 2).double()}, ValueError, "context: expected at least one row"),
        ({"context": torch.zeros(2).double()}, ValueError, "context: expected 2 dimensions"),
        ({"context": torch.zeros(64, 2).long()}, TypeError, "context: expected float32 or float64"),
        ({"context": torch.full((64, 2), math.nan).double()}, ValueError, "context: expected finite numbers, got nan"),
        ({"latent_mean": torch.zeros(3, 3).double()}, ValueError, "latent_mean: expected 64 rows"),
        ({"latent_mean": torch.zeros(64, 3)}, TypeError, "latent_mean: expected the dtype of context"),
        ({"latent_std": torch.zeros(64, 2).double()}, ValueError, r"latent_std: expected shape \[64, 3\]"),
        ({"latent_std": torch.full((64, 3), -0.5).double()}, ValueError, "latent_std: expected values >= 0, .* -0.5"),
        ({"latent_std": torch.full((64, 3), math.inf).double()}, ValueError, "latent_std: expected finite .* got inf"),
        ({"action_std": torch.ones(3).double()}, ValueError, r"action_std: expected shape \[4\] or \[64, 4\]"),
        ({"action_std": torch.zeros(4).double()}, ValueError, "action_std: expected values > 0, the least is 0.0"),
        ({"clip": 0.0}, ValueError, "clip: expected a number between 0 and 1, got 0.0"),
        ({"clip": 1.0}, ValueError, "clip: expected"),
        ({"clip": math.nan}, ValueError, "clip: expected"),
        ({"repeats": 0}, ValueError, "repeats: expected an integer >= 1, got 0"),
        ({"repeats": 1.0}, ValueError, "repeats: expected"),
        ({"repeats": True}, ValueError, "repeats: expected"),
        ({"seed": 1.5}, TypeError, "seed: expected an integer, got float"),
        ({"seed": -1}, ValueError, "seed: expected 0 <= seed"),
    ],
)
def test_mistakes_are_named(changes, error, message):
    arguments = {"estimator": MonteCarlo(1), "actor": small(), **inputs(), **changes}
    with pytest.raises(error, match=message):
        data_efficiency(**arguments)


def test_an_actor_that_has_diverged_is_named():
    network = small()
    with torch.no_grad():
        network[2].bias[1] = math.nan
    with pytest.raises(ValueError, match="actor: expected finite numbers, got nan"):
        data_efficiency(MomentMatching(), network, **inputs())
