"""Comparisons over few seeds: mean and spread, paired tests, and Holm's correction."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_EXACT = 20
"""Pairs of which every assignment of signs, 2^n, is looked at."""


@dataclass(frozen=True)
class Paired:
    """The differences first − second over pairs, and how surprising they would be if the two were alike."""

    count: int
    mean: float
    std: float
    """Standard deviation of the differences, with n − 1; NaN for a single pair."""
    wins: int
    """Pairs in which the first is greater."""
    t_p: float
    """Two-sided, of the paired t-test; NaN for a single pair, or where the differences are all the same."""
    sign_flip_p: float
    """Two-sided, exact: the share of all assignments of signs whose mean is as far from 0."""


def mean_std(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation with n − 1; NaN for what too few values do not have."""
    mean = sum(values) / len(values) if values else math.nan
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def paired(first: Sequence[float], second: Sequence[float]) -> Paired:
    """Compares two methods over the same seeds.

    Raises:
        ValueError: Not pairs, or none.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"paired: expected as many of both, at least one, got {len(first)} and {len(second)}")
    differences = [a - b for a, b in zip(first, second, strict=True)]
    mean, std = mean_std(differences)
    count = len(differences)
    t_p = math.nan
    if count > 1 and std > 0:
        t_p = student_t_p(mean / (std / math.sqrt(count)), count - 1)
    return Paired(count, mean, std, sum(d > 0 for d in differences), t_p, sign_flip_p(differences))


def student_t_p(t: float, freedom: int) -> float:
    """Two-sided p of Student's t with an integer number of degrees of freedom: the finite series in the angle.

    With θ = atan(|t| / √ν), the probability within ±t is sin θ · Σ for even ν and 2/π · (θ + sin θ cos θ · Σ) for odd
    ν, Σ a sum of powers of cos² θ whose coefficients are ratios of double factorials.
    """
    if freedom < 1:
        raise ValueError(f"freedom: expected at least 1, got {freedom}")
    angle = math.atan(abs(t) / math.sqrt(freedom))
    square, odd = math.cos(angle) ** 2, freedom % 2
    total, term = 0.0, 1.0
    for k in range((freedom - odd) // 2):
        total += term
        # coefficients 1, 1/2, 1·3/(2·4), ... or 1, 2/3, 2·4/(3·5), ...
        term *= square * (2 * k + 1 + odd) / (2 * k + 2 + odd)
    within = math.sin(angle) * total
    if odd:
        within = 2 / math.pi * (angle + within * math.cos(angle))
    return min(1.0, max(0.0, 1.0 - within))


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


def student_t_quantile(probability: float, freedom: int) -> float:
    """The t with `probability` below it, above one half, by bisection of `student_t_p`."""
    if not 0.5 <= probability < 1:
        raise ValueError(f"probability: expected 0.5 to 1, got {probability}")
    low, high = 0.0, 1.0
    while student_t_p(high, freedom) > 2 * (1 - probability):
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_t_p(middle, freedom) > 2 * (1 - probability) else (low, middle)
    return 0.5 * (low + high)


def interval(differences: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's confidence interval of the mean; without end for a single difference."""
    mean, std = mean_std(differences)
    if math.isnan(std):
        return -math.inf, math.inf
    half = student_t_quantile(0.5 + level / 2, len(differences) - 1) * std / math.sqrt(len(differences))
    return mean - half, mean + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for looking at all of them; a NaN stays one, and does not count."""
    order = sorted((index for index, p in enumerate(p_values) if not math.isnan(p)), key=lambda index: p_values[index])
    adjusted, least = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(order) - rank) * p_values[index]))
        adjusted[index] = least
    return adjusted


def area(steps: np.ndarray, values: np.ndarray) -> float:
    """The mean of a curve over its steps [T], by trapezoids; points that are NaN are passed over."""
    known = ~np.isnan(values)
    steps, values = steps[known], values[known]
    if len(steps) < 2:
        return math.nan
    trapezoids = np.diff(steps) * (values[1:] + values[:-1]) / 2
    return float(trapezoids.sum() / (steps[-1] - steps[0]))
