"""VAE, the paper's primary baseline: one latent sample stands for the marginal likelihood.

"The VAE baseline is its [MC-only's] single-sample case (N = 1)." The encoder gives q(z | o); one z is drawn for each
observation of a minibatch, the actor acts on it, the decoder reconstructs from the same z, and the ratio of PPO is that
of two single components. Encoder, decoder, β and everything else are P³'s.
"""

from __future__ import annotations

from p3kernels import MonteCarlo
from trainer.algorithms.method import Method, vae_method


def method() -> Method:
    """`--method vae`."""
    return vae_method("vae", MonteCarlo(1))
