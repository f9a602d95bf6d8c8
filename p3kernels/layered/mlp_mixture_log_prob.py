"""The Monte Carlo likelihood of a latent-conditioned MLP policy: torch's matrix products around elementwise kernels.

Tiles of samples × rows go through the network, so memory does not grow with the number of samples. What does not
depend on the sample, the context half of the first layer, is computed once a row. The backward pass draws the same
noise again; it recomputes the hidden layers of a tile, unless the forward pass could keep them within a fixed budget.
It is the CPU backend, and with its own kernels and tiles the CUDA backend where there are gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.layered.latent_noise import NoiseSource
from p3kernels.layered.products import mm
from p3kernels.records import Backward, Gradients, MlpMixtureInputs, MlpMixtureOutputs, activation_of

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


class Problem:
    """The inputs of the op and what every tile needs of them.

    Args:
        inputs: All floating-point tensors of one dtype.
        kernels: The functions of `native`, for the tensors' device.
        noise_source: Draws the noise there.
        tile_rows: Rows of a tile; None for `TILE_ROWS`.
    """

    def __init__(
        self,
        inputs: MlpMixtureInputs,
        kernels: Any = native,
        noise_source: type[NoiseSource] = NoiseSource,
        tile_rows: int | None = None,
    ) -> None:
        biases = [bias.contiguous() for bias in inputs.biases]
        inputs = inputs._replace(action=inputs.action.contiguous(), std=inputs.std.contiguous(), biases=biases)
        self.inputs, self.kernels = inputs, kernels
        self.tile_rows = TILE_ROWS if tile_rows is None else tile_rows
        self.source = noise_source(inputs.seed, inputs.num_samples, inputs.sampling, inputs.latent_mean, inputs.rows)
        columns = inputs.context.shape[1]
        self.context_weight = inputs.weights[0][:, :columns]
        # Zero columns up to a full cache line: BLAS is up to 40 % slower on odd sizes.
        padding = -inputs.latent_mean.shape[1] % PADDING
        self.latent_weight = torch.nn.functional.pad(inputs.weights[0][:, columns:], (0, padding))
        self.widths = [weight.shape[0] for weight in inputs.weights]

    def tiles(self) -> Iterator[tuple[int, int, int, int]]:
        """(first sample, end, first row, end) of every tile; all samples of a row in one tile where they fit."""
        rows = self.inputs.action.shape[0]
        samples = min(self.inputs.num_samples, self.tile_rows)
        step = max(1, self.tile_rows // samples)
        for row in range(0, rows, step):
            for sample in range(0, self.inputs.num_samples, samples):
                yield sample, min(sample + samples, self.inputs.num_samples), row, min(row + step, rows)

    def buffer(self, width: int) -> Tensor:
        """Scratch for one value of a tile, [tile rows, width] at most."""
        rows = min(self.tile_rows, self.inputs.num_samples * self.inputs.action.shape[0])
        return self.inputs.action.new_empty(rows * width)


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
        rows = kept_rows(problem.inputs.action.shape[0], problem.inputs.num_samples, problem.inputs.weights)
        sizes = [count * width for count, width in zip(rows, problem.widths, strict=False)]
        self._kept = (
            [part.view(-1, width) for part, width in zip(kept.split(sizes), problem.widths, strict=False)]
            if kept.numel() > 0
            else []
        )
        self._noise = problem.buffer(problem.inputs.latent_mean.shape[1])
        self._latent = problem.buffer(problem.latent_weight.shape[1]).zero_()
        self._outputs = [problem.buffer(width) for width in problem.widths]
        # Row by row what the context adds to the first layer, bias included.
        self.context_part = mm(problem.inputs.context, problem.context_weight.t(), bias=problem.inputs.biases[0])

    def run(self, first: int, last: int, begin: int, end: int) -> None:
        """Fills `noise` [n, R, Z], `latent` [n R, Z padded], `outputs` (activated but for the last layer) [n R, O]."""
        problem, inputs = self.problem, self.problem.inputs
        samples, rows = last - first, end - begin
        count = samples * rows
        shape = (samples, rows, inputs.latent_mean.shape[1])
        self.noise = self._noise[: math.prod(shape)].view(shape)
        if inputs.noise is not None:
            self.noise.copy_(inputs.noise[first:last, begin:end])
        else:
            problem.source.fill(self.noise, first, begin)
        self.latent = self._latent[: count * problem.latent_weight.shape[1]].view(count, -1)
        latent = self.latent.view(samples, rows, -1)[..., : shape[2]]
        torch.addcmul(inputs.latent_mean[begin:end], inputs.latent_std[begin:end], self.noise, out=latent)
        self.outputs, known = self._place(count)
        below = self.latent
        for layer, out in enumerate(self.outputs):
            if layer in known:
                below = out
                continue
            weight = problem.latent_weight if layer == 0 else inputs.weights[layer]
            mm(below, weight.t(), out=out)
            shift = self.context_part[begin:end] if layer == 0 else inputs.biases[layer][None]
            if layer < len(self.outputs) - 1:
                problem.kernels.activation_forward(activation_of(inputs), out, shift, out)
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


def forward(problem: Problem) -> MlpMixtureOutputs:
    """log (1/N) Σ_i N(action | actor([context, z_i]), std²), and the activations kept if `save`."""
    inputs = problem.inputs
    log_sum = inputs.action.new_full((inputs.action.shape[0],), -math.inf)
    size = kept_size(inputs.action.shape[0], inputs.num_samples, inputs.weights) if inputs.save else 0
    kept = inputs.action.new_empty(size)
    tile = Tile(problem, kept, recall=False)
    for first, last, begin, end in problem.tiles():
        tile.run(first, last, begin, end)
        part = torch.empty_like(log_sum[begin:end])
        problem.kernels.mixture_forward(inputs.action[begin:end], tile.means, _rows(inputs.std, begin, end), part)
        if last - first == inputs.num_samples:
            log_sum[begin:end] = part
        else:
            log_sum[begin:end] = torch.logaddexp(log_sum[begin:end], part)
    return MlpMixtureOutputs(log_sum.sub_(math.log(inputs.num_samples)), kept)


def backward(problem: Problem, request: Backward[MlpMixtureInputs, MlpMixtureOutputs]) -> Gradients:
    """Gradients of `forward`; rows and parameters alike, tile by tile. Of the noise only where it is wanted."""
    inputs, d_log_prob = problem.inputs, request.d_outputs.log_prob
    columns = inputs.context.shape[1]
    log_sum = request.outputs.log_prob + math.log(inputs.num_samples)
    d_action = torch.zeros_like(inputs.action)
    d_std_rows = torch.zeros_like(inputs.action)
    d_latent_mean = inputs.latent_mean.new_zeros(inputs.latent_mean.shape)
    d_latent_std = inputs.latent_std.new_zeros(inputs.latent_std.shape)
    d_context_part = inputs.action.new_zeros(inputs.action.shape[0], problem.widths[0])
    d_weights = [weight.new_zeros(weight.shape) for weight in inputs.weights]
    d_biases = [torch.zeros_like(bias) for bias in inputs.biases]
    d_latent_weight = problem.latent_weight.new_zeros(
        problem.latent_weight.shape[::-1]
    ).t()  # faster to fill this way round
    d_noise = (
        inputs.noise.new_empty(inputs.noise.shape) if "noise" in request.wanted and inputs.noise is not None else None
    )

    tile = Tile(problem, request.outputs.kept, recall=True)
    d_buffers = [problem.buffer(width) for width in problem.widths[:-1]]
    d_latent_buffer = problem.buffer(problem.latent_weight.shape[1])
    for first, last, begin, end in problem.tiles():
        tile.run(first, last, begin, end)
        # The gradient of the means takes the place of the means.
        problem.kernels.mixture_backward(
            inputs.action[begin:end],
            tile.means,
            _rows(inputs.std, begin, end),
            log_sum[begin:end],
            d_log_prob[begin:end],
            tile.means,
            d_action[begin:end],
            d_std_rows[begin:end],
        )
        gradient = tile.outputs[-1]
        for layer in reversed(range(1, len(inputs.weights))):
            below = tile.outputs[layer - 1]
            mm(gradient.t(), below, out=d_weights[layer], add=True)
            d_biases[layer].add_(gradient.sum(0))
            d_below = d_buffers[layer - 1][: below.numel()].view_as(below)
            mm(gradient, inputs.weights[layer], out=d_below)
            problem.kernels.activation_backward(activation_of(inputs), below, d_below, d_below)
            gradient = d_below
        mm(gradient.t(), tile.latent, out=d_latent_weight, add=True)
        d_context_part[begin:end] += gradient.view(last - first, end - begin, -1).sum(0)
        d_latent_padded = d_latent_buffer[: tile.latent.numel()].view_as(tile.latent)
        mm(gradient, problem.latent_weight, out=d_latent_padded)
        d_latent = d_latent_padded.view(last - first, end - begin, -1)
        problem.kernels.latent_backward(d_latent, tile.noise, d_latent_mean[begin:end], d_latent_std[begin:end])
        if d_noise is not None:
            columns_of_z = d_latent[..., : inputs.latent_mean.shape[1]]
            torch.mul(columns_of_z, inputs.latent_std[begin:end], out=d_noise[first:last, begin:end])

    d_weights[0][:, :columns] = d_context_part.t() @ inputs.context
    d_weights[0][:, columns:] = d_latent_weight[:, : inputs.latent_mean.shape[1]]
    d_biases[0] = d_context_part.sum(0)
    d_context = d_context_part @ problem.context_weight
    d_std = d_std_rows if inputs.std.dim() == 2 else d_std_rows.sum(0)
    return {
        "action": d_action,
        "context": d_context,
        "latent_mean": d_latent_mean,
        "latent_std": d_latent_std,
        "weights": d_weights,
        "biases": d_biases,
        "std": d_std,
        **({} if d_noise is None else {"noise": d_noise}),
    }
