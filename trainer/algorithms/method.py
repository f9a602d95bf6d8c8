"""What a training method is made of: an actor, and the estimators of its marginal likelihood."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.models.actor import Estimator

SHARED_OPTIONS = ("hidden_dims", "init_std")
"""Settings that every actor takes."""


@dataclass(frozen=True)
class Method:
    """A `--method`. Everything else, PPO's settings, critic and task, is the same for all of them."""

    name: str
    """As on the command line."""
    actor: str
    """Where its actor is, "package.module:Class"."""
    estimator: Estimator
    """With which it begins."""
    then: Estimator | None = None
    """To which it changes, once; None to stay."""
    options: tuple[str, ...] = ()
    """Settings that its actor takes beyond `SHARED_OPTIONS`."""


def vae_method(name: str, estimator: Estimator, then: Estimator | None = None) -> Method:
    """A method on the paper's β-VAE: these differ in their estimators alone."""
    options = ("proprio_latent", "extero_latent", "beta", "representation_coef")
    return Method(name, "trainer.models:P3Actor", estimator, then, options)
