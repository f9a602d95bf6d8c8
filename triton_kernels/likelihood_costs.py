"""Bytes and FLOPs of the likelihoods' kernels, a launch each, for `python -m triton_kernels.aot`.

The rule: every input is read once and every output written once, from and to DRAM. Programs that share rows are
neighbours in the grid and run at the same time, and so are programs that share a range of entries in a weight's
gradient; what they share, and the weights (under 1 MB), is then in the 50 MB L2. What is moved beyond that, and
counted, is partial sums and sums carried from tile to tile: they are read again where a tile adds to them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton

from triton_kernels.latent_noise import GIVEN
from triton_kernels.record import Cost, Launch
from triton_kernels.sampled_layers import NONE

_FLOAT = 4


def cost(launch: Launch) -> Cost:
    """Of a launch of any kernel of `mixture_likelihood.py`, `sampled_layers.py` and `sampled_layers_backward.py`."""
    return _COSTS[launch.name](launch.arguments, launch.grid)


def _size(a: dict[str, Any], name: str) -> int:
    return a[name].element_size()


def _sums(a: dict[str, Any], elements: int) -> tuple[int, int]:
    """Bytes moved and compulsory of sums that the first tile writes and later ones read and write."""
    return elements * _FLOAT * (1 if a["FIRST"] else 2), elements * _FLOAT


def _likelihood_inputs(a: dict[str, Any]) -> int:
    """Means or the last layer's inputs and parameters, action and std."""
    rows, actions = a["rows"], a["actions"]
    total = a["samples"] * rows * a["inputs"] * _size(a, "x_ptr") + rows * actions * _size(a, "action_ptr")
    total += (rows if a["ROW_STD"] else 1) * actions * _size(a, "std_ptr")
    return total + (actions * (a["inputs"] + 1) * _size(a, "weight_ptr") if a["HAS_LAYER"] else 0)


def _likelihood_flops(a: dict[str, Any]) -> int:
    entries = a["samples"] * a["rows"]
    return 2 * entries * a["actions"] * a["inputs"] if a["HAS_LAYER"] else 4 * entries * a["actions"]


def _mixture_fwd(a: dict[str, Any], grid: int) -> Cost:
    state = a["rows"] * _FLOAT * ((0 if a["FIRST"] else 2) + (1 if a["LAST"] else 2))
    total = _likelihood_inputs(a) + state
    return Cost(total, total, _likelihood_flops(a))


def _mixture_bwd(a: dict[str, Any], grid: int) -> Cost:
    rows, actions = a["rows"], a["actions"]
    fixed = _likelihood_inputs(a) + a["samples"] * rows * actions * _size(a, "d_means_ptr") + 2 * rows * _FLOAT
    action = _sums(a, rows * actions)
    std = _sums(a, (rows if a["ROW_STD"] else grid) * actions)
    least = (rows if a["ROW_STD"] else 1) * actions * _FLOAT
    return Cost(fixed + action[0] + std[0], fixed + action[1] + least, _likelihood_flops(a))


def _noise(a: dict[str, Any], entries: int) -> int:
    """Bytes of the latent distribution's two tensors and what its noise is made of."""
    return 2 * a["rows"] * a["columns"] * _size(a, "std_ptr") + _noise_source(a, entries)


def _noise_source(a: dict[str, Any], entries: int) -> int:
    """Bytes of noise that is not drawn, or of the numbers of the rows whose noise is."""
    if a["SOURCE"] == GIVEN.value:
        return entries * a["columns"] * _size(a, "noise_ptr")
    return a["rows"] * _size(a, "rows_ptr") if a["HAS_ROWS"] else 0


def _linear_fwd(a: dict[str, Any], grid: int) -> Cost:
    rows, inputs, outputs = a["rows"], a["inputs"], a["outputs"]
    total = rows * inputs * _size(a, "x_ptr") + outputs * (inputs + 1) * _size(a, "weight_ptr")
    total += rows * outputs * _FLOAT
    return Cost(total, total, 2 * rows * inputs * outputs)


