"""Ranks: the processes of one training, each with its share of the environments and the same weights.

A single process is one rank, for which every function here is the identity: who calls has one path for both. What the
ranks must agree on, they compute from numbers that went through here: an all-reduce gives every rank the same bits.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed
from rsl_rl.modules import EmpiricalNormalization
from torch import Tensor, nn

from trainer.processes import cores

_RANK_STRIDE = 15_485_863
_ANEW_STRIDE = 1_000_003

_T = TypeVar("_T")


class LostRank(RuntimeError):
    """Another rank died or does not answer: nothing more can be computed together."""


@dataclass(frozen=True)
class Ranks:
    """This process among those of the training."""

    rank: int = 0
    """Number of this process over all machines; rank 0 logs and saves."""
    size: int = 1
    """Number of ranks."""
    local_rank: int = 0
    """Number of this process on its machine."""
    local_size: int = 1
    """Number of ranks on this machine."""

    @classmethod
    def from_environment(cls) -> Ranks:
        """The rank that torchrun or `trainer.training.launch` gave this process; a single rank without them."""
        rank, size, local_rank, local_size = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1))
        )
        return cls(rank, size, local_rank, local_size)

    @property
    def is_first(self) -> bool:
        """Whether this is the rank that logs and saves."""
        return self.rank == 0

    def rsl_rl(self) -> dict[str, int] | None:
        """The rank in the form of rsl_rl's `multi_gpu` setting; None for a single rank."""
        if self.size == 1:
            return None
        return {"global_rank": self.rank, "local_rank": self.local_rank, "world_size": self.size}

    def seed(self, seed: int, anew: int = 0) -> int:
        """A seed for this rank alone, made of the run's; every `anew` gives another one."""
        return seed + _RANK_STRIDE * self.rank + _ANEW_STRIDE * anew

    def share(self, name: str, total: int) -> int:
        """This rank's part of `total`; the parts are equal, so that a mean over ranks is one over all.

        Raises:
            ValueError: `total` does not divide evenly; the message names the option `name`.
        """
        if total % self.size:
            raise ValueError(f"{name}: {total} do not divide evenly over {self.size} ranks")
        return total // self.size

    def device(self, device: str) -> str:
        """The device of this rank: of "cuda" the GPU of its number on its machine.

        Raises:
            ValueError: Several ranks are to share a device that is not the CPU.
        """
        if self.size == 1 or device == "cpu":
            return device
        if device != "cuda":
            raise ValueError(f"--device: with {self.size} ranks expected cpu or cuda, a GPU each, got {device!r}")
        return f"cuda:{self.local_rank}"

    def threads(self) -> int | None:
        """The machine's cores divided by its ranks, at least one; None, all of them, where one rank has the machine."""
        if self.local_size == 1:
            return None
        return max(1, cores() // self.local_size)

    def sum(self, tensor: Tensor) -> Tensor:
        """Elementwise sum over the ranks, without gradient; the same bits on each rank."""
        if self.size == 1:
            return tensor
        total = tensor.detach().clone()
        with together():
            torch.distributed.all_reduce(total)
        return total

    def mean(self, tensor: Tensor) -> Tensor:
        """Elementwise mean over the ranks, without gradient; the same bits on each rank."""
        return tensor if self.size == 1 else self.sum(tensor) / self.size

    def mean_and_std(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of all ranks' values, of which each rank has equally many."""
        if self.size == 1:
            return values.mean(), values.std()
        mean = self.mean(values.mean())
        squares = self.sum((values - mean).square().sum())
        return mean, (squares / (values.numel() * self.size - 1)).sqrt()

    def masked_mean(self, values: Tensor, mask: Tensor, count: Tensor | None = None) -> Tensor:
        """Σ values·mask / Σ mask, differentiable: this rank's part, of which the mean over ranks is that of all rows.

        The rows that count are not equally many on each rank: a mean of the ranks' own means would be another number.
        `count`, the mean over ranks of Σ mask, spares a message where it is known.
        """
        return (values * mask).sum() / self._count(mask, count)

    def masked_share(self, mask: Tensor, count: Tensor | None = None) -> Tensor:
        """The share of all ranks' rows that count, as if one of them did where none does; `count` as above."""
        return self._count(mask, count) / len(mask)

    def _count(self, mask: Tensor, count: Tensor | None) -> Tensor:
        return (self.mean(mask.sum()) if count is None else count).clamp(min=1.0 / self.size)

    def mean_gradients(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Averages the gradients in place and returns the mean loss, in one message: NaN on one rank is NaN on all."""
        if self.size == 1:
            return loss.detach()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = self.mean(torch.cat([*(gradient.flatten() for gradient in gradients), loss.detach().view(1)]))
        parts = flat[:-1].split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        return flat[-1]

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, whatever it is, in the order of ranks, on every rank."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with together():
            torch.distributed.all_gather_object(values, value)
        return values

    def from_first(self, make: Callable[[], _T]) -> _T:
        """What `make` returns or raises on the first rank, which alone calls it, on every rank."""
        if self.size == 1:
            return make()
        outcome: list[Any] = [None, None]
        if self.is_first:
            try:
                outcome[0] = make()
            except Exception as error:
                outcome[1] = error
        with together():
            torch.distributed.broadcast_object_list(outcome, src=0)
        if outcome[1] is not None:
            raise outcome[1]
        return outcome[0]


ONE_RANK = Ranks()
"""A process on its own."""


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Turns what torch.distributed raises when another rank is gone into a `LostRank`."""
    try:
        yield
    except RuntimeError as error:
        raise LostRank(f"another rank is gone: {str(error).splitlines()[0][:200]}") from error


class GlobalNormalization(EmpiricalNormalization):
    """rsl_rl's running mean and variance, of the observations of all ranks.

    Args:
        local: The normaliser whose buffers it takes over; they keep their names, so that checkpoints fit both.
        ranks: The ranks whose observations count; each gives equally many rows.
    """

    _mean: Tensor
    _var: Tensor

    def __init__(self, local: EmpiricalNormalization, ranks: Ranks) -> None:
        super().__init__(local.mean.shape, local.eps, local.until)
        self.load_state_dict(local.state_dict())
        self.to(local.mean.device)
        self.train(local.training)
        self.ranks = ranks

    @torch.jit.unused
    def update(self, x: Tensor) -> None:
        """Moves the statistics by the rows x [B, ...] of this rank and those of the others."""
        if not self.training or (self.until is not None and self.count >= self.until):
            return
        mean = self.ranks.mean(x.mean(0, keepdim=True))
        var = self.ranks.mean((x - mean).square().mean(0, keepdim=True))
        rows = x.shape[0] * self.ranks.size
        self.count += rows
        share = rows / self.count
        shift = mean - self._mean
        self._var = (1 - share) * self._var + share * (var + (1 - share) * shift.square())
        self._mean = self._mean + share * shift
        self._std = self._var.sqrt()


def synchronise_normalizers(network: nn.Module, ranks: Ranks) -> None:
    """Puts a `GlobalNormalization` in the place of every normaliser in `network`, where there is more than one rank."""
    if ranks.size == 1:
        return
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is EmpiricalNormalization:
                setattr(parent, name, GlobalNormalization(child, ranks))
