"""`kl_scan` on linear actors: marginals are Gaussian, and every number has a closed form."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from helpers.linear_policies import SIGMAS, exact_covariance, exact_mean, policy

from p3kernels import CovarianceMatching, MomentMatching
from p3kernels.diagnostics import LatentPolicy, kl_scan
from p3kernels.diagnostics import kl_scan as function

ROWS = 400


def moved(old: LatentPolicy) -> LatentPolicy:
    """Another encoder and another actor."""
    actor = copy.deepcopy(old.actor)
    with torch.no_grad():
        actor[0].weight.mul_(1.05)
        actor[0].bias.add_(0.1)
    return old._replace(
        actor=actor, latent_mean=old.latent_mean + 0.05, latent_std=0.9 * old.latent_std, action_std=old.action_std
    )


def exact_kl(old: LatentPolicy, new: LatentPolicy) -> torch.Tensor:
    def normal(one: LatentPolicy):
        covariance = exact_covariance(one) + torch.diag(one.action_std.square())
        return torch.distributions.MultivariateNormal(exact_mean(one), covariance)

    return torch.distributions.kl_divergence(normal(old), normal(new))


@pytest.fixture(scope="module")
def scanned():
    old = policy(ROWS, std=0.15)
    new = moved(old)
    estimators = {"MM": MomentMatching(), "CM": CovarianceMatching()}
    return old, new, kl_scan(old, new, estimators, counts=(1, 5, 50), reference_samples=500, actions=8, seed=1)


def close(estimate, exact: float, slack: float = 0.0) -> bool:
    return abs(estimate.value - exact) < SIGMAS * estimate.standard_error + slack


def test_the_reference_is_the_exact_kl(scanned):
    old, new, found = scanned
    exact = exact_kl(old, new)
    assert found.reference.standard_error < 0.1 * exact.mean()
    assert close(found.reference, exact.mean().item())
    assert abs(found.half_reference.value - found.reference.value) < 0.02 * exact.mean()


def test_full_covariance_is_exact_and_diagonal_is_that_of_the_diagonals(scanned):
    old, new, found = scanned
    exact = exact_kl(old, new)
    assert found.closed_form["CM"].value == pytest.approx(exact.mean().item(), rel=1e-9)
    assert found.closed_form["CM"].standard_error == pytest.approx(exact.std().item() / math.sqrt(ROWS), rel=1e-9)
    stds = [(exact_covariance(p).diagonal(dim1=1, dim2=2) + p.action_std.square()).sqrt() for p in (old, new)]
    normals = [torch.distributions.Normal(exact_mean(p), std) for p, std in zip((old, new), stds, strict=True)]
    diagonal = torch.distributions.kl_divergence(*normals).sum(-1).mean().item()
    assert found.closed_form["MM"].value == pytest.approx(diagonal, rel=1e-9)
    assert close(found.on_actions["CM"], exact.mean().item())
    assert close(found.closed_form_excess["CM"], 0.0)


def test_one_sample_is_biased_as_derived(scanned):
    """E = Σ ((Δm)² + v_new - v_old) / 2σ²: the shift counts in units of σ² alone, not of σ² + v."""
    old, new, found = scanned
    shift = exact_mean(new) - exact_mean(old)
    v_old, v_new = (exact_covariance(p).diagonal(dim1=1, dim2=2) for p in (old, new))
    scale = 2 * old.action_std.square()
    one = ((shift.square() + v_new - v_old) / scale).sum(-1).mean().item()
    assert close(found.points[0].value, one)
    # With the acting latent in the old likelihood, and in closed form between components, both variances add up.
    added = ((shift.square() + v_new + v_old) / scale).sum(-1).mean().item()
    assert close(found.points[0].generating, added)
    assert close(found.single, added)
    nothing = (2 * v_old / scale).sum(-1).mean().item()
    assert close(found.points[0].generating_identical, nothing)
    assert close(found.single_identical, nothing)


def test_the_bias_falls_with_the_number_of_samples(scanned):
    _, _, found = scanned
    excess = [abs(point.excess.value) for point in found.points]
    assert excess[0] > excess[1] > excess[2]
    artefacts = [point.generating_identical.value for point in found.points]
    assert artefacts[0] > artefacts[1] > artefacts[2] > 0
    for point in found.points:
        assert point.excess.value == pytest.approx(point.value.value - found.reference.value, rel=1e-9)


def test_common_latents_are_less_noisy(scanned):
    _, _, found = scanned
    for point in found.points:
        assert point.noise_common < 0.5 * point.noise
    assert found.points[0].noise > found.points[1].noise > found.points[2].noise


def test_the_bound_is_as_computed_and_above(scanned):
    old, new, found = scanned
    difference = (new.actor[0].weight - old.actor[0].weight).detach()
    shift = new.actor[0].bias - old.actor[0].bias + torch.cat([old.context, old.latent_mean], -1) @ difference.T
    spread = torch.einsum("az,bz->ba", difference[:, 2:].square(), old.latent_std.square())
    actor = ((shift.square() + spread) / (2 * old.action_std.square())).sum(-1)
    pairs = ((old.latent_mean, old.latent_std), (new.latent_mean, new.latent_std))
    encoder = torch.distributions.kl_divergence(*(torch.distributions.Normal(*pair) for pair in pairs)).sum(-1)
    assert found.bound.value == pytest.approx((actor + encoder).mean().item(), rel=0.02)
    assert found.bound.value > found.reference.value


def test_identical_policies_have_none():
    old = policy(20)
    found = kl_scan(old, old, {"MM": MomentMatching()}, counts=(1, 5), reference_samples=20, actions=4, seed=1)
    estimates = [found.reference, found.half_reference, found.closed_form["MM"], found.bound]
    estimates += [point.value for point in found.points]
    assert [estimate.value for estimate in estimates] == pytest.approx([0.0] * len(estimates), abs=1e-12)
    assert all(point.noise_common == pytest.approx(0, abs=1e-12) for point in found.points)
    for point in found.points:
        assert point.generating == point.generating_identical


def test_the_parts_of_the_states_do_not_change_what_is_measured(monkeypatch):
    import sys

    old = policy(64)
    whole = kl_scan(old, moved(old), counts=(1,), reference_samples=200, seed=1)
    monkeypatch.setattr(sys.modules[function.__module__], "STATES_AT_ONCE", 10)
    parts = kl_scan(old, moved(old), counts=(1,), reference_samples=200, seed=1)
    error = math.hypot(whole.reference.standard_error, parts.reference.standard_error)
    assert abs(parts.reference.value - whole.reference.value) < SIGMAS * error
    assert parts.reference.value != whole.reference.value


def test_a_std_of_each_row_is_that_of_the_row():
    old = policy(ROWS, std=0.15)
    rows = old._replace(action_std=old.action_std.expand(ROWS, -1).clone())
    one, other = (kl_scan(p, moved(p), counts=(1,), reference_samples=20, actions=2, seed=1) for p in (old, rows))
    assert other.reference.value == pytest.approx(one.reference.value, rel=1e-9)


def test_mistakes_are_named():
    old = policy(8)
    for options, message in (
        ({"counts": (60,), "reference_samples": 100}, r"counts: expected at most half of reference_samples \(100\)"),
        ({"counts": (0,)}, "counts: expected an integer >= 1"),
        ({"actions": 3}, "actions: expected an even number, got 3"),
        ({"reference_samples": 2}, "reference_samples: expected an integer >= 4"),
    ):
        with pytest.raises(ValueError, match=message):
            kl_scan(old, old, **options)
    with pytest.raises(ValueError, match="new: expected the rows, latents and dtype of old"):
        kl_scan(old, policy(9))
