"""The terms of PPO's loss, as functions of tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trainer.models.ranks import ONE_RANK, Ranks
from trainer.models.update_terms import fused, policy_terms


class PolicyTerms(NamedTuple):
    """What an update computes of the policy's and the critic's answers to a minibatch; means over its rows."""

    surrogate: Tensor
    """The policy's loss, differentiable."""
    value: Tensor
    """The value's loss, differentiable."""
    kl: Tensor
    """KL divergence from the old policy, of rows that the policy drew itself: of an image -log r estimates none."""
    clip_fraction: Tensor
    """Share of the ratios that are outside of the clip, over the same rows."""
    losses: tuple[Tensor, ...]
    """Both losses as they were made: [] each, or [2]."""


def terms_of_policy(
    log_prob: Tensor,
    kl: Tensor,
    value: Tensor,
    batch: Mapping[str, Tensor],
    clip: float,
    dual_clip: float | None = None,
    *,
    clips_value: bool = True,
    ranks: Ranks = ONE_RANK,
) -> PolicyTerms:
    """PPO's terms of new log-likelihoods [B], KL divergences [B] and values [B] of a minibatch.

    Args:
        log_prob: Differentiable.
        kl: Taken as numbers.
        value: Differentiable.
        batch: `log_prob`, `acted_log_prob` where it is another, `advantages`, `values`, `returns`, and `drawn` where
            not all rows were drawn by the policy; [B] each. `drawn_count` as in `RolloutRows._minibatches`.
        clip: Distance from 1 at which a ratio is clipped, and from the old value a value.
        dual_clip: As for `clipped_surrogate`.
        clips_value: Whether the value's move is clipped, too.
        ranks: Over which the means of drawn rows are those of all.
    """
    old = batch.get("acted_log_prob", batch["log_prob"])
    drawn, count = batch.get("drawn"), batch.get("drawn_count")
    known = (batch["advantages"], batch["values"], batch["returns"])
    if fused(log_prob, old, value, kl, *known):
        rows = (log_prob, old, known[0], value, *known[1:])
        losses, numbers = policy_terms(rows, kl.detach(), drawn, clip, dual_clip, clips_value=clips_value)
        numbers = numbers[:2]
        if drawn is not None:
            numbers = numbers / ranks.masked_share(drawn, count)
        (surrogate, value_error), (mean_kl, clipped) = losses.unbind(), numbers.unbind()
        return PolicyTerms(surrogate, value_error, mean_kl, clipped, (losses,))
    log_ratio = log_prob - old
    surrogate = clipped_surrogate(log_ratio, known[0], clip, dual_clip)
    value_error = value_loss(value, *known[1:], clip if clips_value else None)
    with torch.no_grad():
        outside = ((log_ratio.exp() - 1).abs() > clip).float()
        mean_kl, clipped = (
            values.mean() if drawn is None else ranks.masked_mean(values, drawn, count)
            for values in (kl.detach(), outside)
        )
    return PolicyTerms(surrogate, value_error, mean_kl, clipped, (surrogate, value_error))


class WeightedSum:
    """A loss as the weighted sum of its terms: one product, whatever their number.

    Args:
        device: Where the terms are. The weights are there, too, in a tensor that stays the same one: a CUDA graph that
            has read it reads new weights.
    """

    def __init__(self, device: str | torch.device) -> None:
        self._device = device
        self._values: tuple[float, ...] = ()
        self._weights = torch.zeros(0, device=device)

    def __call__(self, terms: Sequence[Tensor], weights: Iterable[float]) -> Tensor:
        """Σ weight · term; terms are [], or [n], which are n of them."""
        values = tuple(weights)
        if values != self._values:
            if len(values) != len(self._values):
                self._weights = torch.zeros(len(values), device=self._device)
            self._weights.copy_(torch.tensor(values))
            self._values = values
        return torch.dot(torch.cat([term.reshape(-1) for term in terms]), self._weights)


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float, dual_clip: float | None = None) -> Tensor:
    """-mean min(r A, clip(r, 1 ± clip) A) of log r [B] and A [B].

    The minimum bounds what a row gains and, where A < 0, not what it loses: r A has no lower bound. With `dual_clip`
    c > 1 such a row loses c |A| at most: max(min(r A, clip(r) A), c A) where A < 0.
    """
    ratio = log_ratio.clamp(max=80.0).exp()
    gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
    if dual_clip is not None:  # where A > 0 this is below the minimum already: c A > (1 + clip) A
        gain = torch.where(advantage < 0, torch.max(gain, dual_clip * advantage), gain)
    return -gain.mean()


def value_loss(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """Squared error of the value [B], the larger of it and of its move clipped to ± clip."""
    error = (value - returns).square()
    if clip is None:
        return error.mean()
    clipped = old_value + (value - old_value).clamp(-clip, clip)
    return torch.max(error, (clipped - returns).square()).mean()
