"""The Monte Carlo likelihood of a latent-conditioned MLP policy: log (1/N) Σ_i N(action | actor([context, z_i]), std²).

Tiles of samples × rows go through the network, a launch a layer, so memory does not grow with the number of samples:
one launch packs parameters and context for the products (see `pack`), one makes the context's half of the first layer,
once a row; then for every tile one draws its latent inputs, one a layer follows, and the last layer has the likelihood
in it, which carries a running maximum and sum from tile to tile.

In "tf32" and "bf16" everything between two products is kept in 16 bits, as float16, which has the 11 bits of TF32, and
as bfloat16. float16's range is small for gradients: they are scaled by a power of two that the largest element of the
incoming gradient gives, and scaled back where they are summed up.

The backward pass draws the same noise and runs a tile's hidden layers again. The gradient of a layer's output takes the
place of that output as soon as the layer above has read it, so it needs no more scratch than the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triton_kernels import mixture_log_prob as likelihood
from triton_kernels.kernels.moments_math import NONE
from triton_kernels.launch import fitting
from triton_kernels.pack import Matrix, pack, padded
from triton_kernels.sampled_gradients import WeightGradient, latent_backward, linear_backward
from triton_kernels.sampled_layers import LatentTile, draw, linear_forward

SCRATCH_BYTES = 256 * 2**20
"""Hidden activations of a tile, at most."""

NoiseOfTile = Callable[[int, int, int, int], Tensor]
"""(first sample, end, first row, end) → noise [n, R, Z]: a scheme that the kernels do not draw."""


@dataclass(frozen=True)
class Problem:
    """The inputs of the op: float32 or bfloat16 on one device."""

    action: Tensor
    """[B, A], contiguous."""
    context: Tensor
    """[B, C]."""
    latent_mean: Tensor
    """[B, Z], contiguous."""
    latent_std: Tensor
    """[B, Z], contiguous."""
    weights: Sequence[Tensor]
    """[O, I] a layer."""
    biases: Sequence[Tensor]
    """[O] a layer, contiguous."""
    std: Tensor
    """[A] or [B, A], contiguous."""
    noise: Tensor | None
    """[N, B, Z] to use instead of a draw."""
    noise_of_tile: NoiseOfTile | None
    """Or a function that makes it."""
    seed: Tensor
    """One int64 on the device, read by the kernels: a captured CUDA graph replays with what stands there then."""
    rows: Tensor | None
    """[B] int64 on the device, contiguous: the numbers of the rows' noise streams; None for their places."""
    num_samples: int
    antithetic: bool
    activation: int
    """0 for ELU, 1 for LeakyReLU."""
    parameter: float
    """ELU's alpha or LeakyReLU's slope."""
    precision: str
    """How every product rounds: "ieee", "tf32x3", "tf32" or "bf16"."""

    @property
    def latent_weight(self) -> Tensor:
        """[O, Z] of the first layer."""
        return self.weights[0][:, self.context.shape[1] :]

    @property
    def context_weight(self) -> Tensor:
        """[O, C] of the first layer."""
        return self.weights[0][:, : self.context.shape[1]]

    @property
    def storage(self) -> torch.dtype:
        """What a tile's operands of products are kept as."""
        return {"tf32": torch.float16, "bf16": torch.bfloat16}.get(self.precision, torch.float32)

    def tile_size(self) -> tuple[int, int]:
        """Samples and rows of a tile: whole batches, as many samples as the scratch holds, evenly."""
        hidden = sum(weight.shape[0] for weight in self.weights[:-1])
        width = max(hidden, self.latent_mean.shape[1], self.action.shape[1])
        entries = max(1, SCRATCH_BYTES // (self.storage.itemsize * width))
        rows = max(1, min(self.action.shape[0], entries))
        tiles = -(-self.num_samples // max(1, entries // rows))
        return -(-self.num_samples // tiles), rows

    def tiles(self) -> Iterator[Tile]:
        """Row after row, sample after sample."""
        samples, rows = self.tile_size()
        for begin in range(0, self.action.shape[0], rows):
            for first in range(0, self.num_samples, samples):
                end = min(begin + rows, self.action.shape[0])
                yield Tile(self, first, min(first + samples, self.num_samples), begin, end)

    def new(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """Scratch or an output."""
        return torch.empty(shape, dtype=dtype, device=self.action.device)


class Tile:
    """Samples first … last of the rows begin … end."""

    def __init__(self, problem: Problem, first: int, last: int, begin: int, end: int) -> None:
        noise = None if problem.noise is None else problem.noise[first:last, begin:end]
        if problem.noise_of_tile is not None:
            noise = problem.noise_of_tile(first, last, begin, end)
        self.samples = slice(first, last)
        self.rows = slice(begin, end)
        self.shape = (last - first, end - begin)
        self.is_first = first == 0
        """Whether it is the first of its rows; `is_last` alike."""
        self.is_last = last == problem.num_samples
        self.std = problem.std[begin:end] if problem.std.dim() == 2 else problem.std
        self.latent = LatentTile(
            problem.latent_mean[begin:end],
            problem.latent_std[begin:end],
            noise,
            problem.seed,
            None if problem.rows is None else problem.rows[begin:end],
            last - first,
            first,
            begin,
            (problem.num_samples + 1) // 2,
            problem.antithetic,
        )


class Network:
    """The actor's layers but the last, which is the likelihood's: packed operands, and scratch for a tile's outputs.

    Args:
        problem: The inputs.
        turned: Whether the weights' transposes are wanted, too: for gradients.
    """

    def __init__(self, problem: Problem, *, turned: bool = False) -> None:
        self._problem = p = problem
        samples, rows = p.tile_size()
        # A single layer's outputs are the means.
        hidden = [p.new(samples * rows * weight.shape[0], dtype=p.storage) for weight in p.weights[:-1]]
        self._outputs = hidden or [p.new(samples * rows * p.weights[0].shape[0])]
        self._latent_width = padded(p.latent_mean.shape[1])
        self._latent = p.new(samples * rows * self._latent_width, dtype=p.storage)
        weights = [p.context_weight, p.latent_weight, *p.weights[1:]]
        # The context has a product a row, not one a sample, and may be of any size: its operands stay float32.
        dtypes = [torch.float32] + [p.storage] * (len(weights) - 1)
        matrices = [p.context, *weights, *(weight.t() for weight in weights if turned)]
        packed = [
            p.new(matrix.shape[0], padded(matrix.shape[1]), dtype=dtype)
            for matrix, dtype in zip(matrices, [torch.float32, *dtypes, *dtypes], strict=False)
        ]
        pack([Matrix(matrix, to) for matrix, to in zip(matrices, packed, strict=True)], p.precision)
        self.context = packed[0][:, : p.context.shape[1]]
        """[B, C], rounded."""
        self._context_weight, self._latent_weight, *self._weights = packed[1 : 1 + len(weights)]
        self.turned = packed[1 + len(weights) :]
        """Transposes, rounded: of the first layer's weight for the context and for the latent, then of the others."""
        # Row by row what the context adds to the first layer, bias included.
        self._context_part = p.new(p.action.shape[0], p.weights[0].shape[0])
        linear_forward(
            self.context, self._context_weight, p.biases[0], self._context_part, NONE.value, 0.0, p.precision
        )

    def rounded(self, matrix: Tensor) -> Tensor:
        """A copy of a contiguous matrix as products take it."""
        to = self._problem.new(*matrix.shape)
        pack([Matrix(matrix, to)], self._problem.precision)
        return to

    def last_layer(self) -> likelihood.Layer | None:
        """What the likelihood's kernels compute themselves; of a single layer, the first has made the means."""
        return (self._weights[-1], self._problem.biases[-1]) if self._weights else None

    def latent(self, tile: Tile) -> Tensor:
        """[n R, Z]: where `run` draws a tile's latent inputs."""
        columns = self._problem.latent_mean.shape[1]
        return self._latent[: tile.latent.entries * self._latent_width].view(-1, self._latent_width)[:, :columns]

    def run(self, tile: Tile) -> list[Tensor]:
        """Outputs [n R, O] of the layers; of one layer alone, its means."""
        p = self._problem
        entries = tile.latent.entries
        outputs = [
            buffer[: entries * weight.shape[0]].view(entries, -1)
            for buffer, weight in zip(self._outputs, p.weights, strict=False)
        ]
        activation = p.activation if len(p.weights) > 1 else NONE.value
        z = self.latent(tile) if self._latent_width > 0 else p.new(entries, 0, dtype=p.storage)
        if self._latent_width > 0:
            draw(tile.latent, z, p.precision)
        part = self._context_part[tile.rows]
        linear_forward(z, self._latent_weight, part, outputs[0], activation, p.parameter, p.precision)
        for layer in range(1, len(outputs)):
            weight, bias = self._weights[layer - 1], p.biases[layer]
            linear_forward(outputs[layer - 1], weight, bias, outputs[layer], p.activation, p.parameter, p.precision)
        return outputs


@fitting
def forward(problem: Problem) -> Tensor:
    """[B], float32."""
    p = problem
    rows = p.action.shape[0]
    log_prob = p.new(rows)
    if rows == 0:
        return log_prob
    state = p.new(2, rows)
    network = Network(p)
    for tile in p.tiles():
        likelihood.forward_tile(
            network.run(tile)[-1].view(*tile.shape, -1),
            network.last_layer(),
            p.action[tile.rows],
            tile.std,
            state[:, tile.rows],
            log_prob[tile.rows],
            p.num_samples,
            first=tile.is_first,
            last=tile.is_last,
            precision=p.precision,
        )
    return log_prob


@dataclass
class Gradients:
    """The gradient of every differentiable input, each in its input's dtype."""

    action: Tensor
    context: Tensor
    latent_mean: Tensor
    latent_std: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    std: Tensor
    noise: Tensor | None


@fitting
def backward(problem: Problem, log_prob: Tensor, d_log_prob: Tensor, need_noise: bool) -> Gradients:
    """Gradients of `forward`; rows and parameters alike, tile by tile."""
    p = problem
    zeros = torch.zeros if p.action.shape[0] == 0 else torch.empty
    inputs = (p.action, p.context, p.latent_mean, p.latent_std, *p.weights, *p.biases)
    made = [zeros(tensor.shape, dtype=torch.float32, device=tensor.device) for tensor in inputs]
    layers = len(p.weights)
    d = Gradients(made[0], made[1], made[2], made[3], made[4 : 4 + layers], made[4 + layers :], p.std, None)
    if need_noise and p.noise is not None:
        d.noise = p.new(*p.noise.shape)
    if p.action.shape[0] == 0:
        d.std = torch.zeros_like(p.std)
        return _in_input_dtypes(p, d)

    samples, rows = p.tile_size()
    last_width = p.weights[-1].shape[1] if layers > 1 else 0
    parts = likelihood.std_parts(rows, p.action.shape[1], last_width, p.precision)
    row_tiles = -(-p.action.shape[0] // rows)
    # The last rows may be fewer: blocks of them that are not there stay 0.
    d.std = p.new(*p.std.shape) if p.std.dim() == 2 else p.new(row_tiles, parts, p.action.shape[1]).zero_()
    d_context_part = p.new(p.action.shape[0], p.weights[0].shape[0])
    d_means = p.new(samples * rows * p.action.shape[1], dtype=p.storage)
    scaled = p.storage == torch.float16
    largest = torch.linalg.vector_norm(d_log_prob, torch.inf, dtype=torch.float32) if scaled else None
    sums = [WeightGradient(p.latent_weight, d_means, samples * rows, p.precision, has_bias=False)]
    sums += [WeightGradient(weight, d_means, samples * rows, p.precision) for weight in p.weights[1:]]
    network = Network(p, turned=True)
    for tile in p.tiles():
        _backward_tile(p, network, tile, log_prob, d_log_prob, d_means, d_context_part, sums, d, largest)
    if layers == 1:
        torch.neg(d.action, out=d_context_part)  # Σ_i d_means_i

    columns = p.context.shape[1]
    if p.latent_mean.shape[1] > 0:
        sums[0].finish(d.weights[0][:, columns:], largest=largest)
    d_context_part = network.rounded(d_context_part)
    context_sum = WeightGradient(p.context_weight, d_context_part, p.action.shape[0], p.precision)
    context_sum.add(d_context_part, network.context)
    context_sum.finish(d.weights[0][:, :columns], d.biases[0])
    for layer in range(1, layers):
        sums[layer].finish(d.weights[layer], d.biases[layer], largest)
    if columns > 0:
        linear_backward(
            d_context_part, network.turned[0], None, d.context, None, 1, NONE.value, 0.0, p.precision, first=True
        )
    if p.std.dim() == 1:
        d.std = d.std.flatten(0, 1).sum(0)
    return _in_input_dtypes(p, d)


def _backward_tile(
    p: Problem,
    network: Network,
    tile: Tile,
    log_prob: Tensor,
    d_log_prob: Tensor,
    d_means_buffer: Tensor,
    d_context_part: Tensor,
    sums: list[WeightGradient],
    d: Gradients,
    largest: Tensor | None,
) -> None:
    """Adds what one tile gives; the layers' outputs are replaced by their gradients on the way down."""
    outputs = network.run(tile)
    actions = p.action.shape[1]
    d_means = d_means_buffer[: tile.latent.entries * actions].view(*tile.shape, actions)
    likelihood.backward_tile(
        outputs[-1].view(*tile.shape, -1),
        network.last_layer(),
        p.action[tile.rows],
        tile.std,
        log_prob[tile.rows],
        d_log_prob[tile.rows],
        d_means,
        d.action[tile.rows],
        d.std[tile.rows] if p.std.dim() == 2 else d.std[tile.rows.start // p.tile_size()[1]],
        p.num_samples,
        first=tile.is_first,
        largest=largest,
        precision=p.precision,
    )
    gradient = d_means.flatten(0, 1)
    for layer in reversed(range(1, len(p.weights))):
        below = outputs[layer - 1]
        sums[layer].add(gradient, below)
        linear_backward(
            gradient,
            network.turned[layer + 1],
            below,
            below,
            d_context_part[tile.rows] if layer == 1 else None,
            tile.shape[0],
            p.activation,
            p.parameter,
            p.precision,
            first=tile.is_first,
            largest=largest,
        )
        gradient = below
    if p.latent_mean.shape[1] == 0:
        return
    sums[0].add(gradient, network.latent(tile))
    latent_backward(
        gradient,
        network.turned[1],
        tile.latent,
        d.latent_mean[tile.rows],
        d.latent_std[tile.rows],
        None if d.noise is None else d.noise[tile.samples, tile.rows],
        p.precision,
        first=tile.is_first,
        largest=largest,
    )


def _in_input_dtypes(p: Problem, d: Gradients) -> Gradients:
    """Float32 sums, rounded once."""
    return Gradients(
        d.action.to(p.action.dtype),
        d.context.to(p.context.dtype),
        d.latent_mean.to(p.latent_mean.dtype),
        d.latent_std.to(p.latent_std.dtype),
        [gradient.to(weight.dtype) for gradient, weight in zip(d.weights, p.weights, strict=True)],
        [gradient.to(bias.dtype) for gradient, bias in zip(d.biases, p.biases, strict=True)],
        d.std.to(p.std.dtype),
        None if d.noise is None or p.noise is None else d.noise.to(p.noise.dtype),
    )
