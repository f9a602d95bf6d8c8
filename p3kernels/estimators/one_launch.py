"""The actor at one latent of each row, in one launch: a rollout step, where the CUDA backend takes it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from p3kernels import checks
from p3kernels.activations import resolve_activation
from p3kernels.backends import choose_backend, cuda_in_tritons_place
from p3kernels.cuda import one_launch
from p3kernels.nn import mlp_layers


def act_in_one_launch(
    actor: nn.Sequential, context: Tensor, latent_mean: Tensor, latent_std: Tensor | None, backend: str | None
) -> Tensor | None:
    """actor([context, z]) [B, A], without gradient; None where that is not one launch of the CUDA backend.

    Args:
        actor: Linear layers with activations between them; with other layers it is not one launch.
        context: [B, C].
        latent_mean: [B, Z].
        latent_std: [B, Z], of a latent that the kernel draws; None for z = latent_mean.
        backend: As for the ops.
    """
    chosen = cuda_in_tritons_place(choose_backend(backend, latent_mean), backend, lambda: True)
    if chosen != "cuda":
        return None
    try:
        layers = mlp_layers(actor)
    except (TypeError, ValueError):
        return None  # layers that no kernel knows
    if not one_launch.actions_fit(context, latent_mean, layers.weights):
        return None
    checks.check_tensor("context", context, 2, chosen)
    checks.check_tensor("latent_mean", latent_mean, 2, chosen)
    if latent_std is not None:
        checks.check_tensor("latent_std", latent_std, 2, chosen)
    checks.check_layers(layers.weights[0].shape[1], "latent_mean", latent_mean, layers.weights, layers.biases, chosen)
    activation = resolve_activation(layers.activation, layers.activation_parameter)
    # On the CPU: no launch of its own. Without a latent to draw, the random numbers stay where they are.
    seed = torch.zeros(1, dtype=torch.int64) if latent_std is None else torch.randint(2**62, (1,))
    return one_launch.mlp_actions(context, latent_mean, latent_std, layers.weights, layers.biases, activation, seed)
