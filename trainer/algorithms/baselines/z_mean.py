"""z = mean: the VAE is trained as ever, but the actor never sees its uncertainty.

Not among the paper's baselines. The policy is N(actor(o, E[z]), σ²): no sampling noise in the ratio, as with moment
matching, and no latent variance either. What P³ gains over this row is what propagating the variance is worth; the
decoder still reconstructs from a sample, so the latent remains a VAE's.
"""

from __future__ import annotations

from p3kernels import LatentMean
from trainer.algorithms.method import Method, vae_method


def method() -> Method:
    """`--method z-mean`."""
    return vae_method("z-mean", LatentMean())
