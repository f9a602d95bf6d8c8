"""Moments through a whole MLP: the launches of a forward and a backward pass, and a forward in one launch.

Forward, one launch a layer: reads the layer's inputs, writes its pre-activation moments (kept for the backward pass:
they are all that is saved) and its activation moments. Backward, from the last layer down, one launch a layer for the
inputs' gradients, with the activation's gradient of the layer below in it; then one launch for the gradients of all
weights and one that adds up their parts. The backward pass writes the activation moments once more on its way, for the
weights' gradients: reading 8 bytes an element is cheaper than some 300 operations in every tile that needs it.

Without a backward pass to come, and where the activations of all rows fit the L2 cache, a single launch does all
layers: a program takes a block of rows through the network, its activations in a scratch buffer that stays in cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
from torch import Tensor

from triton_kernels import activation_moments, launch
from triton_kernels.kernels.mlp_moments import _mlp_moments_fwd_kernel
from triton_kernels.kernels.moments_math import NONE
from triton_kernels.launch import block_of
from triton_kernels.linear_elu_moments import (
    Moments,
    chunk_rows,
    layer_forward,
    layer_input_gradient,
    rows_contiguous,
)
from triton_kernels.linear_weight_gradients import weight_gradients

SCRATCH_BYTES = 40 << 20
"""Bytes kept between layers, of an H100's 50 MB of L2; above them the layers are launched one by one."""
MOST_LAYERS = 8
"""Each layer is code of its own in the kernel that does all of them."""


def fits_one_launch(rows: int, widths: Sequence[int], activate_last: bool) -> bool:
    """Whether the forward without saving is one launch: several layers, scratch within the cache."""
    layers = len(widths) - 1
    return 2 <= layers <= MOST_LAYERS and not activate_last and 16 * rows * max(widths[1:-1]) <= SCRATCH_BYTES


def one_launch_config(rows: int, widths: Sequence[int], precision: str) -> launch.Config:
    """What the forward in one launch is launched with."""
    width, chunk = block_of(max(widths[1:]), 64), chunk_rows(32, block_of(max(widths[1:]), 64))
    default = {
        "BLOCK_ROWS": 32,
        "BLOCK_OUT": width,
        "BLOCK_IN": 32 if precision in ("tf32", "bf16") else 16,
        # Plain multiply-adds leave the activation fewer registers: with more rows at a time it would spill.
        "CHUNK_ROWS": chunk if precision != "ieee" or launch.interpreted() else min(chunk, 8),
        "num_warps": 8,
        "num_stages": 3,
    }
    key = ("-".join(map(str, widths)), precision, launch.row_bucket(rows))
    return launch.tuned("mlp_moments_fwd_kernel", key, default)


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _pair(like: Tensor, rows: int, columns: int) -> Moments:
    return _float32(like, rows, columns), _float32(like, rows, columns)


def _saved_views(saved: Tensor, rows: int, widths: Sequence[int]) -> list[Moments]:
    """The pre-activation moments [B, O] of each activated layer, as views of the one buffer that holds them all."""
    views, at = [], 0
    for width in widths:
        size = rows * width
        views.append((saved[at : at + size].view(rows, width), saved[at + size : at + 2 * size].view(rows, width)))
        at += 2 * size
    return views


@launch.fitting
def forward(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    kind: int,
    parameter: float,
    activate_last: bool,
    save: bool,
    precision: str = "ieee",
) -> tuple[Tensor, Tensor, Tensor]:
    """Output moments [B, O] and the flat buffer of pre-activation moments (empty unless `save`), all float32.

    Args:
        mean: [B, I], float32 or bfloat16.
        var: [B, J], J ≤ I: the last J inputs are stochastic.
        weights: One [O, I] a layer.
        biases: One [O] a layer, or of no elements where there is none.
        kind: The activation, `ELU` or `LEAKY_RELU` of `moments_math`.
        parameter: Its parameter.
        activate_last: Whether the last layer has the activation, too.
        save: Whether a backward pass may follow.
        precision: Precision of the products, see `dot`.
    """
    mean, var = rows_contiguous(mean), rows_contiguous(var)
    weights, biases = [rows_contiguous(weight) for weight in weights], [bias.contiguous() for bias in biases]
    rows, widths = mean.shape[0], [mean.shape[1], *(weight.shape[0] for weight in weights)]
    activated = widths[1:] if activate_last else widths[1:-1]
    saved = _float32(mean, 2 * rows * sum(activated) if save else 0)
    out = _pair(mean, rows, widths[-1])
    with launch.on_device(mean):
        if not save and fits_one_launch(rows, widths, activate_last):
            _forward_in_one_launch(mean, var, weights, biases, widths, kind, parameter, out, precision)
            return *out, saved
        kept = _saved_views(saved, rows, activated) if save else []
        moments = (mean, var)
        for layer, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            to = out if layer == len(weights) - 1 else _pair(mean, rows, widths[layer + 1])
            active = layer < len(activated)
            pre = kept[layer] if save and active else to
            layer_forward(moments, weight, bias, pre, to, kind if active else NONE.value, parameter, precision)
            moments = to
    return *out, saved


