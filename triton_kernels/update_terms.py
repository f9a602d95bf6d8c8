"""What a PPO update computes of each row beside its networks, one launch forward and one backward each.

`latent_heads` makes the latent of what the encoder's heads give; `policy_terms`, `squared_errors` and `latent_kl` are
terms of the loss, as sums over the rows. The kernels are in `kernels/latent_terms.py` and
`kernels/update_terms.py`; everything is float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from triton_kernels.gaussian_head import with_rows
from triton_kernels.kernels import latent_terms
from triton_kernels.kernels import update_terms as kernels
from triton_kernels.launch import Config, fitting, row_bucket, start, tuned

ROWS_OF_SCALARS = 1024
"""Rows of a program that has a few numbers of each."""


def _config(kernel: str, rows: int, *widths: int) -> Config:
    """A block covers the widest row; rows of a program, so that it has some 2048 elements."""
    block = triton.next_power_of_2(max(widths))
    default = {"BLOCK_B": min(64, max(1, 2048 // block)), "BLOCK_C": block, "num_warps": 4, "num_stages": 1}
    return tuned(kernel, (*widths, row_bucket(rows)), default)


def _scalar_config(kernel: str, rows: int) -> Config:
    return tuned(kernel, (row_bucket(rows),), {"BLOCK_B": ROWS_OF_SCALARS, "num_warps": 4, "num_stages": 1})


def _grid(rows: int, config: Config) -> int:
    return triton.cdiv(rows, config["BLOCK_B"])


@fitting
def latent_heads(first: Tensor, second: Tensor, first_latent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and std [B, Z1 + Z2], and velocity [B, V].

    Args:
        first: [B, 2 Z1 + V]: means, log-variances, velocity.
        second: [B, 2 Z2]: means, log-variances.
        first_latent: Z1.
    """
    first, second = with_rows(first), with_rows(second)
    rows, second_latent = len(first), second.shape[1] // 2
    latent, velocity_size = first_latent + second_latent, first.shape[1] - 2 * first_latent
    mean, std, velocity = (first.new_empty(rows, width) for width in (latent, latent, velocity_size))
    if rows > 0:
        config = _config("latent_heads_fwd_kernel", rows, max(latent, velocity_size))
        sizes = (rows, first_latent, second_latent, velocity_size, first.stride(0), second.stride(0))
        start(
            latent_terms._latent_heads_fwd_kernel,
            _grid(rows, config),
            first,
            second,
            mean,
            std,
            velocity,
            *sizes,
            **config,
        )
    return mean, std, velocity


@fitting
def latent_heads_backward(
    d_out_mean: Tensor, d_out_std: Tensor, d_out_velocity: Tensor, first: Tensor, second: Tensor, first_latent: int
) -> tuple[Tensor, Tensor]:
    """d_first and d_second; a gradient that did not come is empty, the others are contiguous."""
    first, second = with_rows(first), with_rows(second)
    rows, second_latent = len(first), second.shape[1] // 2
    latent, velocity_size = first_latent + second_latent, first.shape[1] - 2 * first_latent
    d_first, d_second = (tensor.new_empty(tensor.shape) for tensor in (first, second))
    if rows > 0:
        config = _config("latent_heads_bwd_kernel", rows, max(latent, velocity_size))
        sizes = (rows, first_latent, second_latent, velocity_size, first.stride(0), second.stride(0))
        d_outputs = (d_out_mean, d_out_std, d_out_velocity)
        came = [gradient.numel() > 0 for gradient in d_outputs]
        gradients = [g if there else first for g, there in zip(d_outputs, came, strict=True)]
        start(
            latent_terms._latent_heads_bwd_kernel,
            _grid(rows, config),
            first,
            second,
            *gradients,
            d_first,
            d_second,
            *sizes,
            *came,
            **config,
        )
    return d_first, d_second


class Clips(NamedTuple):
    """Where the terms of a policy are clipped."""

    ratio: float
    """Distance from 1 at which a ratio is clipped, and from the old value a value."""
    dual: float | None
    """Bound on the loss of a row of negative advantage, in units of that advantage; None for none."""
    value: bool
    """Whether the value's move is clipped."""

    def arguments(self, rows: int) -> tuple[float | bool, ...]:
        """As the kernels take them, with the share of a row in a mean."""
        return self.ratio, self.dual or 0.0, 1.0 / rows, self.dual is not None, self.value


@fitting
def policy_terms(rows_of: Sequence[Tensor], kl: Tensor, drawn: Tensor | None, clips: Clips) -> tuple[Tensor, Tensor]:
    """[2] and [3]: loss of policy and value; KL, clipped ratios and drawn rows: means over all B rows.

    Args:
        rows_of: log_prob, old log_prob, advantage, value, old value and return, [B] each, with any stride.
        kl: [B].
        drawn: [B]: 1 for rows whose KL and ratio count, 0 for others; None for all.
        clips: Where ratio and value are clipped.
    """
    rows = len(kl)
    config = _scalar_config("policy_terms_fwd_kernel", rows)
    grid = _grid(rows, config)
    losses, numbers = kl.new_empty(grid, 2), kl.new_empty(grid, 3)
    tensors = (*rows_of, kl, kl if drawn is None else drawn)
    start(
        kernels._policy_terms_fwd_kernel,
        grid,
        *tensors,
        losses,
        numbers,
        rows,
        *(tensor.stride(0) for tensor in tensors),
        *clips.arguments(rows),
        drawn is not None,
        **config,
    )
    return losses.sum(0), numbers.sum(0)


