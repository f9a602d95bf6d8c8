"""VAE as open implementations have it: the paper's statements about VAE policies are statements about this one.

Forks of rsl_rl for VAE policies store the log-likelihood and the mean of the component that acted, draw a new latent in
the update, and adapt the learning rate to the closed-form KL of single components. The ratio then compares two latents
as much as two policies, and the KL is inflated by about Σv/σ². `vae` repairs that: both of its likelihoods are drawn
independently of the latent that acted. Encoder, decoder, β and everything else are P³'s.
"""

from __future__ import annotations

from p3kernels.estimators import StoredComponent
from trainer.algorithms.method import Method, vae_method


def method() -> Method:
    """`--method vae-stored`."""
    return vae_method("vae-stored", StoredComponent())
