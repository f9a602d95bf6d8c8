"""What an algorithm does about numbers that are not finite: replaces them, counts them, names the first one, mends.

Observations and rewards become 0, weights the last good ones; the algorithm itself leaves out a step whose loss or
gradient is not finite. With several ranks what one finds all act on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms.finite import LastGoodWeights, first_nonfinite, named_batch, replace_nonfinite
from trainer.models.ranks import Ranks


class Containment:
    """The part of `P3PPO` that keeps what is not finite from spreading."""

    actor: Any
    critic: Any
    optimizer: torch.optim.Optimizer
    ranks: Ranks
    report: Callable[[str], None]
    iteration: int
    learning_rate: float
    restored_weights: int
    replaced_rows: int
    set_learning_rate: Callable[[float], None]
    _loss: Callable[[dict[str, Any], dict[str, Any]], tuple[Tensor, dict[str, Tensor]]]
    _batch: Callable[[dict[str, Any], Tensor], dict[str, Any]]
    _good: LastGoodWeights
    _replaced: dict[str, Tensor]

    def _explain(self, batch: dict[str, Any], parts: dict[str, Tensor]) -> None:
        """Reports the first tensor that is not finite, in the order of cause and effect."""
        networks = {"actor": self.actor, "critic": self.critic}
        parameters = [(f"{net}.{name}", p) for net, part in networks.items() for name, p in part.named_parameters()]
        gradients = [(f"the gradient of {name}", p.grad) for name, p in parameters if p.grad is not None]
        own = first_nonfinite([*parameters, *named_batch(batch), *parts.items()])
        culprit = self._first_told(own) or first_nonfinite(gradients)  # those are the same on all ranks
        self.report(f"update {self.iteration + 1}: {culprit}; step left out")

    def _left_out(self, batch: dict[str, Any], terms: dict[str, Tensor], *, first: bool) -> None:
        """After a step that was left out: tells why, once an update, and mends weights that are broken."""
        if first:  # the rest of an update is mostly the same again
            self._explain(batch, terms)
        self._mend_weights("within an update")

    def _left_out_unseen(self, rows: Tensor, rollout: dict[str, Any], *, first: bool) -> None:
        """As `_left_out`, at the end of the epoch: the minibatch is computed again to see what was not finite."""
        if not first:
            return
        batch = self._batch(rollout, rows)
        loss, terms = self._loss(batch, rollout)
        self.optimizer.zero_grad()
        loss.backward()
        self._left_out(batch, {**terms, "loss": loss}, first=True)
        self.optimizer.zero_grad()

    def _first_told(self, finding: str | None) -> str | None:
        """The first rank's that has one, on all of them: what one rank finds, all act on."""
        found = [(rank, text) for rank, text in enumerate(self.ranks.gather(finding)) if text is not None]
        if not found:
            return None
        rank, text = found[0]
        return text if rank == 0 else f"{text} (rank {rank})"

    def broken_weights(self) -> str | None:
        """The first tensor of networks or optimiser that is not finite, on whichever rank; None where all are."""
        return self._first_told(self._good.first_nonfinite())

    def _mend_weights(self, when: str) -> None:
        """The last good weights in place of broken ones."""
        broken = self.broken_weights()
        if broken is None:
            return
        self._good.restore()
        self.set_learning_rate(self.learning_rate)
        self.restored_weights += 1
        self.report(f"update {self.iteration + 1}, {when}: {broken}; back to the weights of the last good update")

    def _finite(self, obs: TensorDict) -> TensorDict:
        """Observations with 0 in place of what is not finite, which is counted."""
        obs, broken = replace_nonfinite(obs)
        for name, rows in broken.items():
            self._count(f"observations.{name}", rows)
        return obs

    def _count(self, name: str, rows: Tensor) -> None:
        self._replaced[name] = self._replaced[name] + rows if name in self._replaced else rows

    def _report_replaced(self) -> None:
        """Once an update: the first group that had values that were not finite, and in how many rows."""
        counts = self.ranks.sum(torch.stack(list(self._replaced.values()))).tolist() if self._replaced else []
        broken = {name: rows for name, rows in zip(self._replaced, counts, strict=True) if rows}
        self._replaced = {}
        self.replaced_rows += sum(broken.values())
        if broken:
            name, rows = next(iter(broken.items()))
            self.report(f"update {self.iteration + 1}: {name} was not finite in {rows} rows of the rollout; taken as 0")
