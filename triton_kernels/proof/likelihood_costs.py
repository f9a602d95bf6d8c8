"""Costs of the kernels of the mixtures' likelihoods; rules in `costs.py`."""

from __future__ import annotations

from triton_kernels.kernels.latent_noise import GIVEN
from triton_kernels.kernels.moments_math import NONE
from triton_kernels.proof.costs import FLOAT, Arguments, Cost, cdiv, size_of


def _sums(a: Arguments, elements: int) -> tuple[int, int]:
    """Bytes moved and compulsory of sums that the first tile writes and later ones read and write."""
    return elements * FLOAT * (1 if a["FIRST"] else 2), elements * FLOAT


def _likelihood_inputs(a: Arguments, grid: int) -> tuple[int, int]:
    """Bytes of means or the last layer's inputs and parameters, action and std: of DRAM, and of L2."""
    rows, actions = a["rows"], a["actions"]
    total = a["samples"] * rows * a["inputs"] * size_of(a, "x_ptr") + rows * actions * size_of(a, "action_ptr")
    total += (rows if a["ROW_STD"] else 1) * actions * size_of(a, "std_ptr")
    layer = actions * (a["inputs"] + 1) * size_of(a, "weight_ptr") if a["HAS_LAYER"] else 0
    return total + layer, total + layer * grid * a["samples"]


def _likelihood_flops(a: Arguments) -> int:
    entries = a["samples"] * a["rows"]
    return 2 * entries * a["actions"] * a["inputs"] if a["HAS_LAYER"] else 4 * entries * a["actions"]


def _likelihood_trips(a: Arguments) -> tuple[float, ...]:
    samples = a["samples"]
    return (samples, samples * cdiv(a["inputs"], a["BLOCK_I"])) if a["HAS_LAYER"] else (samples,)


def _mixture_fwd(a: Arguments, grid: int) -> Cost:
    state = a["rows"] * FLOAT * ((0 if a["FIRST"] else 2) + (1 if a["LAST"] else 2))
    dram, l2 = _likelihood_inputs(a, grid)
    flops, trips = _likelihood_flops(a), _likelihood_trips(a)
    return Cost(dram + state, dram + state, l2 + state, flops, a["HAS_LAYER"], 0, trips)


def _mixture_bwd(a: Arguments, grid: int) -> Cost:
    rows, actions = a["rows"], a["actions"]
    dram, l2 = _likelihood_inputs(a, grid)
    fixed = a["samples"] * rows * actions * size_of(a, "d_means_ptr") + 2 * rows * FLOAT
    action = _sums(a, rows * actions)
    std = _sums(a, (rows if a["ROW_STD"] else grid) * actions)
    least = (rows if a["ROW_STD"] else 1) * actions * FLOAT
    moved = fixed + action[0] + std[0]
    flops, trips = _likelihood_flops(a), _likelihood_trips(a)
    return Cost(dram + moved, dram + fixed + action[1] + least, l2 + moved, flops, a["HAS_LAYER"], 0, trips)


def _noise(a: Arguments, entries: int) -> int:
    """Bytes of the latent distribution's two tensors and what its noise is made of."""
    return 2 * a["rows"] * a["columns"] * size_of(a, "std_ptr") + _noise_source(a, entries)


def _noise_source(a: Arguments, entries: int) -> int:
    """Bytes of noise that is not drawn, or of the numbers of the rows whose noise is."""
    if a["SOURCE"] == GIVEN.value:
        return entries * a["columns"] * size_of(a, "noise_ptr")
    return a["rows"] * size_of(a, "rows_ptr") if a["HAS_ROWS"] else 0


def _draw(a: Arguments, grid: int) -> Cost:
    entries = a["samples"] * a["rows"]
    total = _noise(a, entries) + entries * a["columns"] * size_of(a, "z_ptr")
    return Cost(total, total, total, entries * a["columns"], False, 0, (a["samples"],))


