"""What a training method is made of: an actor, and the estimators of its marginal likelihood, one a phase."""

from __future__ import annotations

from dataclasses import dataclass

from p3kernels.estimators import Estimator
from trainer.config import ActorConfig, ModelConfig


@dataclass(frozen=True)
class Method:
    """A `--method`. Everything else, PPO's settings, critic and task, is the same for all of them."""

    name: str
    """Name on the command line."""
    actor: str
    """Where its actor is, "package.module:Class"."""
    phases: tuple[Estimator, ...]
    """The estimators, in the order in which they train; the weights go on from one to the next."""
    options: type[ActorConfig] = ActorConfig
    """The class whose fields are the settings that its actor takes."""
    latent_noise_coef: float = 0.0
    """Weight of the Σλ term where none is given."""

    @property
    def has_latent_distribution(self) -> bool:
        """Whether its actor has a distribution over latents, as a VAE has, for an estimator to integrate over."""
        return issubclass(self.options, ModelConfig)

    @property
    def estimator(self) -> Estimator:
        """The estimator that it begins with."""
        return self.phases[0]

    @property
    def changes(self) -> int:
        """How often it changes its estimator."""
        return len(self.phases) - 1


def vae_method(name: str, *phases: Estimator, latent_noise_coef: float = 0.0) -> Method:
    """A method on the paper's β-VAE: these differ in their estimators, and in the pressure on the latent's noise."""
    return Method(name, "trainer.models:P3Actor", phases, ModelConfig, latent_noise_coef)
