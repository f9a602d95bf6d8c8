"""Gaussian policies, what the deterministic estimators give: independent actions, or correlated ones."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.few_launches import drawn, squared
from p3kernels.estimators.protocol import Judgement, Policy
from p3kernels.nn import mlp_layers
from p3kernels.ops.gaussian_head import gaussian_head
from p3kernels.ops.mixture_log_prob import mixture_log_prob

ENTROPY_OF_UNIT_NORMAL = 0.5 * math.log(2 * math.pi * math.e)


def gaussian_entropy(std: Tensor) -> Tensor:
    """[B] of independent Gaussians of std [B, A]."""
    return (std.log() + ENTROPY_OF_UNIT_NORMAL).sum(-1)


def gaussian_kl(old_mean: Tensor, old_scale: Tensor, new_mean: Tensor, new_scale: Tensor) -> Tensor:
    """KL(old ‖ new) [..., B] of Gaussians of mean [..., B, A].

    The scales are both stds, [A] or [B, A], or both Cholesky factors [B, A, A].
    """
    if old_scale.dim() <= old_mean.dim():
        ratio = old_scale / new_scale
        shift = (old_mean - new_mean) / new_scale
        return (0.5 * (ratio.square() + shift.square() - 1.0) - ratio.log()).sum(-1)
    whitened = torch.linalg.solve_triangular(
        new_scale, torch.cat([old_scale, (old_mean - new_mean)[..., None]], -1), upper=False
    )
    diagonals = [scale.diagonal(dim1=-2, dim2=-1).log().sum(-1) for scale in (old_scale, new_scale)]
    return 0.5 * (whitened.square().sum((-2, -1)) - old_mean.shape[-1]) - diagonals[0] + diagonals[1]


def propagated(
    op: Callable[..., tuple[Tensor, Tensor]],
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """What an op of mean, variance and layers gives for [context, z] through the actor."""
    layers = mlp_layers(actor)
    network = (layers.weights, layers.biases, layers.activation, layers.activation_parameter)
    return op(torch.cat([context, latent_mean], -1), squared(latent_std), *network, **options)


class _Gaussian(Policy):
    """What both Gaussian policies are: deterministic given the observation, their latent anybody's."""

    latent_mean: Tensor
    latent_std: Tensor

    def remember(self, action: Tensor) -> dict[str, Tensor]:
        """`log_prob` [B], and the Gaussian itself: `mean` [B, A] and `scale`, std or Cholesky factor as in `params`."""
        mean, scale = (param.detach() for param in self.params)
        return {"log_prob": self.log_prob(action).detach(), "mean": mean, "scale": scale}

    def latent(self) -> Tensor:
        """A latent [B, Z], differentiable, drawn anew: for a decoder."""
        return drawn(self.latent_mean, self.latent_std)


@dataclass(frozen=True)
class GaussianPolicy(_Gaussian):
    """N(mean, diag(latent_var) + action_std²): deterministic given the observation."""

    mean: Tensor
    """[B, A]."""
    latent_var: Tensor
    """[B, A]: what the latent's uncertainty adds to the action's variance."""
    action_std: Tensor
    """[A] or [B, A]: the exploration noise."""
    latent_mean: Tensor
    """[B, Z]."""
    latent_std: Tensor
    """[B, Z]."""
    backend: str | None = None

    @functools.cached_property
    def stddev(self) -> Tensor:
        """[B, A]: of the action, exploration and latent together."""
        return (self.latent_var + self.action_std.square()).sqrt()

    @property
    def covariance(self) -> Tensor:
        """[B, A, A]: of the action, diagonal."""
        return torch.diag_embed(self.stddev.square())

    @property
    def params(self) -> tuple[Tensor, Tensor]:
        """Mean and std [B, A]: all that a likelihood or a KL needs."""
        return self.mean, self.stddev

    def sample(self) -> Tensor:
        """An action [B, A], without gradient."""
        std = self.stddev  # kept with its gradient: a likelihood may be asked for next
        with torch.no_grad():
            return torch.normal(self.mean, std)

    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""
        return mixture_log_prob(action, self.mean[None], self.stddev, backend=self.backend)

    def entropy(self) -> Tensor:
        """[B], exact for this Gaussian."""
        return gaussian_entropy(self.stddev)

    def judge(self, action: Tensor, remembered: Mapping[str, Tensor]) -> Judgement:
        """Everything in closed form, at once."""
        old = remembered["mean"], remembered["scale"]
        return Judgement(
            *gaussian_head(action, self.mean, self.latent_var, self.action_std, *old, backend=self.backend)
        )


