"""What the diagnostics look at, checked once: a policy with a latent, and the estimators of its likelihood."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.estimators.protocol import Estimator
from p3kernels.nn import mlp_layers

Estimators = Mapping[str, Estimator]
"""Several of them, by name."""
Result = TypeVar("Result")


class LatentPolicy(NamedTuple):
    """π(a | o) = ∫ N(a | actor([context, z]), action_std²) N(z | latent_mean, latent_std²) dz of B observations.

    In the order of the arguments of `Estimator.policy`: `estimator.policy(*latent_policy)`.
    """

    actor: nn.Sequential
    """Linear and ELU, ReLU or LeakyReLU layers; takes [context, z]."""
    context: Tensor
    """[B, C], deterministic, float32 or float64."""
    latent_mean: Tensor
    """[B, Z]."""
    latent_std: Tensor
    """[B, Z], ≥ 0."""
    action_std: Tensor
    """[A] or [B, A], > 0: the exploration noise."""

    def rows(self, rows: slice | Tensor) -> LatentPolicy:
        """The policy of some of the observations."""
        parts = (self.context[rows], self.latent_mean[rows], self.latent_std[rows])
        return LatentPolicy(self.actor, *parts, self.action_std if self.action_std.ndim == 1 else self.action_std[rows])

    def detached(self) -> LatentPolicy:
        """The same actor on tensors without a gradient."""
        _, *parts = self
        return LatentPolicy(self.actor, *(part.detach() for part in parts))


def takes_policy(function: Callable[..., Result]) -> Callable[..., Result]:
    """Lets a function of `policy` be given the five parts of a `LatentPolicy` instead, by position or by name."""
    parameters = list(inspect.signature(function).parameters.values())
    place = [parameter.name for parameter in parameters].index("policy")
    parts = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in LatentPolicy._fields]
    spread = inspect.Signature([*parameters[:place], *parts, *parameters[place + 1 :]])

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Result:
        if "policy" in options or isinstance(args[place] if len(args) > place else None, LatentPolicy):
            return function(*args, **options)
        given = spread.bind(*args, **options).arguments
        policy = LatentPolicy(*(given.pop(name) for name in LatentPolicy._fields))
        return function(policy=policy, **given)

    return call


def diagnostic(function: Callable[..., Result]) -> Callable[..., Result]:
    """`takes_policy`, with the policy checked, and the `estimator` or `estimators` before it where there are any."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **options: Any) -> Result:
        given = signature.bind(*args, **options).arguments
        check_estimated(given.get("estimator", given.get("estimators", {})), given["policy"])
        return function(*args, **options)

    return takes_policy(checked)


@contextlib.contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
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


def check_estimator(estimator: object, name: str = "estimator") -> None:
    """Raises TypeError unless it has `policy` and `recall`."""
    if not all(callable(getattr(estimator, name, None)) for name in ("policy", "recall")):
        raise TypeError(f"{name}: expected MomentMatching, MonteCarlo or alike, got {type(estimator).__name__}")


def judged_twice(
    estimator: Estimator, policy: LatentPolicy, action: Tensor | None = None, *, common: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """An action [B, A], drawn unless it is given, its remembered log-likelihood and the one of judging it again, [B].

    As a trainer does it, under one and the same weights; the second is differentiable.

    Args:
        estimator: Estimator of both.
        policy: Policy of both.
        action: One that was taken.
        common: Both see the same latents, whatever the estimator.
    """
    seed = torch.randint(2**62, (1,))
    stream = {"stream": torch.arange(len(policy.context), device=policy.context.device)}
    acting = estimator.policy(*policy)
    action = acting.sample() if action is None else action
    if common:
        return action, acting.remember(action)["log_prob"], acting.log_prob(action)
    with torch.no_grad():
        judging = estimator.recall(*policy, stream, seed) if estimator.deferred else acting
        remembered = stream | judging.remember(action)
    return action, remembered["log_prob"], estimator.recall(*policy, remembered, seed).log_prob(action)


def check_count(name: str, value: object, least: int) -> None:
    """Raises ValueError unless `value` is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected an integer >= {least}, got {value!r}")


def check_estimated(estimators: Estimator | Estimators, policy: LatentPolicy) -> None:
    """`check_policy`, and one estimator or several by their names."""
    for name, estimator in (estimators if isinstance(estimators, Mapping) else {"estimator": estimators}).items():
        check_estimator(estimator, name)
    check_policy(policy)


def check_clip(clip: float) -> None:
    """Raises ValueError unless `clip`, PPO's ε, is between 0 and 1."""
    if not 0 < clip < 1:
        raise ValueError(f"clip: expected a number between 0 and 1, got {clip!r}")


def check_policy(policy: LatentPolicy) -> None:
    """Raises TypeError or ValueError, naming the argument, for kinds, shapes and numbers that do not fit."""
    actor, context, latent_mean, latent_std, action_std = policy
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
    """Here a pass and a sync are cheap, and a NaN would end in a message from deep inside or in a wrong number."""
    named = [*inputs.items(), ("latent_std", latent_std), ("action_std", action_std)]
    for name, tensor in [*named, *(("actor", parameter) for parameter in parameters)]:
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name}: expected finite numbers, got {tensor[~tensor.isfinite()][0].item()}")
    if bool((latent_std < 0).any()):
        raise ValueError(f"latent_std: expected values >= 0, the least is {latent_std.min().item()}")
    if not bool((action_std > 0).all()):
        raise ValueError(f"action_std: expected values > 0, the least is {action_std.min().item()}")
