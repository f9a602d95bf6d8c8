"""Moments through a whole MLP, layer by layer: torch's matrix products around elementwise kernels.

It is the CPU backend, and with its own kernels and chunks the CUDA backend where there are gradients.

Rows go through the network in chunks, so that activations and their gradients live in cache and in a few scratch
buffers; only the pre-activation moments of hidden layers are kept for the backward pass. The biases are added by the
activation kernels, which saves a pass over each product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.layered.products import mm
from p3kernels.records import Backward, Gradients, MlpMomentsInputs, MlpMomentsOutputs, activation_of

CHUNK_ROWS = 2048


def _squares(weights: Sequence[Tensor], stochastic: int) -> list[Tensor]:
    """W ∘ W of every layer; of the first only the columns that meet a variance."""
    first = weights[0][:, weights[0].shape[1] - stochastic :]
    return [first.square(), *(weight.square() for weight in weights[1:])]


def _kept_views(kept: Tensor, rows: int, widths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """The pre-activation moments [B, O] of each activated layer, as views of the one buffer that holds them all."""
    views, at = [], 0
    for width in widths:
        size = rows * width
        views.append((kept[at : at + size].view(rows, width), kept[at + size : at + 2 * size].view(rows, width)))
        at += 2 * size
    return views


def _parameter_gradient(parameter: Tensor, layer: int) -> Tensor:
    """Zeros [O, I]. The first layer's are laid out the other way round: its input size is often odd, and the product
    that fills them is up to 40 % faster in BLAS when that is not the leading dimension.
    """
    return parameter.new_zeros(parameter.shape[::-1]).t() if layer == 0 else torch.zeros_like(parameter)


def _present(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    """The biases, contiguous, zeros for none."""
    pairs = zip(weights, biases, strict=True)
    return [bias.contiguous() if bias.numel() > 0 else weight.new_zeros(weight.shape[0]) for weight, bias in pairs]


def forward(inputs: MlpMomentsInputs, kernels: Any = native, chunk_rows: int = CHUNK_ROWS) -> MlpMomentsOutputs:
    """Output moments, and the pre-activation moments if `save`.

    Args:
        inputs: All of one dtype.
        kernels: The functions of `native`, for the tensors' device.
        chunk_rows: How many rows go through the network at once.
    """
    mean, var, weights, activated = inputs.mean, inputs.var, inputs.weights, inputs.activated
    biases, save = _present(weights, inputs.biases), inputs.save
    rows = mean.shape[0]
    kept = mean.new_empty(2 * rows * sum(activated) if save else 0)
    pre_activations = _kept_views(kept, rows, activated) if save else []
    out_mean = mean.new_empty(rows, weights[-1].shape[0])
    out_var = torch.empty_like(out_mean)
    chunk = min(chunk_rows, rows)
    widest = max(activated, default=0)
    scratch = [[mean.new_empty(chunk * widest) for _ in range(2)] for _ in range(2)]
    squares = _squares(weights, var.shape[1])

    for begin in range(0, rows, chunk_rows):
        end = min(begin + chunk_rows, rows)
        chunk_mean, chunk_var = mean[begin:end], var[begin:end]
        for layer, (weight, square, bias) in enumerate(zip(weights, squares, biases, strict=True)):
            last = layer == len(weights) - 1
            if layer == len(activated):
                mm(chunk_mean, weight.t(), bias=bias, out=out_mean[begin:end])
                mm(chunk_var, square.t(), out=out_var[begin:end])
                break
            width = activated[layer]
            to_mean, to_var = (
                (out_mean[begin:end], out_var[begin:end])
                if last
                else tuple(buffer[: (end - begin) * width].view(-1, width) for buffer in scratch[layer % 2])
            )
            pre_mean, pre_var = (
                tuple(moment[begin:end] for moment in pre_activations[layer]) if save else (to_mean, to_var)
            )
            mm(chunk_mean, weight.t(), out=pre_mean)
            mm(chunk_var, square.t(), out=pre_var)
            kernels.moments_forward(activation_of(inputs), pre_mean, pre_var, bias, to_mean, to_var)
            chunk_mean, chunk_var = to_mean, to_var
    return MlpMomentsOutputs(out_mean, out_var, kept)


def backward(
    request: Backward[MlpMomentsInputs, MlpMomentsOutputs], kernels: Any = native, chunk_rows: int = CHUNK_ROWS
) -> Gradients:
    """The gradients asked for; weights and biases come together. Arguments as for `forward`."""
    inputs, d_outputs, activation = request.inputs, request.d_outputs, activation_of(request.inputs)
    mean, var, weights, activated = inputs.mean, inputs.var, inputs.weights, inputs.activated
    biases = _present(weights, inputs.biases)
    rows, layers = mean.shape[0], len(weights)
    pre_activations = _kept_views(request.outputs.kept, rows, activated)
    squares = _squares(weights, var.shape[1])
    need_mean, need_var = "mean" in request.wanted, "var" in request.wanted
    need_parameters = not request.wanted.isdisjoint({"weights", "biases"})
    d_mean = mean.new_empty(mean.shape if need_mean else 0)
    d_var = var.new_empty(var.shape if need_var else 0)
    d_weights = [_parameter_gradient(weight, layer) for layer, weight in enumerate(weights)] if need_parameters else []
    d_squares = [_parameter_gradient(square, layer) for layer, square in enumerate(squares)] if need_parameters else []
    d_biases = [torch.zeros_like(bias) for bias in biases] if need_parameters else []

    chunk = min(chunk_rows, rows)
    widest = max(activated, default=0)
    # Three pairs: gradients of this layer and of the one below, and the activations in between.
    scratch = [[mean.new_empty(chunk * widest) for _ in range(2)] for _ in range(3)]

    for begin in range(0, rows, chunk_rows):
        end = min(begin + chunk_rows, rows)

        def pair(index: int, width: int, count: int = end - begin) -> tuple[Tensor, Tensor]:
            first, second = (buffer[: count * width].view(count, width) for buffer in scratch[index])
            return first, second

        g_mean, g_var = d_outputs.mean[begin:end], d_outputs.var[begin:end]
        if inputs.activate_last:
            pre_mean, pre_var = (moment[begin:end] for moment in pre_activations[-1])
            to_mean, to_var = pair(layers % 2, activated[-1])
            kernels.moments_backward(
                activation_of(inputs), pre_mean, pre_var, biases[-1], g_mean, g_var, to_mean, to_var
            )
            g_mean, g_var = to_mean, to_var
        for layer in reversed(range(layers)):
            if layer > 0:
                width = activated[layer - 1]
                below_mean, below_var = pair((layer + 1) % 2, width)
                in_mean, in_var = pair(2, width)
                mm(g_mean, weights[layer], out=below_mean)
                mm(g_var, squares[layer], out=below_var)
                pre_mean, pre_var = (moment[begin:end] for moment in pre_activations[layer - 1])
                kernels.moments_backward(
                    activation,
                    pre_mean,
                    pre_var,
                    biases[layer - 1],
                    below_mean,
                    below_var,
                    below_mean,
                    below_var,
                    in_mean,
                    in_var,
                )
            else:
                in_mean, in_var = mean[begin:end], var[begin:end]
                if need_mean:
                    mm(g_mean, weights[0], out=d_mean[begin:end])
                if need_var:
                    mm(g_var, squares[0], out=d_var[begin:end])
            if need_parameters:
                mm(g_mean.t(), in_mean, out=d_weights[layer], add=True)
                mm(g_var.t(), in_var, out=d_squares[layer], add=True)
                d_biases[layer].add_(g_mean.sum(0))
            if layer > 0:
                g_mean, g_var = below_mean, below_var

    for weight, d_weight, d_square in zip(weights, d_weights, d_squares, strict=False):
        stochastic = slice(weight.shape[1] - d_square.shape[1], None)
        d_weight[:, stochastic].addcmul_(weight[:, stochastic], d_square, value=2)
    return {
        "mean": d_mean,
        "var": d_var,
        "weights": [d_weight.contiguous() for d_weight in d_weights],
        "biases": [d_bias[: bias.numel()] for d_bias, bias in zip(d_biases, inputs.biases, strict=False)],
    }
