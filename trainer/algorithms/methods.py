"""The methods by name: P³, its two estimators on their own, covariance matching, and the baselines."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable

from p3kernels import CovarianceMatching, MomentMatching, MonteCarlo
from trainer.algorithms.baselines import ae, mc_only, simple_actor_critic, spr, vae, z_mean
from trainer.algorithms.method import Method, vae_method

DEFAULT_SAMPLES = 15
"""The paper's N for LSFT."""


def _mm() -> Method:
    return vae_method("mm", MomentMatching())


def _cm() -> Method:
    return vae_method("cm", CovarianceMatching())


def _cm_diagonal() -> Method:
    return vae_method("cm-diagonal", CovarianceMatching(likelihood="diagonal"))


def _cm_unscented() -> Method:
    return vae_method("cm-unscented", CovarianceMatching(transform="unscented"))


def _p3(num_samples: int) -> Method:
    return vae_method(f"p3({num_samples})", MomentMatching(), MonteCarlo(num_samples))


_SAMPLED: dict[str, Callable[[int], Method]] = {"p3": _p3, "mc": mc_only.method}
_OTHERS: dict[str, Callable[[], Method]] = {
    "mm": _mm,
    "cm": _cm,
    "cm-diagonal": _cm_diagonal,
    "cm-unscented": _cm_unscented,
    "vae": vae.method,
    "z-mean": z_mean.method,
    "ae": ae.method,
    "spr": spr.method,
    "simple-actor-critic": simple_actor_critic.method,
}
METHODS = (*_SAMPLED, *_OTHERS)


def parse_method(text: str) -> Method:
    """The method called `text`: p3, p3(N), mc, mc(N), mm, cm, cm-diagonal, cm-unscented, vae, z-mean, ae, spr or
    simple-actor-critic.

    Raises:
        ValueError: Something else.
    """
    if text in _OTHERS:
        return _OTHERS[text]()
    found = re.fullmatch(r"(p3|mc)(?:\((\d+)\))?", text)
    if found is None:
        near = difflib.get_close_matches(text, METHODS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(f"method: expected p3, p3(N), mc, mc(N), {', '.join(_OTHERS)}, got {text!r}{hint}")
    num_samples = DEFAULT_SAMPLES if found[2] is None else int(found[2])
    if num_samples < 1:
        raise ValueError(f"method: expected at least one sample, got {text!r}")
    return _SAMPLED[found[1]](num_samples)
