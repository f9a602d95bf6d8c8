"""Moments through a whole MLP: the launches of a forward and a backward pass, and a forward in one launch.

Forward, one launch packs parameters and inputs (see `pack`), then one launch a layer reads the layer's inputs and
writes its activation moments, which the next layer and the weights' gradients read, and its state (see
`moment_buffers`).
Backward, one launch packs the incoming gradients; from the last layer down, one launch a layer makes the inputs'
gradients, with the activation's gradient of the layer below in it; then one launch for the gradients of all weights and
one that adds up their parts.

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
    Behind,
    Moments,
    chunk_rows,
    fast,
    layer_forward,
    layer_input_gradient,
    rows_contiguous,
)
from triton_kernels.linear_weight_gradients import weight_gradients
from triton_kernels.moment_buffers import Buffers, Layout
from triton_kernels.pack import Matrix, pack, padded, storage

SCRATCH_BYTES = 40 << 20
"""Bytes kept between layers, of an H100's 50 MB of L2; above them the layers are launched one by one."""
MOST_LAYERS = 8
"""Each layer is code of its own in the kernel that does all of them."""


def fits_one_launch(rows: int, widths: Sequence[int], activate_last: bool) -> bool:
    """Whether the forward without saving is one launch: several layers, scratch within the cache."""
    layers = len(widths) - 1
    return 2 <= layers <= MOST_LAYERS and not activate_last and 16 * rows * max(widths[:-1]) <= SCRATCH_BYTES


def one_launch_config(rows: int, widths: Sequence[int], precision: str) -> launch.Config:
    """What the forward in one launch is launched with."""
    large = fast(precision) and launch.arch() == "sm_90"
    width = block_of(max(widths[1:]), 128 if large else 64)
    # Large tiles and plain multiply-adds leave the activation fewer registers: with more rows at a time it would spill.
    most = 32 if launch.interpreted() else 4 if large else 8 if precision == "ieee" else 32
    default = {
        "BLOCK_ROWS": 32,
        "BLOCK_OUT": width,
        "BLOCK_IN": 32 if fast(precision) else 16,
        "CHUNK_ROWS": min(chunk_rows(32, width), most),
        "num_warps": 8,
        "num_stages": 3,
    }
    key = ("-".join(map(str, widths)), precision, launch.row_bucket(rows))
    return launch.tuned("mlp_moments_fwd_kernel", key, default)


def saved_size(
    rows: int, inputs: int, stochastic: int, outputs: Sequence[int], activate_last: bool, precision: str
) -> int:
    """Elements of float32 that `forward` saves for its gradient."""
    return Layout(rows, (inputs, *outputs), stochastic, len(outputs) - (0 if activate_last else 1)).size(precision)


def _float32(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _pair(like: Tensor, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Moments:
    return tuple(torch.empty(rows, columns, dtype=dtype, device=like.device) for _ in range(2))  # type: ignore[return-value]


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
    """Output moments [B, O] and the buffer that `backward` wants (empty unless `save`), all float32.

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
    biases = [bias.contiguous() for bias in biases]
    rows, widths = mean.shape[0], [mean.shape[1], *(weight.shape[0] for weight in weights)]
    layers, activated = len(weights), len(weights) - (0 if activate_last else 1)
    layout = Layout(rows, widths, var.shape[1], activated if save else 0)
    out = _pair(mean, rows, widths[-1])
    if rows == 0 or (not save and fits_one_launch(rows, widths, activate_last)):
        if rows > 0:
            moments = rows_contiguous(mean), rows_contiguous(var)
            weights = [rows_contiguous(weight) for weight in weights]
            _forward_in_one_launch(*moments, weights, biases, widths, kind, parameter, out, precision)
        return *out, _float32(mean, layout.size(precision) if save else 0)
    saved = _float32(mean, layout.size(precision))
    buffers = Buffers(layout, saved, precision)
    pack(buffers.matrices(mean, var, weights), precision)
    moments = buffers.inputs
    for layer, (weight, bias) in enumerate(zip(buffers.weights, biases, strict=True)):
        last, active = layer == layers - 1, layer < activated
        if save:
            to, state = out if last else buffers.outputs[layer], buffers.states[layer] if active else out
        else:
            to = out if last else _pair(mean, rows, widths[layer + 1], storage(precision))
            state = to if to[0].dtype == torch.float32 else _pair(mean, rows, widths[layer + 1])
        jacobian = save and fast(precision) and not last
        behind = Behind(kind if active else NONE.value, parameter, precision, jacobian)
        layer_forward(moments, weight, bias, state, to, behind)
        moments = to
    return *out, saved if save else _float32(mean, 0)


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
    rows, widest, deterministic = mean.shape[0], max(widths[:-1]), mean.shape[1] - var.shape[1]
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
        COPIED=precision == "tf32",
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
    widths = [mean.shape[1], *(weight.shape[0] for weight in weights)]
    layout = Layout(rows, widths, var.shape[1], layers - (0 if activate_last else 1))
    buffers = Buffers(layout, saved, precision)
    if activate_last:
        d_out_mean, d_out_var = activation_moments.backward(d_out_mean, d_out_var, *buffers.states[-1], kind, parameter)
    gradient = _pair(mean, rows, padded(widths[-1]), storage(precision))
    pack([Matrix(d_out_mean, gradient[0]), Matrix(d_out_var, gradient[1])], precision)
    gradients = [gradient]
    for layer in reversed(range(1, layers)):
        d_below = _pair(mean, rows, widths[layer], storage(precision))
        layer_input_gradient(
            gradient,
            buffers.turned[layer],
            widths[layer + 1],
            widths[layer],
            buffers.states[layer - 1],
            d_below,
            0,
            0,
            Behind(kind, parameter, precision, jacobian=fast(precision)),
        )
        gradient = d_below
        gradients.insert(0, gradient)
    if any(need_inputs):
        wanted = (d_mean if need_inputs[0] else None, d_var if need_inputs[1] else None)
        layer_input_gradient(
            gradient,
            buffers.turned[0],
            widths[1],
            widths[0],
            None,
            wanted,
            layout.deterministic,
            layout.gap,
            Behind(NONE.value, parameter, precision, jacobian=False),
        )
    if not need_parameters:
        return d_mean, d_var, [], []
    weights = [rows_contiguous(weight) for weight in weights]
    inputs = [buffers.inputs, *buffers.outputs[: layers - 1]]
    d_weights, d_biases = weight_gradients(inputs, gradients, weights, biases, layout.deterministic, precision)
    return d_mean, d_var, d_weights, d_biases


def _zeros(parameter: Tensor) -> Tensor:
    return torch.zeros(parameter.shape, dtype=parameter.dtype, device=parameter.device)
