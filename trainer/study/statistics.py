"""Comparisons over few seeds: mean and spread, exact tests, and Holm's correction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from scipy.special import stdtrit

MOST_EXACT = 20
"""Pairs of which every assignment of signs, 2^n, is looked at."""


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation with n − 1; NaN for what too few values do not have."""
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the exact permutation test on paired differences [n]; 2 / 2^n is the least there can be.

    Raises:
        ValueError: Too many pairs to look at all assignments.
    """
    if not 1 <= len(differences) <= MOST_EXACT:
        raise ValueError(f"differences: expected 1 to {MOST_EXACT} pairs, got {len(differences)}")
    observed = abs(sum(differences))
    close = 1e-9 * sum(map(abs, differences))  # sums in another order differ by rounding
    # By symmetry the first sign can stay.
    flips = itertools.product((1.0, -1.0), repeat=len(differences) - 1)
    sums = [abs(differences[0] + sum(s * d for s, d in zip(signs, differences[1:], strict=True))) for signs in flips]
    return sum(value >= observed - close for value in sums) / len(sums)


def one_sided_sign_flip_p(differences: Sequence[float]) -> float:
    """Exact p of a mean above 0: the share of all assignments of signs whose sum is as large; 1 / 2^n is the least.

    Raises:
        ValueError: Too many pairs to look at all assignments.
    """
    if not 1 <= len(differences) <= MOST_EXACT:
        raise ValueError(f"differences: expected 1 to {MOST_EXACT} pairs, got {len(differences)}")
    close = 1e-9 * sum(map(abs, differences))  # sums in another order differ by rounding
    flips = itertools.product((1.0, -1.0), repeat=len(differences))
    sums = [sum(sign * value for sign, value in zip(signs, differences, strict=True)) for signs in flips]
    return sum(value >= sum(differences) - close for value in sums) / len(sums)


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """p of "the mean difference is not within ± margin": the larger of two one-sided exact sign-flip tests.

    Each looks at the differences from one margin on, whose signs are exchangeable if the truth is at that margin and
    the differences are spread evenly around it. A small p says that the two are equivalent.

    Raises:
        ValueError: The margin is not positive, or there are too many pairs.
    """
    if not margin > 0:
        raise ValueError(f"margin: expected a positive number, got {margin}")
    above = one_sided_sign_flip_p([value + margin for value in differences])
    below = one_sided_sign_flip_p([margin - value for value in differences])
    return max(above, below)


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of the mean; without end for a single difference."""
    mean, std = mean_std(differences)
    if math.isnan(std):
        return -math.inf, math.inf
    half = float(stdtrit(len(differences) - 1, 0.5 + level / 2)) * std / math.sqrt(len(differences))
    return mean - half, mean + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for looking at all of them; a NaN stays one, and does not count."""
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    adjusted, least = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted
