"""Times matrix products of our own against torch's, at the sizes of a G1's minibatch: `python tools/products.py`."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from p3kernels.cpu import native

LAYERS = ((209, 512), (512, 256), (256, 128), (128, 29), (480, 512))
"""Inputs and outputs: the actor's layers, and the first of a network that reads the history."""


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest run."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


def main() -> None:
    """Prints GFLOP/s of the three products of a layer: its output, its input's gradient, its weight's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=768, help="of a minibatch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=50, help="the best counts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"GFLOP/s, ours / torch's, {options.rows} rows, float32, threads: {options.threads}")
    for inputs, outputs in LAYERS:
        x, weight = torch.randn(options.rows, inputs), torch.randn(outputs, inputs)
        d_out, out = torch.randn(options.rows, outputs), torch.empty(options.rows, outputs)
        d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
        products = {
            "output": (x, weight.t(), out, False),
            "d_input": (d_out, weight, d_x, False),
            "d_weight": (d_out.t(), x, d_weight, True),
        }
        found = []
        for name, (a, b, c, add) in products.items():

            def ours(a: torch.Tensor = a, b: torch.Tensor = b, c: torch.Tensor = c, add: bool = add) -> object:
                return native.product(a, b, None, c, add=add)

            def torchs(a: torch.Tensor = a, b: torch.Tensor = b, c: torch.Tensor = c, add: bool = add) -> object:
                return c.addmm_(a, b) if add else torch.mm(a, b, out=c)

            seconds = [best(work, options.repeats) for work in (ours, torchs)]
            rates = [2e-9 * options.rows * inputs * outputs / one for one in seconds]
            found.append(f"{name} {rates[0]:4.0f} / {rates[1]:4.0f} = {rates[0] / rates[1]:.2f}")
        print(f"{inputs:4} -> {outputs:<4} " + "   ".join(found))


if __name__ == "__main__":
    main()
