"""The passes that are proved, counted and tuned on: the G1 actor, moments and Monte Carlo, forward and backward."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triton_kernels import (
    activation_codes,
    activation_moments,
    gaussian_head,
    mixture_log_prob,
    mlp_mixture_log_prob,
    mlp_moments,
    update_terms,
)
from triton_kernels.kernels.moments_math import ELU
from triton_kernels.proof.actor import ACTOR, NUM_SAMPLES, PROPRIO, PROPRIO_LATENT, ROLLOUT_ROWS, SCAN, STOCHASTIC

Pass = Callable[[], Sequence[Tensor]]


@dataclass(frozen=True)
class Inputs:
    """Everything that a pass of the actor may read."""

    mean: Tensor
    var: Tensor
    weights: list[Tensor]
    biases: list[Tensor]
    d_out: tuple[Tensor, Tensor]
    action: Tensor
    d_log_prob: Tensor

    @classmethod
    def random(
        cls, rows: int, device: torch.device, sizes: Sequence[int] = ACTOR, stochastic: int = STOCHASTIC
    ) -> Inputs:
        """Standard normals, weights of variance 1 / I; on the meta device, tensors without memory."""
        source = torch.Generator().manual_seed(0)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            if device.type == "meta":
                return torch.empty(*shape, device=device)
            return (scale * torch.randn(*shape, generator=source)).to(device)

        layers = [(normal(o, i, scale=i**-0.5), normal(o, scale=0.1)) for i, o in itertools.pairwise(sizes)]
        return cls(
            normal(rows, sizes[0]),
            normal(rows, stochastic).square(),
            [weight for weight, _ in layers],
            [bias for _, bias in layers],
            (normal(rows, sizes[-1]), normal(rows, sizes[-1])),
            normal(rows, sizes[-1]),
            normal(rows),
        )


def training(inputs: Inputs, precision: str) -> Sequence[Tensor]:
    """Moments forward and backward."""
    i = inputs
    *out, saved = mlp_moments.forward(i.mean, i.var, i.weights, i.biases, ELU.value, 1.0, False, True, precision)
    d_mean, d_var, d_weights, d_biases = mlp_moments.backward(
        *i.d_out,
        i.mean,
        i.var,
        i.weights,
        i.biases,
        saved,
        ELU.value,
        1.0,
        False,
        (True, True),
        True,
        precision,
    )
    return [*out, d_mean, d_var, *d_weights, *d_biases]


def rollout(inputs: Inputs, precision: str) -> Sequence[Tensor]:
    """Moments forward, without a gradient to come, of at most as many rows as a rollout has."""
    rows, i = min(ROLLOUT_ROWS, inputs.mean.shape[0]), inputs
    return mlp_moments.forward(
        i.mean[:rows], i.var[:rows], i.weights, i.biases, ELU.value, 1.0, False, False, precision
    )[:2]


def mixture(inputs: Inputs, precision: str, num_samples: int = NUM_SAMPLES, numbered: bool = False) -> Sequence[Tensor]:
    """The Monte Carlo likelihood forward and backward; `numbered` rows have noise streams of their own."""
    i = inputs
    columns = i.var.shape[1]
    rows = torch.arange(i.mean.shape[0], device=i.mean.device) if numbered else None
    problem = mlp_mixture_log_prob.Problem(
        action=i.action,
        context=i.mean[:, :-columns],
        latent_mean=i.mean[:, -columns:].contiguous(),
        latent_std=i.var.sqrt(),
        weights=i.weights,
        biases=i.biases,
        std=torch.full_like(i.action[0], 0.5),
        noise=None,
        noise_of_tile=None,
        seed=torch.zeros(1, dtype=torch.int64, device=i.action.device),
        rows=rows,
        num_samples=num_samples,
        antithetic=False,
        activation=0,
        parameter=1.0,
        precision=precision,
    )
    log_prob = mlp_mixture_log_prob.forward(problem)
    d = mlp_mixture_log_prob.backward(problem, log_prob, i.d_log_prob, False)
    return [log_prob, d.action, d.context, d.latent_mean, d.latent_std, *d.weights, *d.biases, d.std]


def elementwise(inputs: Inputs) -> Sequence[Tensor]:
    """Both activations of the actor's widest layer, and the likelihood of means that are there."""
    i = inputs
    mean = i.mean.new_empty(i.mean.shape[0], i.weights[0].shape[0])
    found: list[Tensor] = []
    for kind in range(len(activation_codes.NAMES)):
        found += activation_moments.forward(mean, mean, kind, 1.0)
        found += activation_moments.backward(mean, mean, mean, mean, kind, 1.0)
    means = i.action.new_empty(NUM_SAMPLES, *i.action.shape)
    log_prob = mixture_log_prob.forward(i.action, means, i.action[0])
    return [*found, log_prob, *mixture_log_prob.backward(i.d_log_prob, log_prob, i.action, means, i.action[0])]


