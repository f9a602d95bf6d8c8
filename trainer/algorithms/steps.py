"""The steps of an update: what is done with the loss of a minibatch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainer.algorithms.guarded_step import GuardedStep
from trainer.algorithms.step_graph import Outcome, StepGraph
from trainer.models.ranks import Ranks


class Steps:
    """The part of `P3PPO` that takes the steps of its optimiser."""

    actor: Any
    critic: Any
    optimizer: torch.optim.Optimizer
    ranks: Ranks
    deferred: bool
    max_grad_norm: float
    value_loss_coef: float
    entropy_coef: float
    clip_param: float
    report: Callable[[str], None]
    step_graph: StepGraph | None
    _one: Tensor
    _trained: Sequence[Sequence[nn.Parameter]]
    _loss: Callable[[dict[str, Any], dict[str, Any]], tuple[Tensor, dict[str, Tensor]]]
    _batch: Callable[[dict[str, Any], Tensor], dict[str, Any]]

    def _descended(self, loss: Tensor, step: GuardedStep) -> Tensor:
        """Whether the step that the loss asks for was taken, a 0-d bool."""
        self.optimizer.zero_grad()
        loss.backward(self._one)
        return step(loss)

    def _unseen_step(self, rollout: dict[str, Any], step: GuardedStep, rows: Tensor) -> Outcome:
        """A minibatch's step that the host neither waits for nor looks at: as one graph, where that is asked for."""

        def launched(rows: Tensor) -> Outcome:
            loss, terms = self._loss(self._batch(rollout, rows), rollout)
            taken = self._descended(loss, step)
            self.actor.after_step(taken)
            return taken, terms

        if self.step_graph is None:
            return launched(rows)
        if self.actor.estimator.deferred:
            self.step_graph.pass_over("sampled likelihoods are drawn with a seed of the host's", self.report)
            return launched(rows)
        return self.step_graph(launched, rows, self._graph_key(rollout, rows), self.report)

    def _graph_key(self, rollout: dict[str, Any], rows: Tensor) -> Hashable:
        """What a captured step depends on beside its rows: numbers that are constants in it, and addresses."""
        noise = self.actor.latent_noise
        numbers = (self.value_loss_coef, self.entropy_coef, self.clip_param, None if noise is None else noise.coef)
        state = (value for one in self.optimizer.state.values() for value in one.values())
        tensors = (rollout["packed"].matrix, *self.actor.parameters(), *self.critic.parameters(), *state)
        return len(rows), self.actor.estimator, numbers, tuple(tensor.data_ptr() for tensor in tensors)

    def _guarded_step(self) -> GuardedStep:
        return GuardedStep(self.optimizer, self._trained, self.max_grad_norm, self.ranks, deferred=self.deferred)
