"""What a training method is made of: an actor, and the estimators of its marginal likelihood, one a phase."""

from __future__ import annotations

from dataclasses import dataclass

from p3kernels.estimators import Estimator

SHARED_OPTIONS = ("hidden_dims", "init_std")
"""Settings that every actor takes."""


@dataclass(frozen=True)
class Method:
    """A `--method`. Everything else, PPO's settings, critic and task, is the same for all of them."""

    name: str
    """As on the command line."""
    actor: str
    """Where its actor is, "package.module:Class"."""
    phases: tuple[Estimator, ...]
    """The estimators, in the order in which they train; the weights go on from one to the next."""
    options: tuple[str, ...] = ()
    """Settings that its actor takes beyond `SHARED_OPTIONS`."""

    @property
    def estimator(self) -> Estimator:
        """With which it begins."""
        return self.phases[0]

    @property
    def changes(self) -> int:
        """How often it changes its estimator."""
        return len(self.phases) - 1


def vae_method(name: str, *phases: Estimator) -> Method:
    """A method on the paper's β-VAE: these differ in their estimators alone."""
    latent_noise = ("latent_noise_coef", "latent_noise_target", "latent_init_scale")
    options = ("proprio_latent", "extero_latent", "beta", "kl_reduction", "representation_coef", *latent_noise)
    return Method(name, "trainer.models:P3Actor", phases, options)
