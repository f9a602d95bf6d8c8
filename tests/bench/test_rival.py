"""The count of cuBLAS products with elementwise kernels: launches and operations by hand."""

from __future__ import annotations

import itertools

from p3kernels.bench import rival
from p3kernels.bench.actor import LATENT, SIZES
from p3kernels.ops.mlp_mixture_log_prob import CUDA_TILE_ROWS

ROWS = 24
HIDDEN = sum(SIZES[1:-1])
PRODUCTS = SIZES[0] * SIZES[1] + LATENT * SIZES[1] + 2 * sum(i * o for i, o in itertools.pairwise(SIZES[1:]))


def bytes_of(traffic, name):
    return sum(moved for (moved, _), op in zip(traffic.each, traffic.names, strict=True) if op == name)


def test_moments_by_hand():
    """Forward: a product a moment and layer, and one kernel a hidden layer; backward twice the products."""
    forward, whole = rival.moments(ROWS, gradients=False), rival.moments(ROWS)
    assert forward.by_op["mm"] + forward.by_op["addmm"] == 8
    assert forward.by_op["moments_forward"] == 3
    assert whole.by_op["moments_backward"] == 3
    assert forward.flops == 2 * ROWS * PRODUCTS
    assert whole.flops == 3 * forward.flops
    assert bytes_of(forward, "moments_forward") == 4 * (4 * ROWS + 1) * HIDDEN  # both moments in and out, and the bias
    assert bytes_of(whole, "moments_backward") == 4 * (8 * ROWS + 1) * HIDDEN
    assert whole.launches == len(whole.names)


def test_a_product_into_a_buffer_does_not_read_it():
    forward = rival.moments(ROWS, gradients=False)
    first = forward.each[forward.names.index("mm")][0]
    assert first == 4 * (ROWS * SIZES[0] + SIZES[0] * SIZES[1] + ROWS * SIZES[1])


def test_monte_carlo_goes_forward_twice():
    forward, whole = rival.mixture(ROWS, 3, gradients=False), rival.mixture(ROWS, 3)
    assert rival.TILE_ROWS == CUDA_TILE_ROWS
    assert (forward.by_op["normal"], whole.by_op["normal"]) == (1, 2)
    assert (forward.by_op["activation_forward"], whole.by_op["activation_forward"]) == (3, 6)
    assert whole.by_op["activation_backward"] == 3
    assert whole.flops > 3 * forward.flops
