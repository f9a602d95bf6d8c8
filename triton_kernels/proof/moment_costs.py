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


def _pack(a: Arguments, grid: int) -> Cost:
    reads = sum(tensor.numel() * tensor.element_size() for tensor in a["from_ptrs"])
    written = sum(tensor.numel() * tensor.element_size() for tensor in a["to_ptrs"])
    elements = sum(tensor.numel() for tensor in a["to_ptrs"])
    total = reads + written
    return Cost(total, total, total, elements, False, 0, (), 1 / a["MATRICES"])


def _forward(a: Arguments, grid: int) -> Cost:
    rows, inputs, outputs = a["rows"], a["inputs"], a["outputs"]
    stochastic, active = inputs - a["deterministic"], a["ACTIVATION"] != NONE.value
    moments_in = rows * (inputs * size_of(a, "mean_ptr") + stochastic * size_of(a, "var_ptr"))
    parameters = outputs * inputs * size_of(a, "weight_ptr") + outputs * FLOAT
    written = 2 * rows * outputs * size_of(a, "out_mean_ptr")
    state = 2 * rows * outputs * FLOAT if active else 0
    row_blocks, out_blocks = cdiv(rows, a["BLOCK_ROWS"]), cdiv(outputs, a["BLOCK_OUT"])
    # The state is written and read back; derivatives take its place.
    l2 = out_blocks * moments_in + row_blocks * parameters + written + state * (3 if a["JACOBIAN"] else 2)
    trips = [cdiv(a["deterministic"], a["BLOCK_IN"])] if a["SPLIT"] else []
    trips += [cdiv(stochastic, a["BLOCK_IN"])]
    trips += [a["BLOCK_ROWS"] // a["CHUNK_ROWS"]] if active else []
    return Cost(
        moments_in + parameters + written + state,
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
    weights = outputs * (inputs - first) * size_of(a, "turned_ptr")
    means = rows * (inputs - first) * size_of(a, "d_mean_ptr") if a["WRITE_MEAN"] else 0
    written = means + (rows * stochastic * size_of(a, "d_var_ptr") if a["WRITE_VAR"] else 0)
    state = 2 * rows * inputs * FLOAT if active else 0
    chunked = active and not a["JACOBIAN"]
    # From pre-activation moments: the tile is written, read back and written again.
    l2 = (alone + 2 * both) * d_out + row_blocks * weights + written * (3 if chunked else 1) + state
    trips = [steps * alone / (alone + both)] if a["SPLIT"] else []
    trips += [steps * both / (alone + both)]
    trips += [a["BLOCK_ROWS"] // a["CHUNK_ROWS"]] if chunked else []
    flops = 2 * rows * outputs * (inputs - first + stochastic)
    total = 2 * d_out + weights + written + state
    return Cost(total, total, l2, flops, True, rows * inputs if chunked else 0, tuple(trips))


def _weight_gradients(a: Arguments, grid: int) -> Cost:
    rows, splits, steps = a["rows"], grid // a["tiles"], a["rows_a_split"] // a["BLOCK_ROWS"]
    reads = l2 = flops = 0
    trips = []
    for layer, outputs in enumerate(a["outputs"]):
        out_blocks = cdiv(outputs, a["BLOCK_OUT"])
        for kind in ("mean", "var"):
            width, size = a[f"{kind}_widths"][layer], a[f"{kind}_ptrs"][layer].element_size()
            in_blocks = cdiv(width, a["BLOCK_IN"])
            reads += rows * (outputs + width) * size
            l2 += rows * (in_blocks * outputs + out_blocks * width) * size
            flops += 2 * rows * outputs * width
            trips.append(steps * in_blocks * out_blocks / a["tiles"])
    parts = splits * a["places"] * FLOAT
    return Cost(reads + parts, reads, l2 + parts, flops, True, 0, tuple(trips), 0.5 / a["LAYERS"])


def _sum_partials(a: Arguments, grid: int) -> Cost:
    written = sum(tensor.numel() * tensor.element_size() for tensor in (*a["d_weight_ptrs"], *a["d_bias_ptrs"]))
    moved = FLOAT * a["places"] * a["splits"] + 2 * written
    # The compiler unrolls the loops over the parts: each counts once.
    return Cost(moved, 2 * written, moved, a["splits"] * a["places"], False, 0, (), 0.5 / a["LAYERS"])


def _rollout(a: Arguments, grid: int) -> Cost:
    rows, widths = a["rows"], a["widths"]
    stochastic = widths[0] - a["deterministic"]
    block_out, block_in, chunks = a["BLOCK_OUT"], a["BLOCK_IN"], a["BLOCK_ROWS"] // a["CHUNK_ROWS"]
    parameters = sum(o * (i + 1) for i, o in itertools.pairwise(widths))
    ends = rows * (widths[0] + stochastic + 2 * widths[-1])
    l2 = grid * parameters
    flops = activations = 0
    trips: list[float] = []
    if a["COPIED"]:
        l2 += 2 * rows * (widths[0] + stochastic)
        trips += [cdiv(widths[0], block_out), cdiv(stochastic, block_out)]
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
    "pack_kernel": _pack,
    "activation_moments_fwd_kernel": _activation(("mean", "var", "out_mean", "out_var")),
    "activation_moments_bwd_kernel": _activation(("d_out_mean", "d_out_var", "mean", "var", "d_mean", "d_var")),
    "linear_elu_moments_fwd_kernel": _forward,
    "linear_elu_moments_bwd_input_kernel": _input_gradient,
    "linear_weight_gradients_kernel": _weight_gradients,
    "sum_partials_kernel": _sum_partials,
    "mlp_moments_fwd_kernel": _rollout,
}
