"""AutoEncoder (AE): the VAE without its stochastic latent.

"The AutoEncoder (AE) baseline removes latent-space stochasticity from the VAE while keeping the encoder, decoder,
actor, critic, and all other architectural elements identical." The heads of the encoder have no outputs for a variance,
the decoder reconstructs from z itself, and without a distribution there is no KL and no β. Policy gradient and
reconstruction train the encoder together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from p3kernels import LatentMean
from trainer.algorithms.method import Method
from trainer.config import EncoderConfig
from trainer.models.actor import Policy, RepresentationLoss
from trainer.models.networks import Latent
from trainer.models.p3_actor import EncoderDecoderActor


def method() -> Method:
    """`--method ae`."""
    return Method("ae", actor=f"{__name__}:AutoEncoderActor", phases=(LatentMean(),), options=EncoderConfig)


class AutoEncoderActor(EncoderDecoderActor):
    """z = encoder(o), deterministic; arguments as for `EncoderDecoderActor`."""

    stochastic = False

    def representation_loss(
        self, policy: Policy, latent: Latent, batch: Mapping[str, Any], rollout: Mapping[str, Any]
    ) -> RepresentationLoss:
        """MSE(y) of decoding z."""
        errors = self.reconstruct(latent.mean, latent, batch)
        parts, made = errors.parts(), None if errors.made is None else (errors.made,)
        return RepresentationLoss(parts, dict.fromkeys(parts, self.representation_coef), made)
