"""Gradients of all weights and biases of a moment MLP: one grouped launch over the batch, one for the final sums.

d_weight = d_meanᵀ · mean + 2 W ∘ (d_varᵀ · var) and d_bias = Σ d_mean, with d_mean, d_var the gradients of a layer's
pre-activation moments and mean, var its inputs. A program owns one tile of one of a layer's two products and one part
of the batch; its sums go to a workspace, which the second kernel adds up in order. No atomics: the result is the same
on every run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from triton_kernels import launch
from triton_kernels.kernels.linear_weight_gradients import _linear_weight_gradients_kernel, _sum_partials_kernel
from triton_kernels.linear_elu_moments import Moments, fast

LAYERS_A_LAUNCH = 4
"""Each layer is code of its own in the grouped kernel; deeper networks take several launches."""
PROCESSORS = 132
"""What the parts of the batch are counted for. Not asked of the device: the result then does not depend on it."""
MOST_SPLITS = 16
SUM_CONFIG: launch.Config = {"BLOCK": 512, "num_warps": 4, "num_stages": 1}


def weight_config(rows: int, widths: Sequence[int], precision: str) -> launch.Config:
    """What the grouped kernel is launched with."""
    large = 128 if fast(precision) and launch.arch() == "sm_90" else 64
    default = {
        "BLOCK_OUT": large,
        "BLOCK_IN": large,
        "BLOCK_ROWS": 16 if precision == "tf32x3" else 32,
        "num_warps": 8,
        "num_stages": 3 if launch.arch() == "sm_90" else 2,
    }
    key = ("-".join(map(str, widths)), precision, launch.row_bucket(rows))
    return launch.tuned("linear_weight_gradients_kernel", key, default)


def tile_count(inputs: Sequence[Moments], weights: Sequence[Tensor], config: launch.Config) -> int:
    """Programs that the layers need for each part of the batch."""
    return sum(
        triton.cdiv(weight.shape[0], config["BLOCK_OUT"]) * triton.cdiv(x.shape[1], config["BLOCK_IN"])
        for moments, weight in zip(inputs, weights, strict=True)
        for x in moments
    )


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
    deterministic: int,
    precision: str,
) -> tuple[list[Tensor], list[Tensor]]:
    """d_weights and d_biases, each of the shape and dtype of its parameter.

    Args:
        inputs: mean and var of every layer, contiguous; of the first layer as `mlp_moments` packs them.
        gradients: d_mean and d_var of every layer's pre-activation moments, rows contiguous, of one stride each.
        weights: [O, I] a layer, rows contiguous.
        biases: [O] a layer, or of no elements where there is none.
        deterministic: Inputs of the first layer that have no variance.
        precision: Precision of the products, see `dot`.
    """
    d_weights = [torch.empty(weight.shape, dtype=weight.dtype, device=weight.device) for weight in weights]
    d_biases = [torch.empty_like(bias, memory_format=torch.contiguous_format) for bias in biases]
    for begin in range(0, len(weights), LAYERS_A_LAUNCH):
        group = slice(begin, begin + LAYERS_A_LAUNCH)
        first = deterministic if begin == 0 else 0
        _launch(inputs[group], gradients[group], weights[group], d_weights[group], d_biases[group], first, precision)
    return d_weights, d_biases


def _launch(
    inputs: Sequence[Moments],
    gradients: Sequence[Moments],
    weights: Sequence[Tensor],
    d_weights: Sequence[Tensor],
    d_biases: Sequence[Tensor],
    deterministic: int,
    precision: str,
) -> None:
    rows, layers = inputs[0][0].shape[0], len(weights)
    outputs = tuple(weight.shape[0] for weight in weights)
    mean_widths, var_widths = (tuple(moments[k].shape[1] for moments in inputs) for k in range(2))
    config = weight_config(rows, (weights[0].shape[1], *outputs), precision)
    tiles = tile_count(inputs, weights, config)
    part = rows_a_split(rows, tiles, config["BLOCK_ROWS"])
    splits = triton.cdiv(rows, part)
    places = sum(o * (m + 1 + v) for o, m, v in zip(outputs, mean_widths, var_widths, strict=True))
    partial = torch.empty((splits, places), dtype=torch.float32, device=weights[0].device)
    if tiles > 0:
        launch.start(
            _linear_weight_gradients_kernel,
            tiles * splits,
            tuple(moments[0] for moments in inputs),
            tuple(moments[1] for moments in inputs),
            tuple(gradient[0] for gradient in gradients),
            tuple(gradient[1] for gradient in gradients),
            partial,
            rows,
            part,
            tiles,
            places,
            mean_widths,
            var_widths,
            outputs,
            tuple(gradient[0].stride(0) for gradient in gradients),
            LAYERS=layers,
            PRECISION=precision,
            **config,
        )
    biased = [bias.numel() > 0 for bias in d_biases]
    config = launch.tuned("sum_partials_kernel", (), SUM_CONFIG)
    blocks = sum(triton.cdiv(tensor.numel(), config["BLOCK"]) for tensor in (*d_weights, *d_biases))
    if blocks > 0:
        launch.start(
            _sum_partials_kernel,
            blocks,
            partial,
            tuple(weights),
            tuple(d_weights),
            tuple(d_biases),
            tuple(weight.shape[1] for weight in weights),
            outputs,
            (deterministic, *(0 for _ in range(layers - 1))),
            (mean_widths[0] - var_widths[0] - deterministic, *(0 for _ in range(layers - 1))),
            mean_widths,
            var_widths,
            tuple(weight.stride(0) for weight in weights),
            places,
            splits,
            LAYERS=layers,
            BIASES=sum(1 << layer for layer, has in enumerate(biased) if has),
            **config,
        )
