"""Launches, bytes and the least time on an H100: a rollout's ops, and the fair rival of Triton's training passes.

python tools/cuda_costs.py; nothing here is measured. Rules as in docs/kernels.md: an eager op reads its inputs and
writes its outputs once; a launch takes the longest of its bytes at 3.35 TB/s, its products' operations at 67 TFLOP/s
(TF32: 495) and, where nvcc is there to count them, the instructions of CUDA's kernels for moments.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from p3kernels.bench import rival
from p3kernels.bench.entry import Size
from p3kernels.bench.registry import load_entry
from p3kernels.bench.traffic import count
from p3kernels.cuda import issue_slots
from triton_kernels import mixture_log_prob, mlp_mixture_log_prob
from triton_kernels.proof import sass
from triton_kernels.proof.actor import ACTOR, STOCHASTIC, TRAINING_ROWS
from triton_kernels.proof.cases import launches_of
from triton_kernels.proof.costs import cost
from triton_kernels.proof.model import ISSUED_PER_SECOND, least_seconds
from triton_kernels.proof.record import recording

ROWS, SAMPLES, CONTEXT, ACTIONS = 4096, 15, ACTOR[0] - STOCHASTIC, ACTOR[-1]
PARAMETERS = sum(i * o + o for i, o in itertools.pairwise(ACTOR))
HIDDEN_PRODUCTS = sum(i * o for i, o in itertools.pairwise(ACTOR[1:]))

Launches = list[tuple[int, int]]
"""Bytes and operations of each."""


def eager(op: str, samples: int | None) -> Launches:
    """The forward of an op's eager contestant in `p3 bench`, on tensors without memory."""
    entry, size = load_entry(op), Size(ROWS, samples)
    inputs = {name: tensor.to("meta") for name, tensor in entry.inputs(size).items()}
    if entry.draw is not None:
        inputs |= {name: tensor.to("meta") for name, tensor in entry.draw(size).items()}
    with torch.no_grad():
        return count(lambda: entry.eager(inputs, size)).each


def triton_mixture() -> Launches:
    """`mixture_log_prob`, forward."""
    with recording() as launches, torch.device("meta"):
        mixture_log_prob.forward(torch.empty(ROWS, ACTIONS), torch.empty(SAMPLES, ROWS, ACTIONS), torch.empty(ACTIONS))
    return _costs(launches)


def triton_likelihood() -> Launches:
    """`mlp_mixture_log_prob`, forward."""
    with recording() as launches, torch.device("meta"):
        problem = mlp_mixture_log_prob.Problem(
            action=torch.empty(ROWS, ACTIONS),
            context=torch.empty(ROWS, CONTEXT),
            latent_mean=torch.empty(ROWS, STOCHASTIC),
            latent_std=torch.empty(ROWS, STOCHASTIC),
            weights=[torch.empty(o, i) for i, o in itertools.pairwise(ACTOR)],
            biases=[torch.empty(o) for o in ACTOR[1:]],
            std=torch.empty(ACTIONS),
            noise=None,
            noise_of_tile=None,
            seed=torch.empty(1, dtype=torch.int64),
            rows=None,
            num_samples=SAMPLES,
            antithetic=False,
            activation=0,
            parameter=1.0,
            precision="ieee",
        )
        mlp_mixture_log_prob.forward(problem)
    return _costs(launches)


def _costs(launches: Iterable) -> Launches:
    found = [cost(launch) for launch in launches]
    return [(cost.bytes_moved, cost.flops) for cost in found]


def triton_moments() -> Launches:
    """`mlp_moments`, forward without a gradient."""
    return _costs(launches_of("rollout", "ieee"))


def instructions() -> dict[str, int]:
    """Instructions of a warp in CUDA's kernels for moments, all branches; nothing where they cannot be counted."""
    if issue_slots.unavailable() is not None:
        return {}
    code = issue_slots.machine_code()
    names = {"moments_forward": "ActivationMomentsForward", "moments_backward": "ActivationMomentsBackward"}
    return {name: sum(sass.parse(code[f"Elementwise<{kernel}>"]).counted) for name, kernel in names.items()}


