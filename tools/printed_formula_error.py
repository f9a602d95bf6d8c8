"""How wrong the printed formula Var = E[y²] − E[y]² is in float32: the numbers quoted in README.md.

python tools/printed_formula_error.py
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch

import p3kernels

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from helpers import oracle

POINTS = 4000


def main() -> None:
    """ELU, mean uniform in [−20, 20], std log-uniform in [1e-4, 10]."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.rand(POINTS, generator=generator) * 40 - 20
    std = 10 ** (torch.rand(POINTS, generator=generator) * 5 - 4)
    var = std.square()
    exact = torch.tensor([float(oracle.elu(float(m), float(v))[1]) for m, v in zip(mean, var, strict=True)])
    beta, cdf = mean / std, torch.special.ndtr
    density = torch.exp(-beta.square() / 2) / math.sqrt(2 * math.pi)
    exp_1 = torch.exp(mean + var / 2) * cdf(-beta - std)
    exp_2 = torch.exp(2 * mean + 2 * var) * cdf(-beta - 2 * std)
    first = mean * cdf(beta) + std * density + exp_1 - cdf(-beta)
    second = (mean.square() + var) * cdf(beta) + mean * std * density + exp_2 - 2 * exp_1 + cdf(-beta)
    printed = second - first.square()
    for name, value in (("printed formula", printed), ("p3kernels", p3kernels.elu_moments(mean, var)[1])):
        wrong = ~((value - exact).abs() < 0.01 * exact)
        bad = ~(value >= 0)
        print(f"{name}: {wrong.float().mean():.1%} wrong by more than 1 %, {bad.float().mean():.1%} negative or NaN")


if __name__ == "__main__":
    main()