def _latent_fwd(a: dict[str, Any], grid: int) -> Cost:
    entries, columns, outputs = a["entries"], a["columns"], a["outputs"]
    total = _noise(a, entries) + outputs * columns * _size(a, "weight_ptr")
    total += a["rows"] * outputs * _FLOAT + entries * outputs * _FLOAT
    return Cost(total, total, 2 * entries * columns * outputs)


def _linear_bwd(a: dict[str, Any], grid: int) -> Cost:
    entries, inputs, outputs = a["samples"] * a["rows"], a["inputs"], a["outputs"]
    fixed = entries * (outputs + inputs) * _FLOAT + inputs * outputs * _size(a, "weight_ptr")
    fixed += entries * inputs * _FLOAT if a["ACTIVATION"] != NONE.value else 0
    row_sum = _sums(a, a["rows"] * inputs) if a["ROW_SUM"] else (0, 0)
    return Cost(fixed + row_sum[0], fixed + row_sum[1], 2 * entries * inputs * outputs)


def _parts(a: dict[str, Any], grid: int, columns: int, block: int) -> int:
    return grid // (triton.cdiv(a["outputs"], a["BLOCK_O"]) * max(1, triton.cdiv(columns, block)))


def _linear_bwd_weight(a: dict[str, Any], grid: int) -> Cost:
    entries, inputs, outputs = a["entries"], a["inputs"], a["outputs"]
    fixed = entries * (outputs * _FLOAT + inputs * _size(a, "x_ptr"))
    parts = _parts(a, grid, inputs, a["BLOCK_I"])
    sums = _sums(a, parts * outputs * (inputs + 1))[0]
    return Cost(fixed + sums, fixed + outputs * (inputs + 1) * _FLOAT, 2 * entries * inputs * outputs)


def _latent_bwd_weight(a: dict[str, Any], grid: int) -> Cost:
    entries, columns, outputs = a["entries"], a["columns"], a["outputs"]
    fixed = entries * outputs * _FLOAT + _noise(a, entries)
    parts = _parts(a, grid, columns, a["BLOCK_Z"])
    sums = _sums(a, parts * outputs * columns)[0]
    return Cost(fixed + sums, fixed + outputs * columns * _FLOAT, 2 * entries * columns * outputs)


def _latent_bwd(a: dict[str, Any], grid: int) -> Cost:
    rows, columns, outputs = a["rows"], a["columns"], a["outputs"]
    entries = a["samples"] * rows
    fixed = entries * outputs * _FLOAT + outputs * columns * _size(a, "weight_ptr")
    fixed += _noise_source(a, entries)
    if a["HAS_D_NOISE"]:
        fixed += entries * columns * _FLOAT + rows * columns * _size(a, "std_ptr")
    sums = _sums(a, 2 * rows * columns)
    return Cost(fixed + sums[0], fixed + sums[1], 2 * entries * columns * outputs)


def _sum_parts(a: dict[str, Any], grid: int) -> Cost:
    elements = a["outputs"] * a["width"]
    total = (a["parts"] + 1) * elements * _FLOAT
    return Cost(total, total, a["parts"] * elements)


_COSTS: dict[str, Callable[[dict[str, Any], int], Cost]] = {
    "mixture_log_prob_fwd_kernel": _mixture_fwd,
    "mixture_log_prob_bwd_kernel": _mixture_bwd,
    "sampled_linear_fwd_kernel": _linear_fwd,
    "latent_linear_fwd_kernel": _latent_fwd,
    "sampled_linear_bwd_kernel": _linear_bwd,
    "sampled_linear_bwd_weight_kernel": _linear_bwd_weight,
    "latent_linear_bwd_weight_kernel": _latent_bwd_weight,
    "latent_linear_bwd_kernel": _latent_bwd,
    "sum_parts_kernel": _sum_parts,
}
