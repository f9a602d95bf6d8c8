"""KL scan: what the estimators make of KL(old ‖ new) between the policies before and after an update."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.diagnostics.inputs import LatentPolicy, check_count, check_estimated, seeded
from p3kernels.diagnostics.samples import action_means
from p3kernels.estimators.gaussian import gaussian_kl
from p3kernels.estimators.protocol import Estimator, Policy

STATES_AT_ONCE = 32
"""States whose components and actions are held together: memory does not grow with the number of states."""
BOUND_SAMPLES = 64
"""Latents a state for `KlScan.bound`."""


@dataclass(frozen=True)
class Estimate:
    """A mean over states."""

    value: float
    standard_error: float
    """States are taken as independent. NaN for one state."""


@dataclass(frozen=True)
class KlPoint:
    """Monte Carlo with N latents for each likelihood."""

    num_samples: int
    value: Estimate
    """E[log p̂_old(a) - log p̂_new(a)], a from the old policy, latents independent of the one that acted. The same
    whether old and new likelihood share their latents or not."""
    excess: Estimate
    """`value` less the reference, on the same states and actions: the bias of N latents."""
    noise: float
    """Standard deviation of one action's log ratio over redraws of the latents, old and new drawn independently."""
    noise_common: float
    """The same with latents shared by old and new likelihood."""
    generating: Estimate
    """As `value`, but the latent that produced the action is one of the N of the old likelihood."""
    generating_identical: Estimate
    """`generating` where the new policy is the old one and the KL is 0: nothing but an artefact."""


@dataclass(frozen=True)
class KlScan:
    """KL(old ‖ new) in nats, a mean over states."""

    reference: Estimate
    """Monte Carlo with `reference_samples` latents."""
    reference_samples: int
    half_reference: Estimate
    """With half of them: how far the reference has settled."""
    points: tuple[KlPoint, ...]
    closed_form: dict[str, Estimate]
    """By the estimators whose policies are Gaussian."""
    closed_form_excess: dict[str, Estimate]
    """Less the reference, on the same states."""
    on_actions: dict[str, Estimate]
    """The same estimators' mean log ratio on actions of the policy itself rather than of their Gaussian."""
    single: Estimate
    """Closed form between one component of each: N(actor(z), σ²) as stored in the rollout and as drawn anew in the
    update, which is how rsl_rl-style trainers of a VAE policy compute it."""
    single_identical: Estimate
    """`single` where the new policy is the old one and the KL is 0."""
    shared: Estimate
    """E_ε[KL(p_old(·|ε) ‖ p_new(·|ε))], old and new at the same noise: what `SharedNoise` follows, an upper bound."""
    bound: Estimate
    """E_z[KL(p_old(·|z) ‖ p_new(·|z))] + KL(q_old ‖ q_new), the paper's upper bound."""


@torch.no_grad()
def kl_scan(
    old: LatentPolicy,
    new: LatentPolicy,
    estimators: Mapping[str, Estimator] | None = None,
    *,
    counts: Sequence[int] = (1, 2, 5, 10, 15, 20, 30, 50, 100),
    reference_samples: int = 1000,
    actions: int = 16,
    seed: int | None = None,
) -> KlScan:
    """KL(old ‖ new) by Monte Carlo with few and many latents, and by Gaussian estimators.

    A pool of `reference_samples` latents is drawn for each state. The log densities of every action under every
    component of the pool give the likelihoods of each N: parts of N latents of the pool. So all N cost one pass of the
    pool through both actors, and the curves of N share their random numbers. Actions come in pairs, with the noise of
    one minus that of the other, which removes most of the noise that the reference itself would have.

    Args:
        old: The policy that acted.
        new: The policy after the update, of the same observations.
        estimators: By name, with Gaussian policies: `mean`, and `stddev` or `covariance`.
        counts: N, from 1 to half of `reference_samples`.
        reference_samples: At least 4; 1000 and more for a reference.
        actions: Actions a state, an even number.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.
    """
    estimators = estimators or {}
    _check(old, new, estimators, counts, reference_samples, actions)
    sums = _Collected()
    with seeded(seed, old.context.device):
        for start in range(0, len(old.context), STATES_AT_ONCE):
            rows = slice(start, start + STATES_AT_ONCE)
            _scan(old.rows(rows), new.rows(rows), estimators, counts, reference_samples, actions, sums)
    found = sums.finished()
    reference = found["reference"]
    points = tuple(
        KlPoint(
            num_samples=count,
            value=_estimate(found[f"value/{count}"]),
            excess=_estimate(found[f"value/{count}"] - reference),
            noise=found[f"noise/{count}"].mean().sqrt().item(),
            noise_common=found[f"noise_common/{count}"].mean().sqrt().item(),
            generating=_estimate(found[f"generating/{count}"]),
            generating_identical=_estimate(found[f"identical/{count}"]),
        )
        for count in counts
    )
    return KlScan(
        reference=_estimate(reference),
        reference_samples=reference_samples,
        half_reference=_estimate(found["half"]),
        points=points,
        closed_form={name: _estimate(found[f"closed/{name}"]) for name in estimators},
        closed_form_excess={name: _estimate(found[f"closed/{name}"] - reference) for name in estimators},
        on_actions={name: _estimate(found[f"actions/{name}"]) for name in estimators},
        single=_estimate(found["single"]),
        single_identical=_estimate(found["single_identical"]),
        shared=_estimate(found["shared"]),
        bound=_estimate(found["bound"]),
    )