def _linear_fwd(a: Arguments, grid: int) -> Cost:
    rows, inputs, outputs = a["rows"], a["inputs"], a["outputs"]
    x, weights = rows * inputs * size_of(a, "x_ptr"), outputs * (inputs + 1) * size_of(a, "weight_ptr")
    written, part = rows * outputs * size_of(a, "out_ptr"), a["part_rows"] * outputs * FLOAT if a["PART"] else 0
    out_blocks = cdiv(outputs, a["BLOCK_O"])
    l2 = out_blocks * x + grid // out_blocks * weights + written + (rows * outputs * FLOAT if a["PART"] else 0)
    active = rows * outputs if a["ACTIVATION"] != NONE.value else 0
    total = x + weights + part + written
    return Cost(total, total, l2, 2 * rows * inputs * outputs, True, active, (cdiv(inputs, a["BLOCK_I"]),))


def _linear_bwd(a: Arguments, grid: int) -> Cost:
    entries, inputs, outputs = a["samples"] * a["rows"], a["inputs"], a["outputs"]
    d_out, weights = entries * outputs * size_of(a, "d_out_ptr"), inputs * outputs * size_of(a, "turned_ptr")
    written = entries * inputs * size_of(a, "d_x_ptr")
    fixed = written * (2 if a["ACTIVATION"] != NONE.value else 1)
    row_sum = _sums(a, a["rows"] * inputs) if a["ROW_SUM"] else (0, 0)
    in_blocks = cdiv(inputs, a["BLOCK_I"])
    l2 = in_blocks * d_out + grid // in_blocks * a["samples"] * weights + fixed + row_sum[0]
    dram = d_out + weights + fixed
    flops, trips = 2 * entries * inputs * outputs, (a["samples"], a["samples"] * cdiv(outputs, a["BLOCK_O"]))
    return Cost(dram + row_sum[0], dram + row_sum[1], l2, flops, True, 0, trips)


def _linear_bwd_weight(a: Arguments, grid: int) -> Cost:
    entries, inputs, outputs = a["entries"], a["inputs"], a["outputs"]
    d_out, x = entries * outputs * size_of(a, "d_out_ptr"), entries * inputs * size_of(a, "x_ptr")
    in_blocks, out_blocks = max(1, cdiv(inputs, a["BLOCK_I"])), cdiv(outputs, a["BLOCK_O"])
    places = outputs * (inputs + (1 if a["HAS_BIAS"] else 0))
    sums = _sums(a, grid // (in_blocks * out_blocks) * places)[0]
    flops, least = 2 * entries * inputs * outputs, d_out + x + places * FLOAT
    l2 = in_blocks * d_out + out_blocks * x + sums
    return Cost(d_out + x + sums, least, l2, flops, True, 0, (cdiv(a["chunk"], a["BLOCK_M"]),))


def _latent_bwd(a: Arguments, grid: int) -> Cost:
    rows, columns, outputs = a["rows"], a["columns"], a["outputs"]
    entries = a["samples"] * rows
    d_out, weights = entries * outputs * size_of(a, "d_out_ptr"), outputs * columns * size_of(a, "turned_ptr")
    fixed = _noise_source(a, entries)
    if a["HAS_D_NOISE"]:
        fixed += entries * columns * FLOAT + rows * columns * size_of(a, "std_ptr")
    sums = _sums(a, 2 * rows * columns)
    counter_blocks = cdiv(columns, a["BLOCK_Z"])
    l2 = counter_blocks * d_out + grid // counter_blocks * a["samples"] * weights + fixed + sums[0]
    dram = d_out + weights + fixed
    flops, trips = 2 * entries * columns * outputs, (a["samples"], a["samples"] * cdiv(outputs, a["BLOCK_O"]))
    return Cost(dram + sums[0], dram + sums[1], l2, flops, True, 0, trips)


def _sum_parts(a: Arguments, grid: int) -> Cost:
    elements = a["outputs"] * a["width"]
    total = (a["parts"] + 1) * elements * FLOAT
    return Cost(total, total, total, a["parts"] * elements, False, 0, ())


COSTS = {
    "mixture_log_prob_fwd_kernel": _mixture_fwd,
    "mixture_log_prob_bwd_kernel": _mixture_bwd,
    "latent_draw_kernel": _draw,
    "sampled_linear_fwd_kernel": _linear_fwd,
    "sampled_linear_bwd_kernel": _linear_bwd,
    "sampled_linear_bwd_weight_kernel": _linear_bwd_weight,
    "latent_linear_bwd_kernel": _latent_bwd,
    "sum_parts_kernel": _sum_parts,
}
