"""Optimiser steps that leave themselves out where a loss or gradient is not finite, and the sums an update reports.

On a CPU whether a step was taken is looked at after every one. On a GPU that would make the host wait for the device
every time, so there the optimiser itself leaves the step out, and the host looks once an epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from trainer.models.ranks import Ranks
from trainer.models.update_terms import fused, gradient_bounds


def can_skip_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step of the optimiser can be left out on the device: torch's fused Adams can."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


class GuardedStep:
    """Clips and applies gradients.

    Args:
        optimizer: Optimizer of all parts.
        parts: Parameters whose gradients are clipped together, by the norm of a part.
        max_norm: Largest norm of a part's gradient.
        ranks: Over which gradients are averaged.
        deferred: Whether nobody looks at once: then the optimiser leaves the step out by itself.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parts: Sequence[Sequence[nn.Parameter]],
        max_norm: float,
        ranks: Ranks,
        *,
        deferred: bool,
    ) -> None:
        self.optimizer, self.parts, self.max_norm, self.ranks = optimizer, parts, max_norm, ranks
        self.deferred = deferred

    def __call__(self, loss: Tensor) -> Tensor:
        """Whether the step was taken, a 0-d bool; where not, weights and optimiser are as they were.

        Args:
            loss: Whose gradients the parameters have.
        """
        loss = self.ranks.mean_gradients([p for part in self.parts for p in part], loss)
        if self.deferred and len(self.parts) == 2 and fused(loss):
            return self._in_few_launches(loss)
        norms = [nn.utils.get_total_norm(p.grad for p in part if p.grad is not None) for part in self.parts]
        total = loss + sum(norms)
        if not self.deferred:
            taken = torch.isfinite(total)
            if not taken:
                return taken
        else:
            broken = torch.ne(total - total, 0.0)  # x - x is 0 for every number, NaN for what is none
            taken = ~broken
            self.optimizer.found_inf = broken.float()  # type: ignore[attr-defined]  # as torch's GradScaler tells it
        for part, norm in zip(self.parts, norms, strict=True):
            nn.utils.clip_grads_with_norm_(part, self.max_norm, norm)
        self.optimizer.step()
        return taken

    def _in_few_launches(self, loss: Tensor) -> Tensor:
        """As `__call__`: what the norms mean for both parts is one kernel."""
        gradients = [[p.grad for p in part if p.grad is not None] for part in self.parts]
        norms = torch.stack(torch._foreach_norm([gradient for part in gradients for gradient in part]))
        divisors, broken, taken = gradient_bounds(norms, loss, len(gradients[0]), self.max_norm)
        self.optimizer.found_inf = broken  # type: ignore[attr-defined]  # as torch's GradScaler tells it
        for part, divisor in zip(gradients, divisors.unbind(), strict=True):
            torch._foreach_div_(part, divisor)
        self.optimizer.step()
        return taken


class Tally:
    """Sums over the steps that were taken, on the device until they are read, once an epoch.

    Args:
        device: Where the terms are.
        ranks: Over which they are averaged when they are read.
    """

    def __init__(self, device: str | torch.device, ranks: Ranks) -> None:
        self._device, self._ranks = device, ranks
        self._names: list[str] = []
        self._sums: Tensor | None = None
        self._before: list[float] = []
        self._taken: list[Tensor] = []
        self.steps = 0
        """Steps taken in the epochs that were read."""
        self.means: dict[str, float] = {}
        """Means over all steps that were taken in the epochs that were read."""

    def add(self, taken: Tensor, terms: Mapping[str, Tensor]) -> None:
        """The terms of a step, 0-d each; they count where `taken`."""
        if self._sums is None:
            self._names, self._before = list(terms), [0.0] * len(terms)
            self._sums = torch.zeros(len(terms), device=self._device)
        values = torch.stack([terms[name].detach() for name in self._names])
        self._sums = torch.where(taken, self._sums + values, self._sums)
        self._taken.append(taken)

    def skip(self, taken: Tensor) -> None:
        """A step that is known not to have been taken."""
        self._taken.append(taken)

    def end_epoch(self) -> tuple[dict[str, float], list[int]]:
        """Reads everything at once.

        Returns:
            Means over the epoch's steps that were taken (nothing, where none was), and the numbers of those that were
            not, in the epoch's order.
        """
        if not self._taken:
            return {}, []
        flags = torch.stack(self._taken).float()
        read = self._ranks.mean(flags if self._sums is None else torch.cat([self._sums, flags])).tolist()
        sums, flags_read = read[: len(self._names)], read[len(self._names) :]
        taken = round(sum(flags_read))
        left_out = [number for number, flag in enumerate(flags_read) if not flag]
        epoch: dict[str, float] = {}
        if taken:
            epoch = {
                name: (after - before) / taken
                for name, after, before in zip(self._names, sums, self._before, strict=True)
            }
            self.steps += taken
            self.means = {name: value / self.steps for name, value in zip(self._names, sums, strict=True)}
        self._before, self._taken = sums, []
        return epoch, left_out