@dataclass(frozen=True)
class CorrelatedGaussianPolicy(_Gaussian):
    """N(mean, latent_covariance + diag(action_std²)): deterministic given the observation."""

    mean: Tensor
    """[B, A]."""
    latent_covariance: Tensor
    """[B, A, A]: what the latent's uncertainty adds to the action's covariance."""
    action_std: Tensor
    """[A] or [B, A]: the exploration noise."""
    latent_mean: Tensor
    """[B, Z]."""
    latent_std: Tensor
    """[B, Z]."""

    @functools.cached_property
    def covariance(self) -> Tensor:
        """[B, A, A]: of the action, exploration and latent together.

        Its diagonal is larger by 16 A roundings (a share of 6e-5 for 29 actions in float32), so that it has a Cholesky
        factor whatever the exploration: without noise the latent's part may be singular, and then negative by rounding.
        """
        actions = self.mean.shape[-1]
        whole = self.latent_covariance + torch.diag_embed(self.action_std.square().expand_as(self.mean))
        share = 16 * actions * torch.finfo(whole.dtype).eps
        return whole + torch.diag_embed(share * whole.diagonal(dim1=-2, dim2=-1))

    @functools.cached_property
    def scale_tril(self) -> Tensor:
        """[B, A, A]: the covariance's Cholesky factor; NaN in rows that have none, their numbers not being finite."""
        factor, failed = torch.linalg.cholesky_ex(self.covariance)
        return torch.where((failed == 0)[:, None, None], factor, math.nan)

    @functools.cached_property
    def stddev(self) -> Tensor:
        """[B, A]: of the action, exploration and latent together."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    @property
    def params(self) -> tuple[Tensor, Tensor]:
        """Mean [B, A] and Cholesky factor [B, A, A]: all that a likelihood or a KL needs."""
        return self.mean, self.scale_tril

    def sample(self) -> Tensor:
        """An action [B, A], without gradient."""
        factor = self.scale_tril  # kept with its gradient: a likelihood may be asked for next
        with torch.no_grad():
            return self.mean + (factor @ torch.randn_like(self.mean)[..., None]).squeeze(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""
        checks.check_tensor("action", action, 2)
        checks.check_like("action", action, "mean", self.mean)
        checks.check_shape("action", action, self.mean.shape)
        white = torch.linalg.solve_triangular(self.scale_tril, (action - self.mean)[..., None], upper=False).squeeze(-1)
        return -0.5 * white.square().sum(-1) - self._log_scale

    def entropy(self) -> Tensor:
        """[B], exact for this Gaussian."""
        return 0.5 * self.mean.shape[-1] + self._log_scale

    def judge(self, action: Tensor, remembered: Mapping[str, Tensor]) -> Judgement:
        """Everything in closed form; no gradient through the KL, whose solve costs more than the likelihood's."""
        params = self.params  # kept with their gradient, which the likelihood needs
        with torch.no_grad():
            kl = gaussian_kl(remembered["mean"], remembered["scale"], *params)
        return Judgement(self.log_prob(action), self.entropy(), kl)

    @functools.cached_property
    def _log_scale(self) -> Tensor:
        """[B]: log √det(2π Σ)."""
        log_diagonal = self.scale_tril.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return log_diagonal + 0.5 * math.log(2 * math.pi) * self.mean.shape[-1]
