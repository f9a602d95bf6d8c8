"""Costs of the kernels of moments; rules in `costs.py`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from triton_kernels.kernels.moments_math import ELU, NONE
from triton_kernels.proof.costs import FLOAT, Arguments, Cost, cdiv, size_of

OPERATIONS = {ELU.value: 330, 1: 140}
"""Floating-point operations of an activation's moments, about, by its number."""


def _activation(tensors: tuple[str, ...]) -> Callable[[Arguments, int], Cost]:
    def count(a: Arguments, grid: int) -> Cost:
        moved = a["size"] * sum(size_of(a, f"{name}_ptr") for name in tensors)
        return Cost(moved, moved, moved, OPERATIONS[a["ACTIVATION"]] * a["size"], False, a["size"], ())

    return count


def _forward(a: Arguments, grid: int) -> Cost:
    rows, inputs, outputs = a["rows"], a["inputs"], a["outputs"]
    stochastic, active = inputs - a["deterministic"], a["ACTIVATION"] != NONE.value
    weights = outputs * inputs
    moments_in = rows * (inputs * size_of(a, "mean_ptr") + stochastic * size_of(a, "var_ptr"))
    parameters = weights * size_of(a, "weight_ptr") + outputs * FLOAT
    written = 2 * rows * outputs * FLOAT
    row_blocks, out_blocks = cdiv(rows, a["BLOCK_ROWS"]), cdiv(outputs, a["BLOCK_OUT"])
    l2 = out_blocks * moments_in + row_blocks * parameters + written * (3 if active else 1)
    trips = [cdiv(a["deterministic"], a["BLOCK_IN"])] if a["SPLIT"] else []
    trips += [cdiv(stochastic, a["BLOCK_IN"])]
    trips += [a["BLOCK_ROWS"] // a["CHUNK_ROWS"]] if active else []
    return Cost(
        moments_in + parameters + written * (2 if active else 1),
        moments_in + parameters + written,
        l2,
        2 * rows * outputs * (inputs + stochastic),
        True,
        rows * outputs if active else 0,
        tuple(trips),
    )


def _input_gradient(a: Arguments, grid: int) -> Cost:
    rows, inputs, outputs = a["rows"], a["inputs"], a["outputs"]
    deterministic, first = a["deterministic"], a["first_column"]
    stochastic, active = inputs - deterministic, a["ACTIVATION"] != NONE.value
    block = a["BLOCK_IN"]
    alone, both = cdiv(deterministic - first, block), cdiv(stochastic, block)
    row_blocks, steps = cdiv(rows, a["BLOCK_ROWS"]), cdiv(outputs, a["BLOCK_OUT"])
    d_out = rows * outputs * size_of(a, "d_out_mean_ptr")
    weights = outputs * (inputs - first) * size_of(a, "weight_ptr")
    means = rows * (inputs - first) * size_of(a, "d_mean_ptr") if a["WRITE_MEAN"] else 0
    written = means + (rows * stochastic * size_of(a, "d_var_ptr") if a["WRITE_VAR"] else 0)
    moments = rows * (inputs + stochastic) * FLOAT
    least = 2 * d_out + weights + written + (moments if active else 0)
    again = moments if a["WRITE_INPUTS"] else 0
    # Through an activation: pre-activation moments and the tile itself are read, and the tile is written twice.
    l2 = alone * d_out + both * 2 * d_out + row_blocks * weights + written + again + (3 * moments if active else 0)
    trips = [steps * alone / (alone + both)] if a["SPLIT"] else []
    trips += [steps * both / (alone + both)]
    trips += [a["BLOCK_ROWS"] // a["CHUNK_ROWS"]] if active else []
    flops = 2 * rows * outputs * (inputs - first + stochastic)
    return Cost(least + again, least, l2, flops, True, rows * inputs if active else 0, tuple(trips))


def _weight_gradients(a: Arguments, grid: int) -> Cost:
    rows, widths, deterministic = a["rows"], a["widths"], a["deterministic"]
    splits, block_in, block_out = grid // a["tiles"], a["BLOCK_IN"], a["BLOCK_OUT"]
    steps = a["rows_a_split"] // a["BLOCK_ROWS"]
    reads = l2 = flops = 0
    trips = []
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        first = deterministic if layer == 0 else 0
        stochastic = inputs - first
        out_blocks, alone, both = cdiv(outputs, block_out), cdiv(first, block_in), cdiv(stochastic, block_in)
        reads += rows * (inputs + stochastic + 2 * outputs) + outputs * inputs
        l2 += rows * (out_blocks * (inputs + stochastic) + (alone + 2 * both) * outputs)
        l2 += splits * 2 * outputs * inputs  # the weights read, the sums written
        flops += 2 * rows * outputs * (inputs + stochastic)
        trips += [steps * alone * out_blocks / a["tiles"]] if layer == 0 and a["SPLIT"] else []
        trips += [steps * both * out_blocks / a["tiles"]]
    parts = splits * a["parameters"] * FLOAT
    return Cost(FLOAT * reads + parts, FLOAT * reads, FLOAT * l2, flops, True, 0, tuple(trips))


def _sum_partials(a: Arguments, grid: int) -> Cost:
    elements = sum(a["sizes"])
    moved = FLOAT * elements * (a["splits"] + 1)
    return Cost(moved, FLOAT * elements, moved, a["splits"] * elements, False, 0, ())


def _rollout(a: Arguments, grid: int) -> Cost:
    rows, widths = a["rows"], a["widths"]
    stochastic = widths[0] - a["deterministic"]
    block_out, block_in, chunks = a["BLOCK_OUT"], a["BLOCK_IN"], a["BLOCK_ROWS"] // a["CHUNK_ROWS"]
    parameters = sum(o * (i + 1) for i, o in itertools.pairwise(widths))
    ends = rows * (widths[0] + stochastic + 2 * widths[-1])
    l2 = grid * parameters
    flops = activations = 0
    trips: list[float] = []
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        both, last = stochastic if layer == 0 else inputs, layer == len(widths) - 2
        blocks = cdiv(outputs, block_out)
        flops += 2 * rows * outputs * (inputs + both)
        activations += 0 if last else rows * outputs
        l2 += rows * (blocks * (inputs + both) + 2 * outputs * (1 if last else 3))
        trips += [blocks, blocks * cdiv(inputs - both, block_in)] if inputs > both else [blocks]
        trips += [blocks * cdiv(both, block_in)] + ([] if last else [blocks * chunks])
    # The scratch may yet be written back to DRAM once, when other work takes the cache.
    scratch = 4 * rows * a["widest"]
    moved = FLOAT * (ends + parameters)
    return Cost(moved + FLOAT * scratch, moved, FLOAT * l2, flops, True, activations, tuple(trips))


COSTS = {
    "activation_moments_fwd_kernel": _activation(("mean", "var", "out_mean", "out_var")),
    "activation_moments_bwd_kernel": _activation(("d_out_mean", "d_out_var", "mean", "var", "d_mean", "d_var")),
    "linear_elu_moments_fwd_kernel": _forward,
    "linear_elu_moments_bwd_input_kernel": _input_gradient,
    "linear_weight_gradients_kernel": _weight_gradients,
    "sum_partials_kernel": _sum_partials,
    "mlp_moments_fwd_kernel": _rollout,
}
