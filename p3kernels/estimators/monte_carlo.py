"""`MonteCarlo`: the marginal likelihood averaged over samples of the latent."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.gaussian import gaussian_entropy
from p3kernels.estimators.one_launch import act_in_one_launch
from p3kernels.estimators.protocol import Estimator, Judgement, Policy
from p3kernels.nn import mlp_layers
from p3kernels.ops.latent_noise import check_rows, noise_of_sample, seed_tensor
from p3kernels.ops.mlp_mixture_log_prob import mlp_mixture_log_prob
from p3kernels.reference.latent_noise import SAMPLING


@dataclass(frozen=True)
class MonteCarloPolicy(Policy):
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
    rows: Tensor | None = None
    """[B] int64: the numbers of the rows' noise streams; None for their places."""
    common: bool = False
    """Whether every latent but that of `sample` is the one that the seed and the rows' numbers name."""

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
            rows=self.rows if self.noise is None else None,
            activation=layers.activation,
            activation_parameter=layers.activation_parameter,
            backend=self.backend,
        )

    @functools.cached_property
    def _component_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance [B, A] of the component means, over N latents, one at a time: fresh ones, or the common."""
        mean = self._act(self._component_noise(0))
        squares = torch.zeros_like(mean)
        for count in range(2, self.num_samples + 1):
            value = self._act(self._component_noise(count - 1))
            delta = value - mean
            mean = mean + delta / count
            squares = squares + delta * (value - mean)
        return mean, squares / max(self.num_samples - 1, 1)

    def _component_noise(self, sample: int) -> Tensor:
        """[B, Z]."""
        if not self.common:
            return torch.randn_like(self.latent_mean)
        if self.noise is not None:
            return self.noise[sample]
        return noise_of_sample(
            self.latent_mean, self.seed, sample, self.num_samples, self.sampling, self.rows, self.backend
        )

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

    def remember(self, action: Tensor) -> dict[str, Tensor]:
        """`log_prob` [B]."""
        return {"log_prob": self.log_prob(action).detach()}

    def judge(self, action: Tensor, remembered: Mapping[str, Tensor]) -> Judgement:
        """The KL of two mixtures has no closed form: that of a row is -log r, which needs no more likelihoods."""
        log_prob = self.log_prob(action)
        return Judgement(log_prob, self.entropy(), remembered["log_prob"] - log_prob.detach())

    def latent(self) -> Tensor:
        """A latent [B, Z], differentiable, for a decoder: with one sample the one of `log_prob`, else drawn anew."""
        noise = torch.randn_like(self.latent_mean) if self.noise is None else self.noise[0]
        return self.latent_mean + self.latent_std * noise


@dataclass(frozen=True)
class MonteCarlo(Estimator):
    """The likelihood averaged over latent samples: unbiased, no independence assumed, N times the actor's cost.

    Args:
        num_samples: N.
        sampling: "iid", "antithetic" or "sobol" (randomised); see `mlp_mixture_log_prob`.
        backend: As for the ops.
        common: Common random numbers: a policy's latents are those of its seed and its rows' numbers alone, for every
            N. Two policies of the same seed and numbers, whatever their weights and the order of their rows, then
            differ by their weights and not by their draws: their log-ratio is 0 to rounding where the weights agree.
    """

    num_samples: int = 15
    sampling: str = "iid"
    backend: str | None = None
    common: bool = field(default=False, kw_only=True)
    spelling: ClassVar[str] = "mcN, with -antithetic or -sobol, with -common"
    deferred: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.num_samples, bool) or not isinstance(self.num_samples, int) or self.num_samples < 1:
            raise ValueError(f"num_samples: expected an integer >= 1, got {self.num_samples!r}")
        if self.sampling not in SAMPLING:
            raise ValueError(f"sampling: expected one of {', '.join(SAMPLING)}, got {self.sampling!r}")
        if not isinstance(self.common, bool):
            raise TypeError(f"common: expected True or False, got {self.common!r}")

    @property
    def label(self) -> str:
        """mc15, mc15-sobol, mc15-common, mc15-sobol-common, ..."""
        parts = [self.sampling] * (self.sampling != "iid") + ["common"] * self.common
        return "-".join([f"mc{self.num_samples}", *parts])

    @property
    def num_latents(self) -> int:
        """N, the number of samples."""
        return self.num_samples

    @property
    def redraws(self) -> bool:
        """Whether the numbers are not common."""
        return not self.common

    @classmethod
    def spelt(cls, text: str) -> MonteCarlo | None:
        """The one of this label; mc is mc15, and mc(15) is mc15."""
        found = re.fullmatch(r"mc(?:\((\d+)\)|(\d+))?(?:-(antithetic|sobol))?(-common)?", text)
        if found is None:
            return None
        number = found[1] or found[2]
        if number is not None and int(number) < 1:
            raise ValueError(f"expected at least one sample, got {text!r}")
        samples = cls.num_samples if number is None else int(number)
        return cls(samples, found[3] or "iid", common=found[4] is not None)

    def policy(
        self,
        actor: nn.Sequential,
        context: Tensor,
        latent_mean: Tensor,
        latent_std: Tensor,
        action_std: Tensor,
        seed: int | Tensor | None = None,
        rows: Tensor | None = None,
    ) -> MonteCarloPolicy:
        """The marginal policy.

        Args:
            actor: As for `MomentMatching.policy`; the next four alike.
            context: [B, C].
            latent_mean: [B, Z].
            latent_std: [B, Z].
            action_std: [A] or [B, A].
            seed: For the latents: an integer or one int64; None draws one, which `policy.seed` then tells. Given, it
                makes the latents common, whatever `self.common` says.
            rows: int64 [B], ≥ 0: the number of each row's noise stream; None for its place in the batch. Given, it
                makes the latents common as a seed does.
        """
        checks.check_policy(actor, context, latent_mean, latent_std, action_std)
        mlp_layers(actor)
        common = self.common or seed is not None or rows is not None
        drawn_from = torch.randint(2**62, (1,)) if seed is None else seed_tensor(seed, None, latent_mean.device)
        if rows is not None:
            check_rows(rows, "latent_mean", latent_mean)
        # A VAE's decoder and actor see one and the same latent; with more samples there is no such one.
        noise = None
        if self.num_samples == 1:
            noise = (
                noise_of_sample(latent_mean, drawn_from, 0, 1, self.sampling, rows, self.backend)
                if common
                else torch.randn_like(latent_mean)
            )[None]
        return MonteCarloPolicy(
            actor,
            context,
            latent_mean,
            latent_std,
            action_std,
            self.num_samples,
            self.sampling,
            drawn_from,
            noise,
            self.backend,
            rows,
            common,
        )

    def recalled(self, remembered: Mapping[str, Tensor], seed: Tensor | None) -> dict[str, Any]:
        """With common numbers the seed and the rows' numbers, `remembered["stream"]`; otherwise latents drawn anew."""
        return {"seed": seed, "rows": remembered["stream"]} if self.common else {}