BYTES_AN_ELEMENT = {"moments_forward": 16, "moments_backward": 32}


def rival_table() -> str:
    """cuBLAS products with elementwise kernels, forward and backward at a training minibatch."""
    issued = instructions()
    lines = ["| pass | products | launches | MB | GFLOP | DRAM | products | instructions | least |", "|" + "---|" * 9]
    passes = {
        "moments": rival.moments(TRAINING_ROWS),
        "Monte Carlo, 15 samples": rival.mixture(TRAINING_ROWS, SAMPLES),
        "Monte Carlo, 50 samples": rival.mixture(TRAINING_ROWS, 50),
    }
    for name, traffic in passes.items():
        for precision in ("ieee", "tf32"):
            limits = []
            for op, (moved, flops) in zip(traffic.names, traffic.each, strict=True):
                elements = moved / BYTES_AN_ELEMENT.get(op, 1)
                slots = issued.get(op, 0) * elements / 32 / ISSUED_PER_SECOND
                limits.append((*least_seconds(moved, flops, precision), slots))
            sums = [f"{1e6 * sum(column):,.0f}" for column in zip(*limits, strict=True)]
            least = 1e6 * sum(map(max, limits))
            sizes = f"{traffic.bytes_moved / 1e6:,.0f} | {traffic.flops / 1e9:,.0f}"
            lines.append(
                f"| {name} | `{precision}` | {traffic.launches} | {sizes} | {' | '.join(sums)} | {least:,.0f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Prints the tables."""
    moments_flops = 2 * ROWS * ((ACTOR[0] + STOCHASTIC) * ACTOR[1] + 2 * HIDDEN_PRODUCTS)
    moments = 4 * (ROWS * (ACTOR[0] + STOCHASTIC + 2 * ACTIONS) + PARAMETERS)
    sampled_flops = 2 * ROWS * (CONTEXT * ACTOR[1] + SAMPLES * (STOCHASTIC * ACTOR[1] + HIDDEN_PRODUCTS))
    sampled = 4 * (ROWS * (CONTEXT + 2 * STOCHASTIC + ACTIONS + 1) + PARAMETERS)
    mixture = 4 * (ROWS * (ACTIONS * (SAMPLES + 1) + 1) + ACTIONS)
    elements = load_entry("elu_moments").inputs(Size(ROWS))["mean"].numel()
    table: dict[str, dict[str, Launches]] = {
        f"elu_moments, {elements:,} elements": {
            "eager": eager("elu_moments", None),
            "Triton, CUDA": [(16 * elements, 0)],
        },
        f"mlp_moments, B = {ROWS}": {
            "eager": eager("mlp_moments", None),
            "cuBLAS and elementwise": rival.moments(ROWS, gradients=False).each,
            "Triton": triton_moments(),
            "CUDA": [(moments, moments_flops)],
        },
        f"mixture_log_prob, N = {SAMPLES}": {
            "eager": eager("mixture_log_prob", SAMPLES),
            "Triton": triton_mixture(),
            "CUDA": [(mixture, 0)],
        },
        f"mlp_mixture_log_prob, N = {SAMPLES}": {
            "eager": eager("mlp_mixture_log_prob", SAMPLES),
            "cuBLAS and elementwise": rival.mixture(ROWS, SAMPLES, gradients=False).each,
            "Triton": triton_likelihood(),
            "CUDA": [(sampled, sampled_flops)],
        },
    }
    print("| op | | launches | MB | GFLOP | least µs |\n|---|---|---|---|---|---|")
    for op, ways in table.items():
        for name, launches in ways.items():
            least = sum(max(least_seconds(moved, flops, "ieee")) for moved, flops in launches)
            moved, flops = (sum(column) for column in zip(*launches, strict=True))
            print(f"| {op} | {name} | {len(launches)} | {moved / 1e6:.1f} | {flops / 1e9:.2f} | {1e6 * least:.0f} |")
    print(f"\n{rival_table()}")


if __name__ == "__main__":
    main()
