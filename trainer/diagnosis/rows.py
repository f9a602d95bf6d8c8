"""The estimators that `p3 diagnose` compares, by the names they have in its tables."""

from __future__ import annotations

from dataclasses import dataclass

from p3kernels import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo, SharedNoise
from p3kernels.estimators import Estimator, StoredComponent

SAMPLES = (1, 5, 15, 50)
"""N of the paper's table."""
MOST_REPEATS = 8


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    estimator: Estimator

    @property
    def drawn(self) -> bool:
        """Whether two evaluations differ."""
        return self.estimator.redraws

    @property
    def repeats(self) -> int:
        """Actions a state: as many as cost no more than a few of N = 50, and one where nothing is drawn."""
        return max(1, min(MOST_REPEATS, 200 // self.estimator.num_latents)) if self.drawn else 1


def closed_form_estimators() -> dict[str, Estimator]:
    """Those whose policy is one Gaussian."""
    return {
        "MM": MomentMatching(),
        "CM": CovarianceMatching(),
        "CM, unscented": CovarianceMatching(transform="unscented"),
        "z = mean": LatentMean(),
    }


def gradient_rows() -> dict[str, Row]:
    """Rows of the gradient noise: each kind of sampling at one N, since a gradient costs more than a likelihood.

    Without those that keep the acting latent's noise: the actions of a rollout came from other noise.
    """
    left_out = ("MC(N=50), antithetic", "MC(N=50), Sobol", "shared noise", "acting component stored")
    return {name: row for name, row in efficiency_rows().items() if name not in left_out}


def fidelity_rows() -> dict[str, Row]:
    """Rows of the gradient's fidelity: every kind of estimator once, Monte Carlo as the VAE and as LSFT have it."""
    names = ("MC(N=1)", "MC(N=15)", "MC(N=15), common latents", "shared noise", "acting component stored")
    every = efficiency_rows()
    return {name: every[name] for name in (*names, "MM", "CM", "z = mean")}


def efficiency_rows() -> dict[str, Row]:
    """Rows of the data efficiency: the paper's rows first."""
    rows = {f"MC(N={count})": Row(MonteCarlo(count)) for count in SAMPLES}
    rows |= {f"MC(N={count}), antithetic": Row(MonteCarlo(count, "antithetic")) for count in SAMPLES[2:]}
    rows |= {f"MC(N={count}), Sobol": Row(MonteCarlo(count, "sobol")) for count in SAMPLES[2:]}
    rows |= {f"MC(N={count}), common latents": Row(MonteCarlo(count, common=True)) for count in (1, 15)}
    rows |= {"shared noise": Row(SharedNoise()), "acting component stored": Row(StoredComponent())}
    return rows | {name: Row(estimator) for name, estimator in closed_form_estimators().items()}
