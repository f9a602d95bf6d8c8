"""Moments through a whole MLP on a GPU.

Without a gradient a batch of up to `ONE_LAUNCH_ROWS` is one launch, activations staying in shared memory. Otherwise the
layers run one after the other: torch's matrix products, which on a GPU are as fast as there are, and one of our kernels
between two of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from p3kernels.cuda import native
from p3kernels.layered import mlp_moments as layered

ONE_LAUNCH_ROWS = 4096
"""Above it, launches cost little beside the products, and torch's own products are better than ours."""


def in_one_launch(mean: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether `forward` without `save` is one launch: few rows, a network that fits."""
    rows, widths = mean.shape[0], [mean.shape[1], *(weight.shape[0] for weight in weights)]
    return rows <= ONE_LAUNCH_ROWS and native.moments_in_one_launch(widths, rows, mean)


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

    Arguments as for the operator in `p3kernels/ops/mlp_moments.py`; a bias of no elements is none.
    """
    rows = mean.shape[0]
    if not save and in_one_launch(mean, weights):
        out_mean = torch.empty(rows, weights[-1].shape[0], dtype=torch.float32, device=mean.device)
        out_var = torch.empty_like(out_mean)
        network = native.Network(native.one_dtype(weights), [bias.contiguous() for bias in biases], kind, parameter)
        native.mlp_moments(network, activate_last, mean.contiguous(), var.contiguous(), out_mean, out_var)
        return out_mean, out_var, out_mean.new_empty(0)
    weights, biases = [weight.float() for weight in weights], _present(weights, biases)
    return layered.forward(
        mean.float(), var.float(), weights, biases, kind, parameter, activate_last, save, native, max(rows, 1)
    )


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
    d_mean, d_var, d_weights, d_biases = layered.backward(
        d_out_mean.contiguous(),
        d_out_var.contiguous(),
        mean.float(),
        var.float(),
        [weight.float() for weight in weights],
        _present(weights, biases),
        saved,
        kind,
        parameter,
        activate_last,
        need_inputs,
        need_parameters,
        native,
        max(mean.shape[0], 1),
    )
    d_weights = [d.to(weight.dtype) for d, weight in zip(d_weights, weights, strict=False)]
    d_biases = [d.to(bias.dtype)[: bias.numel()] for d, bias in zip(d_biases, biases, strict=False)]
    return d_mean.to(mean.dtype), d_var.to(var.dtype), d_weights, d_biases


def _present(weights: Sequence[Tensor], biases: Sequence[Tensor]) -> list[Tensor]:
    """float32, contiguous, zeros for none."""
    pairs = zip(weights, biases, strict=True)
    return [
        bias.float().contiguous() if bias.numel() > 0 else weight.new_zeros(weight.shape[0], dtype=torch.float32)
        for weight, bias in pairs
    ]
