"""MC-only (N): Monte Carlo from the first iteration to the last.

"MC-only (N) trains from initialization with N latent samples." The likelihood is the mean over N components,
log (1/N) Σᵢ N(a | actor(o, zᵢ), σ²), with gradients to actor and encoder through all of them; there is no phase of
moment matching before it. The paper's values of N are 5, 15 and 50.
"""

from __future__ import annotations

from p3kernels import MonteCarlo
from trainer.algorithms.method import Method, vae_method


def method(num_samples: int) -> Method:
    """`--method "mc(N)"`."""
    return vae_method(f"mc({num_samples})", MonteCarlo(num_samples))
