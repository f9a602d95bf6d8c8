"""The estimators that `p3 diagnose` compares, by the names they have in its tables."""

from __future__ import annotations

from dataclasses import dataclass

from p3kernels import CovarianceMatching, LatentMean, MomentMatching, MonteCarlo
from p3kernels.diagnostics.inputs import Estimator

SAMPLES = (1, 5, 15, 50)
"""N of the paper's table."""
MOST_REPEATS = 8


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    estimator: Estimator
    common: bool = False
    """Old and new likelihood share their latents."""

    @property
    def drawn(self) -> bool:
        """Whether two evaluations differ."""
        return isinstance(self.estimator, MonteCarlo)

    @property
    def repeats(self) -> int:
        """Actions a state: as many as cost no more than a few of N = 50, and one where nothing is drawn."""
        if not isinstance(self.estimator, MonteCarlo) or self.common:
            return 1
        return max(1, min(MOST_REPEATS, 200 // self.estimator.num_samples))


def closed_form_estimators() -> dict[str, Estimator]:
    """Those whose policy is one Gaussian."""
    return {
        "MM": MomentMatching(),
        "CM": CovarianceMatching(),
        "CM, unscented": CovarianceMatching(transform="unscented"),
        "z = mean": LatentMean(),
    }


def gradient_rows() -> dict[str, Row]:
    """Of the gradient noise: each kind of sampling at one N, since a gradient costs more than a likelihood."""
    left_out = ("MC(N=50), antithetic", "MC(N=50), Sobol")
    return {name: row for name, row in efficiency_rows().items() if name not in left_out}


def efficiency_rows() -> dict[str, Row]:
    """Of the data efficiency: the paper's rows first."""
    rows = {f"MC(N={count})": Row(MonteCarlo(count)) for count in SAMPLES}
    rows |= {f"MC(N={count}), antithetic": Row(MonteCarlo(count, "antithetic")) for count in SAMPLES[2:]}
    rows |= {f"MC(N={count}), Sobol": Row(MonteCarlo(count, "sobol")) for count in SAMPLES[2:]}
    rows |= {f"MC(N={count}), common latents": Row(MonteCarlo(count), common=True) for count in (1, 15)}
    return rows | {name: Row(estimator) for name, estimator in closed_form_estimators().items()}


def estimator_label(estimator: object) -> str:
    """As a row is called."""
    if isinstance(estimator, MonteCarlo):
        kind = "" if estimator.sampling == "iid" else f", {estimator.sampling}"
        return f"MC(N={estimator.num_samples}){kind}"
    for name, known in {**closed_form_estimators(), "CM, diagonal": CovarianceMatching("diagonal")}.items():
        if estimator == known:
            return name
    return repr(estimator)
