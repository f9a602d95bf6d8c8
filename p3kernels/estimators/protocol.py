"""What every estimator and every policy can do: all that a trainer or a diagnostic may ask of one.

A policy-gradient step needs three things of the marginal policy π(a | o). An action is taken: `policy.sample()`. What
must be kept of it is remembered: `policy.remember(action)`, a dictionary of tensors with one row an action. And later,
under other weights and in any order of the rows, it is judged again: `estimator.recall(…, remembered)` is the policy
in which the remembered rows are looked at, with the noise that was remembered where the estimator keeps any, and
`policy.judge(action, remembered)` gives log-likelihood, entropy and the divergence from the policy that acted.

A new estimator is one file of this package with a subclass of `Estimator`: `parse_estimator` finds it by its spelling,
and the trainer, the diagnostics and the logs know it by its label.
"""

from __future__ import annotations

import abc
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from torch import Tensor, nn


class Judgement(NamedTuple):
    """What PPO asks about actions that were taken under other weights."""

    log_prob: Tensor
    """[B], differentiable."""
    entropy: Tensor
    """[B], differentiable; of the policy as the estimator has it."""
    kl: Tensor
    """[B]: of the policy that acted from this one. Its mean estimates the KL; single rows may be below 0."""


class Policy(abc.ABC):
    """π(a | o) of B observations, as an estimator has it."""

    if TYPE_CHECKING:  # at run time a field of a subclass would take an inherited property for its default

        @property
        def mean(self) -> Tensor:
            """[B, A]."""

        @property
        def stddev(self) -> Tensor:
            """[B, A]: of the action, exploration included."""

    @property
    def params(self) -> tuple[Tensor, ...]:
        """Mean [B, A] and std [B, A] or Cholesky factor [B, A, A] of a Gaussian policy; nothing of any other."""
        return ()

    @abc.abstractmethod
    def sample(self) -> Tensor:
        """An action [B, A], without gradient."""

    @abc.abstractmethod
    def log_prob(self, action: Tensor) -> Tensor:
        """[B] of action [B, A]."""

    @abc.abstractmethod
    def entropy(self) -> Tensor:
        """[B]."""

    @abc.abstractmethod
    def latent(self) -> Tensor:
        """A latent [B, Z], differentiable, for a decoder."""

    @abc.abstractmethod
    def remember(self, action: Tensor) -> dict[str, Tensor]:
        """What to keep of action [B, A], without gradient: `log_prob` [B] and what `Estimator.remembers` names."""

    @abc.abstractmethod
    def judge(self, action: Tensor, remembered: Mapping[str, Tensor]) -> Judgement:
        """Action [B, A] under this policy, compared with what was remembered of it."""


class Estimator(abc.ABC):
    """How the marginal likelihood is computed: frozen settings, and the policies that follow from them."""

    backend: str | None
    spelling: ClassVar[str]
    """How it is written on a command line, for help and errors; the label itself where it has no settings."""
    remembers: ClassVar[tuple[str, ...]] = ()
    """Names of what `Policy.remember` gives beside `log_prob`, in a fixed order."""
    deferred: ClassVar[bool] = False
    """Whether actions are remembered all at once, after the rollout and by its weights, rather than one step at a time:
    cheaper, and as good, where likelihoods are drawn independently of the latents that acted."""
    operators: ClassVar[bool] = True
    """Whether `policy` runs an operator of p3kernels on the actor, so that backends differ in what they keep."""

    @property
    def label(self) -> str:
        """Its name in logs and tables, which `parse_estimator` understands."""
        return self.spelling

    @property
    def num_latents(self) -> int:
        """Latents drawn for each likelihood; 0 where it is in closed form."""
        return 0

    @property
    def redraws(self) -> bool:
        """Whether two judgements of one action under the same weights differ."""
        return False

    @classmethod
    def spelt(cls, text: str) -> Estimator | None:
        """The estimator that `text` spells; None for another's.

        Raises:
            ValueError: It is this one's spelling with settings that cannot be.
        """
        return cls() if text == cls.spelling else None

    @abc.abstractmethod
    def policy(
        self, actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
    ) -> Policy:
        """The marginal policy; what is drawn is drawn anew.

        Args:
            actor: Linear and ELU, ReLU or LeakyReLU layers; takes [context, z].
            context: [B, C], deterministic.
            latent_mean: [B, Z].
            latent_std: [B, Z].
            action_std: [A] or [B, A].
        """

    def recall(
        self,
        actor: nn.Sequential,
        context: Tensor,
        latent_mean: Tensor,
        latent_std: Tensor,
        action_std: Tensor,
        remembered: Mapping[str, Tensor],
        seed: Tensor | None = None,
    ) -> Policy:
        """The policy in which remembered actions are judged; as `policy` where no noise is kept.

        Args:
            actor: As for `policy`; the next four alike.
            context: [B, C].
            latent_mean: [B, Z].
            latent_std: [B, Z].
            action_std: [A] or [B, A].
            remembered: What was remembered of these rows; more than what is needed is ignored. `stream` [B], int64, is
                a row's number in the rollout, for estimators that draw by number.
            seed: One int64, on the CPU: of all rows of a rollout, for the same estimators.
        """
        return self.policy(actor, context, latent_mean, latent_std, action_std, **self.recalled(remembered, seed))

    def recalled(self, remembered: Mapping[str, Tensor], seed: Tensor | None) -> dict[str, Any]:
        """What `policy` is given beside its five arguments when actions are judged again; arguments as for `recall`."""
        return {}


def estimator_types() -> Iterator[type[Estimator]]:
    """Every estimator of this package, by the files that are in it."""
    package = importlib.import_module("p3kernels.estimators")
    for module in sorted(found.name for found in pkgutil.iter_modules(package.__path__)):
        content = vars(importlib.import_module(f"{package.__name__}.{module}"))
        for found in content.values():
            own = isinstance(found, type) and found.__module__ == f"{package.__name__}.{module}"
            if own and issubclass(found, Estimator) and not inspect.isabstract(found):
                yield found


def parse_estimator(text: str) -> Estimator:
    """The estimator with this label or spelling: mm, cm, mc15, mc15-sobol-common, shared, ...

    Raises:
        ValueError: There is none, or its settings cannot be.
    """
    for estimator in estimator_types():
        found = estimator.spelt(text)
        if found is not None:
            return found
    raise ValueError(f"expected one of {', '.join(found.spelling for found in estimator_types())}, got {text!r}")
