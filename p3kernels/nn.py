"""Networks: an existing `nn.Sequential` read as an MLP, and moments through it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from p3kernels.activations import activation_of_module
from p3kernels.ops.mlp_moments import mlp_moments


@dataclass(frozen=True)
class MlpLayers:
    """The parameters of an MLP, as the ops take them; the tensors are the network's own."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    activation: str
    activation_parameter: float | None


def mlp_layers(network: nn.Sequential) -> MlpLayers:
    """Reads Linear, activation, Linear, …, Linear.

    Args:
        network: Linear layers with one kind of ELU, ReLU or LeakyReLU between them; `nn.Identity` is passed over.

    Raises:
        TypeError: Not an `nn.Sequential`, or a module in it that is not of these.
        ValueError: Layers in another order, or activations that differ.
    """
    if not isinstance(network, nn.Sequential):
        raise TypeError(f"actor: expected an nn.Sequential, got {type(network).__name__}")
    weights: list[Tensor] = []
    biases: list[Tensor | None] = []
    found: tuple[str, float | None] | None = None
    linear_next = True
    for name, module in network.named_children():
        if isinstance(module, nn.Identity):
            continue
        activation = activation_of_module(module)
        if not isinstance(module, nn.Linear) and activation is None:
            raise TypeError(f"actor[{name}]: expected Linear, ELU, ReLU or LeakyReLU, got {type(module).__name__}")
        if isinstance(module, nn.Linear) != linear_next:
            wanted = "a Linear" if linear_next else "an activation"
            raise ValueError(f"actor[{name}]: expected {wanted} here, got {type(module).__name__}")
        if isinstance(module, nn.Linear):
            weights.append(module.weight)
            biases.append(module.bias)
        elif found is None:
            found = activation
        elif found != activation:
            raise ValueError(f"actor[{name}]: expected the activation of the layers before, {found}, got {activation}")
        linear_next = not linear_next
    if not weights or linear_next:
        raise ValueError("actor: expected the last layer to be a Linear")
    name, parameter = found if found is not None else ("elu", None)
    return MlpLayers(weights, biases, name, parameter)


class MomentMLP(nn.Module):
    """Propagates mean and variance through an existing network; the parameters are the network's own.

    Args:
        network: Linear layers with ELU, ReLU or LeakyReLU between them.
        backend: As for the ops.
    """

    def __init__(self, network: nn.Sequential, *, backend: str | None = None) -> None:
        super().__init__()
        mlp_layers(network)  # a wrong network is an error here, not at the first call
        self.network = network
        self.backend = backend

    def forward(self, mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
        """Moments [B, O] of the output for inputs with mean [B, I] and variance [B, J] of the last J inputs."""
        layers = mlp_layers(self.network)
        return mlp_moments(
            mean,
            var,
            layers.weights,
            layers.biases,
            layers.activation,
            layers.activation_parameter,
            backend=self.backend,
        )
