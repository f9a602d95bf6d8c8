"""The methods by name: one estimator of the marginal likelihood or several in phases, P³ among them, and baselines.

Several phases are joined by +: `mm+mc15` is P³, the paper's LSFT after moment matching, `mm+shared` and
`cm+mc50-common` are others. MC-only (N), the paper's "trains from initialization with N latent samples", is `mcN`.
`quiet` is ours: moment matching with the Σλ term, for a policy that does not depend on its latent's noise.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.estimators import Estimator
from p3kernels.estimators.protocol import estimator_types
from trainer.algorithms.baselines import ae, simple_actor_critic, spr, vae, vae_stored, z_mean
from trainer.algorithms.method import Method, vae_method
from trainer.config.names import did_you_mean

DEFAULT_SAMPLES = 15
"""The paper's N for LSFT."""
QUIET_COEF = 0.005
"""Weight of the Σλ term of `quiet`, as the pilot decided (docs/preregistration.md)."""


def _quiet() -> Method:
    return vae_method("quiet", MomentMatching(), latent_noise_coef=QUIET_COEF)


_NAMED: dict[str, Callable[[], Method]] = {
    "quiet": _quiet,
    "vae": vae.method,
    "vae-stored": vae_stored.method,
    "z-mean": z_mean.method,
    "ae": ae.method,
    "spr": spr.method,
    "simple-actor-critic": simple_actor_critic.method,
}
METHODS = ("p3", "mm", "cm", "cm-diagonal", "cm-unscented", "mc", "shared", *_NAMED)
"""By the names that have no settings of their own, for help and for near misses."""


def parse_method(text: str) -> Method:
    """The method called `text`: p3, p3(N), a baseline, an estimator such as mm, mc15 or shared, or phases joined by +.

    Raises:
        ValueError: Something else, or phases that do not follow each other.
    """
    if text in _NAMED:
        return _NAMED[text]()
    found = re.fullmatch(r"p3(?:\((\d+)\))?", text)
    if found is not None:
        num_samples = DEFAULT_SAMPLES if found[1] is None else _at_least_one(int(found[1]), text)
        return vae_method(f"p3({num_samples})", MomentMatching(), MonteCarlo(num_samples))
    phases = tuple(_phase(part, text) for part in text.split("+"))
    for before, after in itertools.pairwise(phases):
        if before == after:
            raise ValueError(f"method: expected a phase after {before.label} that differs from it, got {text!r}")
    return vae_method("+".join(phase.label for phase in phases), *phases)


def _phase(part: str, text: str) -> Estimator:
    if part == "vae":
        return vae.method().estimator
    for kind in estimator_types():
        try:
            found = kind.spelt(part)
        except ValueError as error:  # its own spelling, with settings that cannot be
            raise ValueError(f"method: {error}") from None
        if found is not None:
            return found
    hint = did_you_mean(part, METHODS)
    phases = ", ".join(kind.spelling for kind in estimator_types())
    raise ValueError(
        f"method: expected p3, p3(N), {', '.join(_NAMED)}, or phases joined by + of {phases}, got {text!r}{hint}"
    )


def _at_least_one(num_samples: int, text: str) -> int:
    if num_samples < 1:
        raise ValueError(f"method: expected at least one sample, got {text!r}")
    return num_samples
