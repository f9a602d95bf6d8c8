"""The fair rival of Triton's fused passes: cuBLAS products with one elementwise kernel between two of them, counted.

That is `backend="cuda"` where there are gradients: the code of `p3kernels/layered`, run on tensors without memory.
Every product and every kernel reads its inputs and writes its outputs once. L2 and the kernels' instructions are not
counted, so this is on the rival's side.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from p3kernels.bench import actor
from p3kernels.bench.traffic import Traffic, TrafficCounter
from p3kernels.layered import mlp_mixture_log_prob, mlp_moments
from p3kernels.layered.latent_noise import NoiseSource
from p3kernels.records import Backward, MlpMixtureInputs, MlpMixtureOutputs, MlpMomentsInputs, MlpMomentsOutputs

TILE_ROWS = 65536
"""As `p3kernels.ops.mlp_mixture_log_prob.CUDA_TILE_ROWS`."""


class _Kernels:
    """In the place of `p3kernels.cuda.native`: counts each of its functions as one launch."""

    def __init__(self, counter: TrafficCounter) -> None:
        self._counter = counter

    def __getattr__(self, name: str) -> Callable[..., None]:
        def launch(*arguments: Any, **named: Any) -> None:
            given = [value for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
            self._counter.add(name, given)

        return launch


def _noise_source(kernels: _Kernels) -> type[NoiseSource]:
    class Source(NoiseSource):
        def _draw(self, first_sample: int, first_row: int, out: Tensor) -> None:
            kernels.normal(out)

    return Source


def _network() -> tuple[list[Tensor], list[Tensor]]:
    sizes = list(itertools.pairwise(actor.SIZES))
    return [torch.empty(o, i, device="meta") for i, o in sizes], [torch.empty(o, device="meta") for _, o in sizes]


def moments(rows: int, *, gradients: bool = True) -> Traffic:
    """`mlp_moments` of the G1 actor, forward and, with `gradients`, backward."""
    weights, biases = _network()
    mean, var = (torch.empty(rows, columns, device="meta") for columns in (actor.SIZES[0], actor.LATENT))
    inputs = MlpMomentsInputs(mean, var, weights, biases, 0, 1.0, False, gradients, "ieee")
    with TrafficCounter() as counter:
        kernels = _Kernels(counter)
        outputs = mlp_moments.forward(inputs, kernels, rows)
        if not gradients:
            return counter.traffic
        d_outputs = MlpMomentsOutputs(torch.empty_like(outputs.mean), torch.empty_like(outputs.var), outputs.kept)
        wanted = frozenset({"mean", "var", "weights", "biases"})
        mlp_moments.backward(Backward(inputs, outputs, d_outputs, wanted), kernels, rows)
    return counter.traffic


def mixture(rows: int, samples: int, *, gradients: bool = True) -> Traffic:
    """`mlp_mixture_log_prob` of the G1 actor, forward and, with `gradients`, backward."""
    weights, biases = _network()
    context, latent = actor.SIZES[0] - actor.LATENT, actor.LATENT
    action, given, mean, std = (
        torch.empty(rows, columns, device="meta") for columns in (actor.ACTIONS, context, latent, latent)
    )
    seed, action_std = torch.empty(1, dtype=torch.int64, device="meta"), torch.empty(actor.ACTIONS, device="meta")
    inputs = MlpMixtureInputs(
        action, given, mean, std, weights, biases, action_std, None, seed, None, samples, "iid", 0, 1.0, False, "ieee"
    )
    with TrafficCounter() as counter:
        kernels = _Kernels(counter)
        problem = mlp_mixture_log_prob.Problem(inputs, kernels, _noise_source(kernels), TILE_ROWS)
        outputs = mlp_mixture_log_prob.forward(problem)
        if not gradients:
            return counter.traffic
        d_outputs = MlpMixtureOutputs(torch.empty_like(outputs.log_prob), outputs.kept)
        wanted = frozenset(MlpMixtureInputs._fields) - {"noise", "seed", "rows"}
        mlp_mixture_log_prob.backward(problem, Backward(inputs, outputs, d_outputs, wanted))
    return counter.traffic
