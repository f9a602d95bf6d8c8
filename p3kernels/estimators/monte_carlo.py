"""`MonteCarlo`: the marginal likelihood averaged over samples of the latent."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from p3kernels.estimators.gaussian import gaussian_entropy
from p3kernels.estimators.one_launch import act_in_one_launch
from p3kernels.nn import mlp_layers
from p3kernels.ops.mlp_mixture_log_prob import mlp_mixture_log_prob
from p3kernels.reference.latent_noise import SAMPLING


@dataclass(frozen=True)
class MonteCarloPolicy:
    """(1/N) Σ_i N(actor([context, z_i]), action_std²). The samples are the object's: its calls agree."""

    actor: nn.Sequential
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    action_std: Tensor
    num_samples: int
    sampling: str
    seed: Tensor
    noise: Tensor | None = None
    """[N, B, Z] of `log_prob`, instead of the seed's."""
    backend: str | None = None

    def _act(self, noise: Tensor) -> Tensor:
        latent = self.latent_mean + self.latent_std * noise
        with torch.autocast(latent.device.type, enabled=False):
            return self.actor(torch.cat([self.context, latent], -1).to(self.action_std.dtype))

    def sample(self) -> Tensor:
        """An action [B, A], without gradient: a fresh latent, independent of those in `log_prob`, then exploration."""
        with torch.no_grad():
            mean = act_in_one_launch(self.actor, self.context, self.latent_mean, self.latent_std, self.backend)
            if mean is None:
                mean = self._act(torch.randn_like(self.latent_mean))
            return mean + self.action_std * torch.randn_like(mean)

    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""
        layers = mlp_layers(self.actor)
        return mlp_mixture_log_prob(
            action,
            self.context,
            self.latent_mean,
            self.latent_std,
            layers.weights,
            layers.biases,
            self.action_std,
            num_samples=self.num_samples,
            seed=self.seed if self.noise is None else None,
            noise=self.noise,
            sampling=self.sampling,
            activation=layers.activation,
            activation_parameter=layers.activation_parameter,
            backend=self.backend,
        )

    @functools.cached_property
    def _component_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance [B, A] of the component means, over N fresh latents, one at a time."""
        mean = self._act(torch.randn_like(self.latent_mean))
        squares = torch.zeros_like(mean)
        for count in range(2, self.num_samples + 1):
            value = self._act(torch.randn_like(self.latent_mean))
            delta = value - mean
            mean = mean + delta / count
            squares = squares + delta * (value - mean)
        return mean, squares / max(self.num_samples - 1, 1)

    @property
    def mean(self) -> Tensor:
        """[B, A]: the mixture's mean, estimated from N latents."""
        return self._component_moments[0]

    @property
    def stddev(self) -> Tensor:
        """[B, A]: of the action, exploration and latent together, estimated from N latents."""
        return (self._component_moments[1] + self.action_std.square()).sqrt()

    def entropy(self) -> Tensor:
        """[B]: H(a | z), a lower bound. A mixture's own entropy has no closed form."""
        return gaussian_entropy(self.action_std.expand(self.latent_mean.shape[0], -1))

    def latent(self) -> Tensor:
        """A latent [B, Z], differentiable, for a decoder: with one sample the one of `log_prob`, else drawn anew."""
        noise = torch.randn_like(self.latent_mean) if self.noise is None else self.noise[0]
        return self.latent_mean + self.latent_std * noise


@dataclass(frozen=True)
class MonteCarlo:
    """The likelihood averaged over latent samples: unbiased, no independence assumed, N times the actor's cost.

    Args:
        num_samples: N.
        sampling: "iid", "antithetic" or "sobol" (randomised); see `mlp_mixture_log_prob`.
        backend: As for the ops.
    """

    num_samples: int = 15
    sampling: str = "iid"
    backend: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.num_samples, bool) or not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise ValueError(f"num_samples: expected an integer >= 1, got {self.num_samples!r}")
        if self.sampling not in SAMPLING:
            raise ValueError(f"sampling: expected one of {', '.join(SAMPLING)}, got {self.sampling!r}")

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> MonteCarloPolicy:
        """The marginal policy, with latents drawn anew; arguments as for `MomentMatching.policy`."""
        mlp_layers(actor)
        seed = torch.randint(2**62, (1,))
        # A VAE's decoder and actor see one and the same latent; with more samples there is no such one.
        noise = torch.randn_like(latent_mean)[None] if self.num_samples == 1 else None
        return MonteCarloPolicy(
            actor,
            context,
            latent_mean,
            latent_std,
            action_std,
            self.num_samples,
            self.sampling,
            seed,
            noise,
            self.backend,
        )
