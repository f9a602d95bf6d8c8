"""Intervals around what was measured: Student's t for means, Wilson's for shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """For "value ± half width", of a symmetric interval."""
        return 0.5 * (self.high - self.low)


def mean_interval(strata: Sequence[np.ndarray], confidence: float = 0.95) -> Interval:
    """The mean of the strata's means, each of them [N] independent values, with Student's t interval.

    Args:
        strata: Episodes by terrain, say; their differences are not part of the uncertainty.
        confidence: Confidence of the interval.
    """
    if not strata or any(len(values) == 0 for values in strata):
        raise ValueError("strata: expected at least one value in each")
    mean = float(np.mean([values.mean() for values in strata]))
    freedom = sum(len(values) - 1 for values in strata)
    if any(len(values) < 2 for values in strata):
        return Interval(mean, -math.inf, math.inf)
    variance = sum(values.var(ddof=1) / len(values) for values in strata) / len(strata) ** 2
    half = t_quantile(0.5 + confidence / 2, freedom) * math.sqrt(variance)
    return Interval(mean, mean - half, mean + half)


def share_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Wilson's interval of a share: within [0, 1], and not empty at 0 or at 1."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes: expected 0 to {trials} of at least 1 trial, got {successes}")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    # At 0 and at 1 that end is exact, but for rounding.
    low = 0.0 if successes == 0 else middle - half
    return Interval(share, low, 1.0 if successes == trials else middle + half)


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t: exact for 1 and 2 degrees of freedom, else by Cornish-Fisher, within 0.2 % at 0.975."""
    if freedom < 1:
        raise ValueError(f"freedom: expected at least 1, got {freedom}")
    if freedom == 1:
        return math.tan(math.pi * (probability - 0.5))
    if freedom == 2:
        return (2 * probability - 1) / math.sqrt(2 * probability * (1 - probability))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