def minibatch(inputs: Inputs) -> Sequence[Tensor]:
    """What an update of moment matching computes beside its networks, forward and backward, of a packed minibatch."""
    rows, actions = inputs.action.shape
    latent = inputs.var.shape[1]
    packed = inputs.mean.new_empty(rows, 4 * (PROPRIO + SCAN))  # targets are columns of a wider matrix
    none = inputs.mean.new_empty(0)

    def normal(*shape: int) -> Tensor:
        return inputs.mean.new_empty(shape)

    heads = normal(rows, 2 * PROPRIO_LATENT + 3), normal(rows, 2 * (latent - PROPRIO_LATENT))
    mean, std, velocity = update_terms.latent_heads(*heads, PROPRIO_LATENT)
    found = [*update_terms.latent_heads_backward(mean, std, velocity, *heads, PROPRIO_LATENT)]
    old = packed[:, :actions], packed[:, 32 : 32 + actions]
    head = (packed[:, 64 : 64 + actions], inputs.action, inputs.action, inputs.action[0], *old)
    log_prob, _, kl = gaussian_head.forward(*head)
    found += gaussian_head.backward(log_prob, none, none, *head, wants_d_action=False)
    rows_of = (log_prob, packed[:, 96], packed[:, 100], normal(rows), packed[:, 104], packed[:, 108])
    clips = update_terms.Clips(0.2, None, True)
    losses, _ = update_terms.policy_terms(rows_of, kl, None, clips)
    found += update_terms.policy_terms_backward(losses, rows_of, clips)
    predictions = normal(rows, PROPRIO), normal(rows, SCAN), velocity
    targets = [packed[:, 112 : 112 + prediction.shape[1]] for prediction in predictions]
    pairs = (predictions, targets, packed[:, 108], losses[0], 1.0)
    errors = update_terms.squared_errors(*pairs)
    found += update_terms.squared_errors_backward(errors, *pairs)
    kl = update_terms.latent_kl(mean, std, PROPRIO_LATENT, (1.0, 1.0))
    found += update_terms.latent_kl_backward(kl, mean, std, PROPRIO_LATENT, (1.0, 1.0))
    return [*found, *update_terms.gradient_bounds(normal(45), losses[0], 37, 1.0)]


def tuning_passes(
    batch: int,
    device: torch.device,
    sizes: Sequence[int] = ACTOR,
    stochastic: int = STOCHASTIC,
    precisions: Sequence[str] = ("ieee", "tf32"),
) -> dict[str, Pass]:
    """Name → a pass on tensors made once, which returns everything that it computes."""
    inputs = Inputs.random(batch, device, sizes, stochastic)
    found: dict[str, Pass] = {}
    for precision in precisions:
        found[f"moments, {precision}"] = functools.partial(training, inputs, precision)
        found[f"rollout, {precision}"] = functools.partial(rollout, inputs, precision)
        found[f"mixture, {precision}"] = functools.partial(mixture, inputs, precision)
    return found