@fitting
def policy_terms_backward(d_terms: Tensor, rows_of: Sequence[Tensor], clips: Clips) -> tuple[Tensor, Tensor]:
    """d_log_prob and d_value [B], of the gradients of the two losses."""
    rows = len(rows_of[0])
    config = _scalar_config("policy_terms_bwd_kernel", rows)
    d_log_prob, d_value = d_terms.new_empty(rows), d_terms.new_empty(rows)
    start(
        kernels._policy_terms_bwd_kernel,
        _grid(rows, config),
        *rows_of,
        d_terms,
        d_log_prob,
        d_value,
        rows,
        *(tensor.stride(0) for tensor in rows_of),
        *clips.arguments(rows),
        **config,
    )
    return d_log_prob, d_value


def _pairs(
    predictions: Sequence[Tensor], targets: Sequence[Tensor], mask: Tensor
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...], tuple[object, ...], tuple[int, ...]]:
    """Predictions and targets with rows, what the kernels want to know of them, and their widths."""
    rows = len(mask)
    predictions, targets = tuple(map(with_rows, predictions)), tuple(map(with_rows, targets))
    widths = tuple(prediction.shape[1] for prediction in predictions)
    # The first pair's mean is over the rows that count, which are known when all are summed.
    shares = tuple(1.0 / width if k == 0 else 1.0 / (rows * width) for k, width in enumerate(widths))
    strides = tuple(tuple(tensor.stride(0) for tensor in tensors) for tensors in (predictions, targets))
    return predictions, targets, (rows, widths, *strides, mask.stride(0), shares, len(widths)), widths


@fitting
def squared_errors(
    predictions: Sequence[Tensor], targets: Sequence[Tensor], mask: Tensor, divisor: Tensor, least: float
) -> Tensor:
    """[K]: mean squared errors; of the first pair Σ over the rows of the mask / divisor.

    Args:
        predictions: [B, C] each.
        targets: [B, C] each.
        mask: [B]: 1 for rows that count in the first pair, 0 for others.
        divisor: [].
        least: What is taken for `divisor` at least.
    """
    predictions, targets, sizes, widths = _pairs(predictions, targets, mask)
    config = _config("squared_errors_fwd_kernel", len(mask), *widths)
    parts = mask.new_empty(_grid(len(mask), config), len(widths))
    tensors = (predictions, targets, mask, divisor, parts)
    start(kernels._squared_errors_fwd_kernel, len(parts), *tensors, least, *sizes, **config)
    return parts.sum(0)


@fitting
def squared_errors_backward(
    d_out_errors: Tensor,
    predictions: Sequence[Tensor],
    targets: Sequence[Tensor],
    mask: Tensor,
    divisor: Tensor,
    least: float,
) -> list[Tensor]:
    """The gradient of each prediction."""
    predictions, targets, sizes, widths = _pairs(predictions, targets, mask)
    config = _config("squared_errors_bwd_kernel", len(mask), *widths)
    d_predictions = tuple(prediction.new_empty(prediction.shape) for prediction in predictions)
    start(
        kernels._squared_errors_bwd_kernel,
        _grid(len(mask), config),
        predictions,
        targets,
        mask,
        divisor,
        d_out_errors,
        d_predictions,
        least,
        *sizes,
        **config,
    )
    return list(d_predictions)


@fitting
def latent_kl(mean: Tensor, std: Tensor, first_latent: int, shares: Sequence[float]) -> Tensor:
    """[]: Σ KL(N(mean, std²) ‖ N(0, 1)), the first columns times one share, the others times the other.

    Args:
        mean: [B, Z].
        std: [B, Z].
        first_latent: How many columns are the first.
        shares: Two factors.
    """
    mean, std = mean.contiguous(), std.contiguous()
    rows, latent = mean.shape
    config = _config("latent_kl_fwd_kernel", rows, latent)
    parts = mean.new_empty(_grid(rows, config))
    start(
        latent_terms._latent_kl_fwd_kernel, len(parts), mean, std, parts, rows, latent, first_latent, *shares, **config
    )
    return parts.sum()


@fitting
def latent_kl_backward(
    d_out_kl: Tensor, mean: Tensor, std: Tensor, first_latent: int, shares: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """d_mean and d_std [B, Z]."""
    mean, std = mean.contiguous(), std.contiguous()
    rows, latent = mean.shape
    config = _config("latent_kl_bwd_kernel", rows, latent)
    d_mean, d_std = torch.empty_like(mean), torch.empty_like(std)
    sizes = (rows, latent, first_latent, *shares)
    start(latent_terms._latent_kl_bwd_kernel, _grid(rows, config), mean, std, d_out_kl, d_mean, d_std, *sizes, **config)
    return d_mean, d_std


def gradient_bounds(norms: Tensor, loss: Tensor, first: int, max_norm: float) -> tuple[Tensor, Tensor, Tensor]:
    """What the gradients of two parts are divided by [2]; whether anything is not finite, 1 or 0 []; whether not [].

    Args:
        norms: [P], contiguous, those of the first part before the second's.
        loss: [].
        first: How many are the first part's.
        max_norm: Norm of a part above which it is divided.
    """
    divisors, broken, taken = norms.new_empty(2), norms.new_empty(()), norms.new_empty((), dtype=torch.bool)
    block = {"BLOCK_P": triton.next_power_of_2(len(norms)), "num_warps": 1, "num_stages": 1}
    tensors = (norms, loss, divisors, broken, taken)
    start(kernels._gradient_bounds_kernel, 1, *tensors, len(norms), first, max_norm, **block)
    return divisors, broken, taken