def _check(
    old: LatentPolicy,
    new: LatentPolicy,
    estimators: Mapping[str, Estimator],
    counts: Sequence[int],
    reference_samples: int,
    actions: int,
) -> None:
    for policy in (old, new):
        check_estimated(estimators, policy)
    if old.latent_mean.shape != new.latent_mean.shape or old.context.dtype != new.context.dtype:
        raise ValueError("new: expected the rows, latents and dtype of old")
    check_count("reference_samples", reference_samples, 4)
    for count in counts:
        check_count("counts", count, 1)
        if 2 * count > reference_samples:
            raise ValueError(f"counts: expected at most half of reference_samples ({reference_samples}), got {count}")
    check_count("actions", actions, 2)
    if actions % 2:
        raise ValueError(f"actions: expected an even number, got {actions}")


class _Collected:
    """Numbers of a state each, by name, of one part of the states after another."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = {}

    def add(self, name: str, values: Tensor) -> None:
        self._parts.setdefault(name, []).append(values.double())

    def finished(self) -> dict[str, Tensor]:
        return {name: torch.cat(parts) for name, parts in self._parts.items()}


def _scan(
    old: LatentPolicy,
    new: LatentPolicy,
    estimators: Mapping[str, Estimator],
    counts: Sequence[int],
    pool: int,
    actions: int,
    into: _Collected,
) -> None:
    """One part of the states: [b] of every number. In the shapes R are actions, M is the pool."""
    noise = torch.randn(pool, *old.latent_mean.shape, dtype=old.latent_mean.dtype, device=old.context.device)
    means_old, means_new = _means(old, noise), _means(new, noise)
    half = torch.randn(actions // 2, *old.latent_mean.shape, dtype=noise.dtype, device=noise.device)
    acting = _means(old, torch.cat([half, -half]))  # [R, b, A]
    explored = torch.randn_like(acting[: actions // 2])
    action = acting + _std(old) * torch.cat([explored, -explored])
    under_old = _component_log_probs(action, means_old, _std(old))  # [b, R, M]
    under_new = _component_log_probs(action, means_new, _std(new))
    under_acting = _log_density(action, acting, _std(old)).transpose(0, 1)  # [b, R]

    into.add("reference", (_mixture(under_old, pool) - _mixture(under_new, pool)).mean((1, 2)))
    into.add("half", (_mixture(under_old, pool // 2) - _mixture(under_new, pool // 2)).mean((1, 2)))
    for count in counts:
        likelihood_old, likelihood_new = _mixture(under_old, count), _mixture(under_new, count)  # [b, R, K]
        into.add(f"value/{count}", (likelihood_old - likelihood_new).mean((1, 2)))
        into.add(f"noise_common/{count}", (likelihood_old - likelihood_new).var(2).mean(1))
        into.add(f"noise/{count}", (likelihood_old - likelihood_new.roll(1, 2)).var(2).mean(1))
        included = _with(under_old, under_acting, count)
        into.add(f"generating/{count}", included.mean((1, 2)) - likelihood_new.mean((1, 2)))
        into.add(f"identical/{count}", included.mean((1, 2)) - likelihood_old.mean((1, 2)))

    into.add("single", gaussian_kl(means_old, _std(old), means_new.roll(1, 0), _std(new)).mean(0))
    into.add("single_identical", gaussian_kl(means_old, _std(old), means_old.roll(1, 0), _std(old)).mean(0))
    into.add("shared", gaussian_kl(means_old, _std(old), means_new, _std(new)).mean(0))
    into.add("bound", _bound(old, new, noise[:BOUND_SAMPLES], means_old[:BOUND_SAMPLES]))
    for name, estimator in estimators.items():
        before, after = estimator.policy(*old), estimator.policy(*new)
        into.add(f"closed/{name}", policy_kl(before, after))
        ratios = [before.log_prob(one) - after.log_prob(one) for one in action.to(old.context.dtype)]
        into.add(f"actions/{name}", torch.stack(ratios).double().mean(0))


def policy_kl(old: Policy, new: Policy) -> Tensor:
    """KL(old ‖ new) [B] of Gaussian policies: by `covariance` [B, A, A] where they have one, else by `stddev`."""
    found = (getattr(policy, "covariance", None) for policy in (old, new))
    covariances = [covariance for covariance in found if isinstance(covariance, Tensor)]
    if len(covariances) < 2:
        return gaussian_kl(old.mean.double(), old.stddev.double(), new.mean.double(), new.stddev.double())
    factors = [torch.linalg.cholesky(covariance.double()) for covariance in covariances]
    return gaussian_kl(old.mean.double(), factors[0], new.mean.double(), factors[1])


def _bound(old: LatentPolicy, new: LatentPolicy, noise: Tensor, means_old: Tensor) -> Tensor:
    """[b]: the actor's KL at the old latents, and the encoder's. Infinite where a latent became certain."""
    latent = old.latent_mean + old.latent_std * noise
    means_new = action_means(new.actor, new.context, latent).double()
    actor = gaussian_kl(means_old, _std(old), means_new, _std(new)).mean(0)
    moved = (old.latent_mean != new.latent_mean) | (old.latent_std != new.latent_std)
    ratio = (old.latent_std / new.latent_std).double()
    shift = ((old.latent_mean - new.latent_mean) / new.latent_std).double()
    encoder = 0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()
    return actor + torch.where(moved, encoder, 0.0).sum(-1)


def _std(policy: LatentPolicy) -> Tensor:
    return policy.action_std.double()


def _means(policy: LatentPolicy, noise: Tensor) -> Tensor:
    """Component means [M, b, A] in float64."""
    return action_means(policy.actor, policy.context, policy.latent_mean + policy.latent_std * noise).double()


def _log_density(action: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """[..., b] of a diagonal Gaussian."""
    scaled = (action - mean) / std
    return -(0.5 * scaled.square() + std.log() + 0.5 * math.log(2 * math.pi)).sum(-1)


def _component_log_probs(action: Tensor, means: Tensor, std: Tensor) -> Tensor:
    """[b, R, M] of actions [R, b, A] under components [M, b, A]; by one matrix product a state.

    In float64: the squares are summed before the difference is taken.
    """
    scaled_action, scaled_means = (action / std).transpose(0, 1), (means / std).transpose(0, 1)
    squares = scaled_action.square().sum(-1)[:, :, None] + scaled_means.square().sum(-1)[:, None, :]
    distance = squares - 2 * scaled_action @ scaled_means.transpose(1, 2)
    constant = (std.log() + 0.5 * math.log(2 * math.pi)).expand(action.shape[1:]).sum(-1)
    return -0.5 * distance - constant[:, None, None]


def _mixture(log_probs: Tensor, count: int) -> Tensor:
    """[b, R, K]: log-mean-exp over the parts of `count` components of [b, R, M]; a rest that does not fill one goes."""
    parts = log_probs.shape[-1] // count
    return log_probs[..., : parts * count].unflatten(-1, (parts, count)).logsumexp(-1) - math.log(count)


def _with(log_probs: Tensor, acting: Tensor, count: int) -> Tensor:
    """As `_mixture`, with the component that acted [b, R] in the place of the first of each part."""
    acting = acting[:, :, None]
    if count == 1:
        return acting
    parts = log_probs.shape[-1] // count
    others = log_probs[..., : parts * count].unflatten(-1, (parts, count))[..., 1:].logsumexp(-1)
    return torch.logaddexp(others, acting.expand_as(others)) - math.log(count)


def _estimate(values: Tensor) -> Estimate:
    error = values.std().item() / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(values.mean().item(), error)
