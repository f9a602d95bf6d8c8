"""The Monte Carlo likelihood of a latent-conditioned MLP policy: torch's matrix products around elementwise kernels.

Tiles of samples × rows go through the network, so memory does not grow with the number of samples. What does not
depend on the sample, the context half of the first layer, is computed once a row. The backward pass draws the same
noise again; it recomputes the hidden layers of a tile, unless the forward pass could keep them within a fixed budget.
It is the CPU backend, and with its own kernels and tiles the CUDA backend where there are gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.layered.latent_noise import NoiseSource

TILE_ROWS = 4096
"""Rows of a tile, samples × rows of the batch: large enough for the matrix products, small enough for the cache."""
PADDING = 16
KEPT_BYTES = 64 * 2**20
"""Hidden activations kept for the backward pass, at most; what does not fit is recomputed there."""


def kept_rows(rows: int, num_samples: int, weights: Sequence[Tensor]) -> list[int]:
    """How many of the samples × rows each hidden layer keeps, within the budget.

    What a kept byte saves is the product that would make it again, so wide inputs go first.
    """
    left = KEPT_BYTES // weights[0].element_size()
    kept = [0] * (len(weights) - 1)
    for layer in sorted(range(len(kept)), key=lambda layer: -weights[layer].shape[1]):
        kept[layer] = min(rows * num_samples, left // weights[layer].shape[0])
        left -= kept[layer] * weights[layer].shape[0]
    return kept


def kept_size(rows: int, num_samples: int, weights: Sequence[Tensor]) -> int:
    """Elements of the buffer of kept activations."""
    kept = kept_rows(rows, num_samples, weights)
    return sum(count * weight.shape[0] for count, weight in zip(kept, weights, strict=False))


@dataclass
class Problem:
    """The inputs of the op and what every tile needs of them."""

    action: Tensor
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    weights: Sequence[Tensor]
    biases: Sequence[Tensor]
    std: Tensor
    noise: Tensor | None
    seed: Tensor
    rows: Tensor | None
    num_samples: int
    sampling: str
    kind: int
    parameter: float
    kernels: Any = native
    """The functions of `native`, for the tensors' device."""
    noise_source: type[NoiseSource] = NoiseSource
    tile_rows: int = TILE_ROWS

    def __post_init__(self) -> None:
        self.source = self.noise_source(self.seed, self.num_samples, self.sampling, self.latent_mean, self.rows)
        columns = self.context.shape[1]
        self.context_weight = self.weights[0][:, :columns]
        # Zero columns up to a full cache line: BLAS is up to 40 % slower on odd sizes.
        padding = -self.latent_mean.shape[1] % PADDING
        self.latent_weight = torch.nn.functional.pad(self.weights[0][:, columns:], (0, padding))
        self.widths = [weight.shape[0] for weight in self.weights]

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """(first sample, end, first row, end) of every tile; all samples of a row in one tile where they fit."""
        rows = self.action.shape[0]
        samples = min(self.num_samples, self.tile_rows)
        step = max(1, self.tile_rows // samples)
        for row in range(0, rows, step):
            for sample in range(0, self.num_samples, samples):
                yield sample, min(sample + samples, self.num_samples), row, min(row + step, rows)

    def buffer(self, width: int) -> Tensor:
        """Scratch for one value of a tile, [tile rows, width] at most."""
        rows = min(self.tile_rows, self.num_samples * self.action.shape[0])
        return self.action.new_empty(rows * width)


class Tile:
    """The scratch buffers of one tile and the network's forward pass in them.

    Args:
        problem: The op's inputs.
        kept: Where hidden activations live instead, tile after tile, as long as there is room.
        recall: Whether `kept` is filled already.
    """

    def __init__(self, problem: Problem, kept: Tensor, recall: bool) -> None:
        self.problem = problem
        self._recall = recall
        self._done = 0  # samples × rows of the tiles before this one
        rows = kept_rows(problem.action.shape[0], problem.num_samples, problem.weights)
        sizes = [count * width for count, width in zip(rows, problem.widths, strict=False)]
        self._kept = (
            [part.view(-1, width) for part, width in zip(kept.split(sizes), problem.widths, strict=False)]
            if kept.numel() > 0
            else []
        )
        self._noise = problem.buffer(problem.latent_mean.shape[1])
        self._latent = problem.buffer(problem.latent_weight.shape[1]).zero_()
        self._outputs = [problem.buffer(width) for width in problem.widths]
        # Row by row what the context adds to the first layer, bias included.
        self.context_part = torch.addmm(problem.biases[0], problem.context, problem.context_weight.t())

    def run(self, first: int, last: int, begin: int, end: int) -> None:
        """Fills `noise` [n, R, Z], `latent` [n R, Z padded], `outputs` (activated but for the last layer) [n R, O]."""
        p = self.problem
        samples, rows = last - first, end - begin
        count = samples * rows
        shape = (samples, rows, p.latent_mean.shape[1])
        self.noise = self._noise[: math.prod(shape)].view(shape)
        if p.noise is not None:
            self.noise.copy_(p.noise[first:last, begin:end])
        else:
            p.source.fill(self.noise, first, begin)
        self.latent = self._latent[: count * p.latent_weight.shape[1]].view(count, -1)
        latent = self.latent.view(samples, rows, -1)[..., : shape[2]]
        torch.addcmul(p.latent_mean[begin:end], p.latent_std[begin:end], self.noise, out=latent)
        self.outputs, known = self._place(count)
        below = self.latent
        for layer, out in enumerate(self.outputs):
            if layer in known:
                below = out
                continue
            weight = p.latent_weight if layer == 0 else p.weights[layer]
            torch.mm(below, weight.t(), out=out)
            shift = self.context_part[begin:end] if layer == 0 else p.biases[layer][None]
            if layer < len(self.outputs) - 1:
                p.kernels.activation_forward(p.kind, p.parameter, out, shift, out)
            else:
                out.view(-1, *shift.shape).add_(shift)
            below = out
        self.means = self.outputs[-1].view(samples, rows, -1)

    def _place(self, count: int) -> tuple[list[Tensor], set[int]]:
        """Where the layers' outputs [count, O] of this tile go, and which of them are there already."""
        outputs = [
            buffer[: count * width].view(count, width)
            for buffer, width in zip(self._outputs, self.problem.widths, strict=True)
        ]
        begin, self._done = self._done, self._done + count
        known = set()
        for layer, kept in enumerate(self._kept):
            if self._done <= kept.shape[0]:
                outputs[layer] = kept[begin : self._done]
                if self._recall:
                    known.add(layer)
        return outputs, known


def _rows(tensor: Tensor, begin: int, end: int) -> Tensor:
    """std of a tile: [A] as it is, [B, A] by rows."""
    return tensor[begin:end] if tensor.dim() == 2 else tensor


def forward(problem: Problem, save: bool) -> tuple[Tensor, Tensor]:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²): [B], and the activations kept if `save`."""
    log_sum = problem.action.new_full((problem.action.shape[0],), -math.inf)
    size = kept_size(problem.action.shape[0], problem.num_samples, problem.weights) if save else 0
    kept = problem.action.new_empty(size)
    tile = Tile(problem, kept, recall=False)
    for first, last, begin, end in problem.tiles():
        tile.run(first, last, begin, end)
        part = torch.empty_like(log_sum[begin:end])
        problem.kernels.mixture_forward(problem.action[begin:end], tile.means, _rows(problem.std, begin, end), part)
        if last - first == problem.num_samples:
            log_sum[begin:end] = part
        else:
            log_sum[begin:end] = torch.logaddexp(log_sum[begin:end], part)
    return log_sum.sub_(math.log(problem.num_samples)), kept


@dataclass
class Gradients:
    """The gradient of every differentiable input."""

    action: Tensor
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    std: Tensor
    noise: Tensor | None


def backward(problem: Problem, log_prob: Tensor, kept: Tensor, d_log_prob: Tensor, need_noise: bool) -> Gradients:
    """Gradients of `forward`; rows and parameters alike, tile by tile."""
    p = problem
    columns = p.context.shape[1]
    log_sum = log_prob + math.log(p.num_samples)
    d_action = torch.zeros_like(p.action)
    d_std_rows = torch.zeros_like(p.action)
    d_latent_mean = p.latent_mean.new_zeros(p.latent_mean.shape)
    d_latent_std = p.latent_std.new_zeros(p.latent_std.shape)
    d_context_part = p.action.new_zeros(p.action.shape[0], p.widths[0])
    d_weights = [weight.new_zeros(weight.shape) for weight in p.weights]
    d_biases = [torch.zeros_like(bias) for bias in p.biases]
    d_latent_weight = p.latent_weight.new_zeros(p.latent_weight.shape[::-1]).t()  # faster to fill this way round
    d_noise = p.noise.new_empty(p.noise.shape) if need_noise and p.noise is not None else None

    tile = Tile(p, kept, recall=True)
    d_buffers = [p.buffer(width) for width in p.widths[:-1]]
    d_latent_buffer = p.buffer(p.latent_weight.shape[1])
    for first, last, begin, end in p.tiles():
        tile.run(first, last, begin, end)
        # The gradient of the means takes the place of the means.
        p.kernels.mixture_backward(
            p.action[begin:end],
            tile.means,
            _rows(p.std, begin, end),
            log_sum[begin:end],
            d_log_prob[begin:end],
            tile.means,
            d_action[begin:end],
            d_std_rows[begin:end],
        )
        gradient = tile.outputs[-1]
        for layer in reversed(range(1, len(p.weights))):
            below = tile.outputs[layer - 1]
            d_weights[layer].addmm_(gradient.t(), below)
            d_biases[layer].add_(gradient.sum(0))
            d_below = d_buffers[layer - 1][: below.numel()].view_as(below)
            torch.mm(gradient, p.weights[layer], out=d_below)
            p.kernels.activation_backward(p.kind, p.parameter, below, d_below, d_below)
            gradient = d_below
        d_latent_weight.addmm_(gradient.t(), tile.latent)
        d_context_part[begin:end] += gradient.view(last - first, end - begin, -1).sum(0)
        d_latent_padded = d_latent_buffer[: tile.latent.numel()].view_as(tile.latent)
        torch.mm(gradient, p.latent_weight, out=d_latent_padded)
        d_latent = d_latent_padded.view(last - first, end - begin, -1)
        p.kernels.latent_backward(d_latent, tile.noise, d_latent_mean[begin:end], d_latent_std[begin:end])
        if d_noise is not None:
            columns_of_z = d_latent[..., : p.latent_mean.shape[1]]
            torch.mul(columns_of_z, p.latent_std[begin:end], out=d_noise[first:last, begin:end])

    d_weights[0][:, :columns] = d_context_part.t() @ p.context
    d_weights[0][:, columns:] = d_latent_weight[:, : p.latent_mean.shape[1]]
    d_biases[0] = d_context_part.sum(0)
    d_context = d_context_part @ p.context_weight
    d_std = d_std_rows if p.std.dim() == 2 else d_std_rows.sum(0)
    return Gradients(d_action, d_context, d_latent_mean, d_latent_std, d_weights, d_biases, d_std, d_noise)