def _forward_in_one_launch(
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    widths: Sequence[int],
    kind: int,
    parameter: float,
    out: Moments,
    precision: str,
) -> None:
    rows, widest, deterministic = mean.shape[0], max(widths[1:-1]), mean.shape[1] - var.shape[1]
    config = one_launch_config(rows, widths, precision)
    if rows == 0:
        return
    launch.start(
        _mlp_moments_fwd_kernel,
        triton.cdiv(rows, config["BLOCK_ROWS"]),
        mean,
        var,
        tuple(weights),
        tuple(biases),
        _float32(mean, 4, rows, widest),
        *out,
        rows,
        widest,
        deterministic,
        tuple(widths),
        mean.stride(0),
        var.stride(0),
        tuple(weight.stride(0) for weight in weights),
        parameter,
        LAYERS=len(weights),
        ACTIVATION=kind,
        BIASES=sum(1 << layer for layer, bias in enumerate(biases) if bias.numel() > 0),
        SPLIT=deterministic > 0,
        PRECISION=precision,
        **config,
    )


@launch.fitting
def backward(
    d_out_mean: Tensor,
    d_out_var: Tensor,
    mean: Tensor,
    var: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor],
    saved: Tensor,
    kind: int,
    parameter: float,
    activate_last: bool,
    need_inputs: tuple[bool, bool],
    need_parameters: bool,
    precision: str = "ieee",
) -> tuple[Tensor, Tensor, list[Tensor], list[Tensor]]:
    """d_mean, d_var, d_weights, d_biases, each in the dtype of its tensor.

    Inputs not needed come back as empty tensors, parameters as empty lists. Arguments as for `forward`.
    """
    d_mean = torch.empty(mean.shape if need_inputs[0] else (0,), dtype=mean.dtype, device=mean.device)
    d_var = torch.empty(var.shape if need_inputs[1] else (0,), dtype=var.dtype, device=var.device)
    rows, layers = mean.shape[0], len(weights)
    if rows == 0:
        if not need_parameters:
            return d_mean, d_var, [], []
        return d_mean, d_var, [_zeros(weight) for weight in weights], [_zeros(bias) for bias in biases]
    activated = [weight.shape[0] for weight in (weights if activate_last else weights[:-1])]
    kept = _saved_views(saved, rows, activated)
    deterministic = mean.shape[1] - var.shape[1]
    mean, var = rows_contiguous(mean), rows_contiguous(var)
    weights = [rows_contiguous(weight) for weight in weights]
    with launch.on_device(mean):
        if activate_last:
            gradient = activation_moments.backward(d_out_mean, d_out_var, *kept[-1], kind, parameter)
        else:
            gradient = rows_contiguous(d_out_mean), rows_contiguous(d_out_var)
        gradients = [gradient]
        inputs: list[Moments] = []
        for layer in reversed(range(1, layers)):
            below = kept[layer - 1]
            d_below = _pair(mean, *below[0].shape)
            again = _pair(mean, *below[0].shape) if need_parameters else None
            layer_input_gradient(gradient, weights[layer], below, d_below, again, 0, kind, parameter, precision)
            gradient = d_below
            gradients.insert(0, gradient)
            if again is not None:
                inputs.insert(0, again)
        if any(need_inputs):
            wanted = (d_mean if need_inputs[0] else None, d_var if need_inputs[1] else None)
            layer_input_gradient(
                gradient, weights[0], None, wanted, None, deterministic, NONE.value, parameter, precision
            )
        if not need_parameters:
            return d_mean, d_var, [], []
        d_weights, d_biases = weight_gradients([(mean, var), *inputs], gradients, weights, biases, precision)
    return d_mean, d_var, d_weights, d_biases


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
