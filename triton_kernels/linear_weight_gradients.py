"""Gradients of all weights and biases of a moment MLP: one grouped launch over the batch, one for the final sums.

d_weight = d_meanᵀ · mean + 2 W ∘ (d_varᵀ · var) and d_bias = Σ d_mean, with d_mean, d_var the gradients of a layer's
pre-activation moments and mean, var its inputs. A program owns one tile of one layer's weight and one part of the
batch; its sums go to a workspace [splits, parameters], which the second kernel adds up in order. No atomics: the result
is the same on every run.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from triton_kernels import launch
from triton_kernels.kernels.linear_weight_gradients import _linear_weight_gradients_kernel, _sum_partials_kernel
from triton_kernels.linear_elu_moments import Moments

LAYERS_A_LAUNCH = 4
"""Each layer is code of its own in the grouped kernel; deeper networks take several launches."""
PROCESSORS = 132
"""What the parts of the batch are counted for. Not asked of the device: the result then does not depend on it."""
MOST_SPLITS = 16
SUM_CONFIG: launch.Config = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}


def weight_config(rows: int, widths: Sequence[int], precision: str) -> launch.Config:
    """What the grouped kernel is launched with."""
    default = {
        "BLOCK_OUT": 64,
        "BLOCK_IN": 64,
        "BLOCK_ROWS": 32 if precision in ("tf32", "bf16") else 16,
        "num_warps": 8,
        "num_stages": 3,
    }
    key = ("-".join(map(str, widths)), precision, launch.row_bucket(rows))
    return launch.tuned("linear_weight_gradients_kernel", key, default)


def tile_count(widths: Sequence[int], deterministic: int, config: launch.Config) -> int:
    """Programs that the layers need for each part of the batch."""
    count = 0
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        first = deterministic if layer == 0 else 0
        columns = triton.cdiv(first, config["BLOCK_IN"]) + triton.cdiv(inputs - first, config["BLOCK_IN"])
        count += columns * triton.cdiv(outputs, config["BLOCK_OUT"])
    return count


def split_count(rows: int, tiles: int, block_rows: int) -> int:
    """Parts of the batch: the fewest that keep the processors within 5 % as busy as the best number would."""
    most = max(1, min(MOST_SPLITS, triton.cdiv(rows, block_rows)))
    time = [triton.cdiv(tiles * splits, PROCESSORS) / splits for splits in range(1, most + 1)]
    return next(splits for splits, value in enumerate(time, 1) if value <= 1.05 * min(time))


def rows_a_split(rows: int, tiles: int, block_rows: int) -> int:
    """Rows in each part of the batch but the last: whole blocks."""
    return triton.cdiv(triton.cdiv(rows, block_rows), split_count(rows, tiles, block_rows)) * block_rows


def weight_gradients(
    inputs: Sequence[Moments],
    gradients: Sequence[Moments],
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    precision: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """d_weights and d_biases, each of the shape and dtype of its parameter.

    Args:
        inputs: mean [B, I] and var [B, J] of every layer, rows contiguous; after the first J = I, and contiguous.
        gradients: d_mean and d_var [B, O] of every layer's pre-activation moments; all but the last contiguous.
        weights: [O, I] a layer, rows contiguous.
        biases: [O] a layer, or of no elements where there is none.
        precision: Precision of the products, see `dot`.
    """
    d_weights = [torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights]
    d_biases = [torch.empty_like(bias, memory_format=torch.contiguous_format) for bias in biases]
    for begin in range(0, len(weights), LAYERS_A_LAUNCH):
        group = slice(begin, begin + LAYERS_A_LAUNCH)
        _launch(inputs[group], gradients[group], weights[group], d_weights[group], d_biases[group], precision)
    return d_weights, d_biases


def _launch(
    inputs: Sequence[Moments],
    gradients: Sequence[Moments],
    weights: Sequence[Tensor],
    d_weights: Sequence[Tensor],
    d_biases: Sequence[Tensor],
    precision: str,
) -> None:
    mean, var = inputs[0]
    rows, deterministic = mean.shape[0], mean.shape[1] - var.shape[1]
    widths = (mean.shape[1], *(weight.shape[0] for weight in weights))
    config = weight_config(rows, widths, precision)
    tiles = tile_count(widths, deterministic, config)
    part = rows_a_split(rows, tiles, config["BLOCK_ROWS"])
    splits = triton.cdiv(rows, part)
    parameters = sum(weight.numel() + weight.shape[0] for weight in weights)
    partial = torch.empty((splits, parameters), dtype=torch.float32, device=mean.device)
    if tiles > 0:
        launch.start(
            _linear_weight_gradients_kernel,
            tiles * splits,
            mean,
            var,
            tuple(moments[0] for moments in inputs[1:]),
            tuple(moments[1] for moments in inputs[1:]),
            tuple(gradient[0] for gradient in gradients),
            tuple(gradient[1] for gradient in gradients),
            tuple(weights),
            partial,
            rows,
            part,
            tiles,
            parameters,
            deterministic,
            widths,
            mean.stride(0),
            var.stride(0),
            gradients[-1][0].stride(0),
            gradients[-1][1].stride(0),
            tuple(weight.stride(0) for weight in weights),
            LAYERS=len(weights),
            SPLIT=deterministic > 0,
            PRECISION=precision,
            **config,
        )
    outputs = [tensor for pair in zip(d_weights, d_biases, strict=True) for tensor in pair]
    places = [size for weight in weights for size in (weight.numel(), weight.shape[0])]
    config = launch.tuned("sum_partials_kernel", (), SUM_CONFIG)
    blocks = sum(triton.cdiv(output.numel(), config["BLOCK"]) for output in outputs)
    if blocks > 0:
        launch.start(
            _sum_partials_kernel,
            blocks,
            partial,
            tuple(outputs),
            tuple(output.numel() for output in outputs),
            tuple(places),
            parameters,
            splits,
            OUTPUTS=len(outputs),
            **config,
        )
