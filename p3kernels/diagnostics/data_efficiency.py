"""Data efficiency: the share of samples that an estimator's own noise leaves inside PPO's clipping interval."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.nn import mlp_layers


class Policy(Protocol):
    """What `Estimator.policy` returns, as far as it is needed here."""

    def sample(self) -> Tensor:
        """An action [B, A]."""

    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""


class Estimator(Protocol):
    """`MomentMatching`, `MonteCarlo`, or anything with their method."""

    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> Policy:
        """The marginal policy; a second call is evaluated independently of the first."""


@dataclass(frozen=True)
class DataEfficiency:
    """D_eff as a share, and how well it is known."""

    share: float
    """In [0, 1]; the paper gives it in percent."""
    standard_error: float
    """Of `share` as that of all observations of this kind: rows are taken as independent, the repeats of a row are
    not. NaN for one row, which says nothing about others."""
    count: int
    """M: rows times repeats."""


@torch.no_grad()
def data_efficiency(
    estimator: Estimator,
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    action_std: Tensor,
    *,
    clip: float = 0.2,
    repeats: int = 1,
    seed: int | None = None,
) -> DataEfficiency:
    """D_eff = (1/M) Σ_i 1[1 - ε ≤ r̂_i ≤ 1 + ε], where the current and the old policy are one and the same.

    An action is drawn from the policy, its likelihood is estimated twice, with independent latents, and r̂ is the ratio
    of the two. The exact ratio is 1, so what is outside was put there by the estimator. A deterministic estimator has
    exactly 1, and so has every estimator where the latent is certain. A ratio that is not a number is outside.

    Args:
        estimator: `MomentMatching()`, `MonteCarlo(n)` or alike.
        actor: Linear and ELU, ReLU or LeakyReLU layers; takes [context, z].
        context: [B, C], deterministic, float32 or float64.
        latent_mean: [B, Z]; Z may be 0.
        latent_std: [B, Z], ≥ 0.
        action_std: [A] or [B, A], > 0.
        clip: ε, between 0 and 1.
        repeats: Actions drawn a row, each with two likelihoods of its own.
        seed: Makes the result repeatable and leaves torch's generators as they are; None draws from them.

    Raises:
        TypeError: An argument of another kind or dtype.
        ValueError: A shape or a number that does not fit.
    """
    _check(estimator, actor, context, latent_mean, latent_std, action_std)
    if not 0 < clip < 1:
        raise ValueError(f"clip: expected a number between 0 and 1, got {clip!r}")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats: expected an integer >= 1, got {repeats!r}")
    inside = context.new_zeros(len(context))
    with _seeded(seed, context.device):
        for _ in range(repeats):
            current = estimator.policy(actor, context, latent_mean, latent_std, action_std)
            old = estimator.policy(actor, context, latent_mean, latent_std, action_std)
            action = current.sample()
            ratio = (current.log_prob(action) - old.log_prob(action)).exp()
            inside += (1 - clip <= ratio) & (ratio <= 1 + clip)
    shares = inside.double() / repeats
    rows = len(shares)
    error = shares.std().item() / math.sqrt(rows) if rows > 1 else math.nan
    return DataEfficiency(shares.mean().item(), error, rows * repeats)


@contextlib.contextmanager
def _seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Torch's generators of the CPU and of `device` at `seed`, and as before in the end; None changes nothing."""
    if seed is None:
        yield
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"seed: expected an integer, got {type(seed).__name__}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed: expected 0 <= seed < 2**63, got {seed}")
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would set every GPU's as well
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def _check(
    estimator: Estimator,
    actor: nn.Sequential,
    context: Tensor,
    latent_mean: Tensor,
    latent_std: Tensor,
    action_std: Tensor,
) -> None:
    if not callable(getattr(estimator, "policy", None)):
        raise TypeError(f"estimator: expected MomentMatching, MonteCarlo or alike, got {type(estimator).__name__}")
    layers = mlp_layers(actor)
    checks.check_tensor("context", context, 2)
    rows = context.shape[0]
    if rows == 0:
        raise ValueError(f"context: expected at least one row, got {checks.shape_text(context.shape)}")
    for name, tensor in (("latent_mean", latent_mean), ("latent_std", latent_std)):
        checks.check_tensor(name, tensor, 2)
        checks.check_like(name, tensor, "context", context)
        if tensor.shape[0] != rows:
            raise ValueError(f"{name}: expected {rows} rows, as context has, got {checks.shape_text(tensor.shape)}")
    checks.check_shape("latent_std", latent_std, latent_mean.shape)
    inputs, actions = layers.weights[0].shape[1], layers.weights[-1].shape[0]
    if inputs != context.shape[1] + latent_mean.shape[1]:
        raise ValueError(
            f"actor: expected {context.shape[1]} + {latent_mean.shape[1]} inputs, one a column of context and "
            f"latent_mean, got {inputs}"
        )
    checks.check_tensor("action_std", action_std)
    checks.check_like("action_std", action_std, "context", context)
    if tuple(action_std.shape) not in ((actions,), (rows, actions)):
        raise ValueError(
            f"action_std: expected shape [{actions}] or [{rows}, {actions}], got {checks.shape_text(action_std.shape)}"
        )
    for weight in layers.weights:
        checks.check_like("actor", weight, "context", context)
    _check_numbers(latent_std, action_std, {"context": context, "latent_mean": latent_mean}, list(actor.parameters()))


def _check_numbers(latent_std: Tensor, action_std: Tensor, inputs: dict[str, Tensor], parameters: list[Tensor]) -> None:
    """Here a pass and a sync are cheap, and a NaN would end in a message from deep inside or in a wrong share."""
    named = [*inputs.items(), ("latent_std", latent_std), ("action_std", action_std)]
    for name, tensor in [*named, *(("actor", parameter) for parameter in parameters)]:
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: expected finite numbers, got {tensor[~tensor.isfinite()][0].item()}")
    if bool((latent_std < 0).any()):
        raise ValueError(f"latent_std: expected values >= 0, the least is {latent_std.min().item()}")
    if not bool((action_std > 0).all()):
        raise ValueError(f"action_std: expected values > 0, the least is {action_std.min().item()}")
