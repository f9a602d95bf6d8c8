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
import triton.language as tl
from torch import Tensor

from triton_kernels import launch
from triton_kernels.dot import dot
from triton_kernels.linear_elu_moments import Moments
from triton_kernels.moment_tiles import store_tile, tile

LAYERS_A_LAUNCH = 4
"""Each layer is code of its own in the grouped kernel; deeper networks take several launches."""
PROCESSORS = 132
"""What the parts of the batch are counted for. Not asked of the device: the result then does not depend on it."""
MOST_SPLITS = 16
SUM_CONFIG: launch.Config = {"BLOCK": 1024, "num_warps": 4, "num_stages": 1}


@triton.jit
def _layer_tile(
    d_mean_ptr: tl.tensor,
    d_var_ptr: tl.tensor,
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    weight_ptr: tl.tensor,
    partial_ptr: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    index: tl.tensor,
    inputs: tl.tensor,
    deterministic: tl.tensor,
    outputs: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_weight: tl.tensor,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """Tile number `index` of one layer, over rows begin … end; the weight's sums at partial_ptr, then the bias's."""
    deterministic_blocks = tl.cdiv(deterministic, BLOCK_IN)
    column_blocks = deterministic_blocks + tl.cdiv(inputs - deterministic, BLOCK_IN)
    block = index % column_blocks
    out = (index // column_blocks) * BLOCK_OUT + tl.arange(0, BLOCK_OUT)
    out_inside = out < outputs
    total_mean = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
    # Summed over the rows of a block only at the end: a sum across threads costs more than these additions.
    total_bias = tl.zeros([BLOCK_ROWS, BLOCK_OUT], tl.float32)
    column = block * BLOCK_IN + tl.arange(0, BLOCK_IN)
    last_column = deterministic
    if block >= deterministic_blocks:
        column += deterministic - deterministic_blocks * BLOCK_IN
        last_column = inputs
    column_inside = column < last_column
    if SPLIT and block < deterministic_blocks:
        for first in range(begin, end, BLOCK_ROWS):
            row = first + tl.arange(0, BLOCK_ROWS).to(tl.int64)
            row_inside = (row < end)[:, None]
            d_mean = tile(d_mean_ptr, row, stride_d_mean, out, row_inside & out_inside[None, :])
            mean = tile(mean_ptr, row, stride_mean, column, row_inside & column_inside[None, :])
            total_mean = dot(tl.trans(d_mean), mean, total_mean, PRECISION)
            total_bias += d_mean
    else:
        total_var = tl.zeros([BLOCK_OUT, BLOCK_IN], tl.float32)
        for first in range(begin, end, BLOCK_ROWS):
            row = first + tl.arange(0, BLOCK_ROWS).to(tl.int64)
            row_inside = (row < end)[:, None]
            d_mean = tile(d_mean_ptr, row, stride_d_mean, out, row_inside & out_inside[None, :])
            d_var = tile(d_var_ptr, row, stride_d_var, out, row_inside & out_inside[None, :])
            mean = tile(mean_ptr, row, stride_mean, column, row_inside & column_inside[None, :])
            var = tile(var_ptr, row, stride_var, column - deterministic, row_inside & column_inside[None, :])
            total_mean = dot(tl.trans(d_mean), mean, total_mean, PRECISION)
            total_var = dot(tl.trans(d_var), var, total_var, PRECISION)
            total_bias += d_mean
        inside = out_inside[:, None] & column_inside[None, :]
        weight = tile(weight_ptr, out.to(tl.int64), stride_weight, column, inside)
        total_mean += 2.0 * weight * total_var
    store_tile(partial_ptr, out.to(tl.int64), inputs, column, total_mean, out_inside[:, None] & column_inside[None, :])
    if block == 0:
        bias_ptr = partial_ptr + outputs.to(tl.int64) * inputs
        tl.store(bias_ptr + out, tl.sum(total_bias, axis=0), mask=out_inside)


@triton.jit
def _linear_weight_gradients_kernel(
    mean_ptr: tl.tensor,
    var_ptr: tl.tensor,
    hidden_mean_ptrs: tl.tensor,
    hidden_var_ptrs: tl.tensor,
    d_mean_ptrs: tl.tensor,
    d_var_ptrs: tl.tensor,
    weight_ptrs: tl.tensor,
    partial_ptr: tl.tensor,
    rows: tl.tensor,
    rows_a_split: tl.tensor,
    tiles: tl.tensor,
    parameters: tl.tensor,
    deterministic: tl.tensor,
    widths: tl.tensor,
    stride_mean: tl.tensor,
    stride_var: tl.tensor,
    stride_d_mean: tl.tensor,
    stride_d_var: tl.tensor,
    stride_weights: tl.tensor,
    LAYERS: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_OUT: tl.constexpr,
    BLOCK_IN: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
) -> None:
    """Arguments in the plural are tuples, one entry a layer; `widths` has I of the first and O of every layer."""
    # Neighbours in the grid share rows, so that what one of them reads the others find in L2.
    split = tl.program_id(0) // tiles
    index = tl.program_id(0) % tiles
    begin = split * rows_a_split
    end = tl.minimum(begin + rows_a_split, rows)
    partial_ptr += split.to(tl.int64) * parameters
    for layer in tl.static_range(LAYERS):
        inputs = widths[layer]
        outputs = widths[layer + 1]
        if layer == 0:
            count = tl.cdiv(outputs, BLOCK_OUT) * (
                tl.cdiv(deterministic, BLOCK_IN) + tl.cdiv(inputs - deterministic, BLOCK_IN)
            )
            if index < count:
                _layer_tile(
                    d_mean_ptrs[0],
                    d_var_ptrs[0],
                    mean_ptr,
                    var_ptr,
                    weight_ptrs[0],
                    partial_ptr,
                    begin,
                    end,
                    index,
                    inputs,
                    deterministic,
                    outputs,
                    stride_d_mean if LAYERS == 1 else outputs,
                    stride_d_var if LAYERS == 1 else outputs,
                    stride_mean,
                    stride_var,
                    stride_weights[0],
                    SPLIT,
                    PRECISION,
                    BLOCK_OUT,
                    BLOCK_IN,
                    BLOCK_ROWS,
                )
        else:
            count = tl.cdiv(outputs, BLOCK_OUT) * tl.cdiv(inputs, BLOCK_IN)
            if (index >= 0) & (index < count):
                _layer_tile(
                    d_mean_ptrs[layer],
                    d_var_ptrs[layer],
                    hidden_mean_ptrs[layer - 1],
                    hidden_var_ptrs[layer - 1],
                    weight_ptrs[layer],
                    partial_ptr,
                    begin,
                    end,
                    index,
                    inputs,
                    0,
                    outputs,
                    stride_d_mean if layer == LAYERS - 1 else outputs,
                    stride_d_var if layer == LAYERS - 1 else outputs,
                    inputs,
                    inputs,
                    stride_weights[layer],
                    False,
                    PRECISION,
                    BLOCK_OUT,
                    BLOCK_IN,
                    BLOCK_ROWS,
                )
        index -= count
        partial_ptr += (inputs + 1).to(tl.int64) * outputs


@triton.jit
def _sum_partials_kernel(
    partial_ptr: tl.tensor,
    out_ptrs: tl.tensor,
    sizes: tl.tensor,
    places: tl.tensor,
    parameters: tl.tensor,
    splits: tl.tensor,
    OUTPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out_k = Σ_s partial[s, k's part], in the order of s; each in its own dtype.

    An output has `sizes` elements; its part has `places`, which differ for a bias that does not exist.
    """
    block = tl.program_id(0)
    for k in tl.static_range(OUTPUTS):
        blocks = tl.cdiv(sizes[k], BLOCK)
        if (block >= 0) & (block < blocks):
            place = block.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            at = place
            inside = place < sizes[k]
            total = tl.zeros([BLOCK], tl.float32)
            for _ in range(splits):
                total += tl.load(partial_ptr + at, mask=inside, other=0.0)
                at += parameters
            tl.store(out_ptrs[k] + place, total, mask=inside)
        block -= blocks
        partial_ptr += places[k]


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
        precision: Of the products, see `dot`.
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
        _linear_weight_gradients_kernel[(tiles * splits,)](
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
        _sum_partials_kernel[(blocks,)](
            partial,
            tuple(outputs),
            tuple(output.numel() for output in outputs),
            tuple(places),
            parameters,
            splits,
            OUTPUTS=len(outputs),
            **config,
        )
