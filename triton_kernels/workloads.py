"""The passes that configurations are tuned on: the G1 actor, moments and Monte Carlo, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from triton_kernels import mlp_mixture_log_prob, mlp_moments
from triton_kernels.moments_math import ELU
from triton_kernels.roofline import ACTOR, STOCHASTIC

NUM_SAMPLES = 15
PRECISIONS = ("ieee", "tf32")

Layers = tuple[list[Tensor], list[Tensor]]


def workloads(
    batch: int,
    device: torch.device,
    sizes: Sequence[int] = ACTOR,
    stochastic: int = STOCHASTIC,
    precisions: Sequence[str] = PRECISIONS,
) -> dict[str, Callable[[], Sequence[Tensor]]]:
    """Name → a pass on tensors made once, which returns everything that it computes."""
    source = torch.Generator().manual_seed(0)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return (scale * torch.randn(*shape, generator=source)).to(device)

    layers = [(normal(o, i, scale=i**-0.5), normal(o, scale=0.1)) for i, o in itertools.pairwise(sizes)]
    parameters = [weight for weight, _ in layers], [bias for _, bias in layers]
    mean, var = normal(batch, sizes[0]), normal(batch, stochastic).square()
    d_out = normal(batch, sizes[-1]), normal(batch, sizes[-1])
    action, d_log_prob = normal(batch, sizes[-1]), normal(batch)
    found: dict[str, Callable[[], Sequence[Tensor]]] = {}
    for precision in precisions:
        found[f"moments, {precision}"] = _moments(mean, var, parameters, d_out, precision)
        found[f"rollout, {precision}"] = _rollout(mean, var, parameters, precision)
        found[f"mixture, {precision}"] = _mixture(mean, var, parameters, action, d_log_prob, precision)
    return found


def _moments(
    mean: Tensor, var: Tensor, parameters: Layers, d_out: tuple[Tensor, Tensor], precision: str
) -> Callable[[], Sequence[Tensor]]:
    def run() -> Sequence[Tensor]:
        *out, saved = mlp_moments.forward(mean, var, *parameters, ELU.value, 1.0, False, True, precision)
        d_mean, d_var, d_weights, d_biases = mlp_moments.backward(
            *d_out, mean, var, *parameters, saved, ELU.value, 1.0, False, (True, True), True, precision
        )
        return [*out, d_mean, d_var, *d_weights, *d_biases]

    return run


def _rollout(mean: Tensor, var: Tensor, parameters: Layers, precision: str) -> Callable[[], Sequence[Tensor]]:
    rows = min(4096, mean.shape[0])

    def run() -> Sequence[Tensor]:
        return mlp_moments.forward(mean[:rows], var[:rows], *parameters, ELU.value, 1.0, False, False, precision)[:2]

    return run


def _mixture(
    mean: Tensor, var: Tensor, parameters: Layers, action: Tensor, d_log_prob: Tensor, precision: str
) -> Callable[[], Sequence[Tensor]]:
    context, latent_mean = mean[:, : -var.shape[1]], mean[:, -var.shape[1] :].contiguous()
    problem = mlp_mixture_log_prob.Problem(
        action=action,
        context=context,
        latent_mean=latent_mean,
        latent_std=var.sqrt(),
        weights=parameters[0],
        biases=parameters[1],
        std=torch.full_like(action[0], 0.5),
        noise=None,
        noise_of_tile=None,
        seed=torch.zeros(1, dtype=torch.int64, device=action.device),
        rows=None,
        num_samples=NUM_SAMPLES,
        antithetic=False,
        activation=0,
        parameter=1.0,
        precision=precision,
    )

    def run() -> Sequence[Tensor]:
        log_prob = mlp_mixture_log_prob.forward(problem)
        d = mlp_mixture_log_prob.backward(problem, log_prob, d_log_prob, False)
        return [log_prob, d.action, d.context, d.latent_mean, d.latent_std, *d.weights, *d.biases, d.std]

    return run
