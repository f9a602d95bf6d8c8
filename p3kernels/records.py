"""What `ops`, `layered` and `cuda` agree on: how a backward pass is asked for, and the networks' inputs and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from p3kernels.activations import Activation

Inputs = TypeVar("Inputs", bound=tuple)
Outputs = TypeVar("Outputs", bound=tuple)

Gradients = Mapping[str, Tensor | Sequence[Tensor]]
"""By the names of the inputs; more than what was asked for does no harm."""


@dataclass(frozen=True)
class Backward(Generic[Inputs, Outputs]):
    """What a backward function is given."""

    inputs: Inputs
    """As the forward function had them."""
    outputs: Outputs
    """What the forward function returned; None for what `Operators.saved` does not name."""
    d_outputs: Outputs
    """The incoming gradients, contiguous; where nothing came, zeros, or with `empty` operators nothing; None for what
    `Operators.kept` names."""
    wanted: frozenset[str]
    """The inputs whose gradient is asked for."""


def activation_of(inputs: Any) -> Activation:
    """The activation between the layers, of any record that has one."""
    return Activation(inputs.activation_code, inputs.activation_parameter)


def result_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of what an operator returns: bfloat16 is taken but never given."""
    return torch.promote_types(tensor.dtype, torch.float32)


def map_tensors(record: Inputs, function: Callable[[Tensor], Tensor]) -> Inputs:
    """The record with every floating-point tensor replaced, also in lists."""

    def mapped(value: Any) -> Any:
        if isinstance(value, Tensor):
            return function(value) if value.is_floating_point() else value
        return [mapped(item) for item in value] if isinstance(value, list | tuple) else value

    return type(record)(*(mapped(value) for value in record))


class MlpMomentsInputs(NamedTuple):
    """What `mlp_moments` takes, checked; `linear_elu_moments` is one layer of it with `activate_last`."""

    mean: Tensor
    """[B, I]."""
    var: Tensor
    """[B, J], J ≤ I: of the last J inputs."""
    weights: Sequence[Tensor]
    """One [O, I] a layer."""
    biases: Sequence[Tensor]
    """One [O] a layer, or of no elements where there is none: filling zeros would be a launch a layer on a GPU."""
    activation_code: int
    activation_parameter: float
    activate_last: bool
    """Whether the last layer has the activation, too."""
    save: bool
    """Whether a backward pass may follow."""
    precision: str
    """How Triton's products round."""

    @property
    def activated(self) -> list[int]:
        """Widths of the layers with an activation."""
        return [weight.shape[0] for weight in (self.weights if self.activate_last else self.weights[:-1])]


class MlpMomentsOutputs(NamedTuple):
    """What `mlp_moments` gives."""

    mean: Tensor
    """[B, O]."""
    var: Tensor
    """[B, O]."""
    kept: Tensor
    """Pre-activation moments of every activated layer in one buffer, of no elements without `save`."""


class MlpMixtureInputs(NamedTuple):
    """What `mlp_mixture_log_prob` takes, checked."""

    action: Tensor
    """[B, A]."""
    context: Tensor
    """[B, C]."""
    latent_mean: Tensor
    """[B, Z]."""
    latent_std: Tensor
    """[B, Z]."""
    weights: Sequence[Tensor]
    """One [O, I] a layer."""
    biases: Sequence[Tensor]
    """One [O] a layer."""
    std: Tensor
    """[A] or [B, A]."""
    noise: Tensor | None
    """[N, B, Z] to use instead of a draw."""
    seed: Tensor
    """One int64; a tensor, so that drawing one breaks no graph."""
    rows: Tensor | None
    """int64 [B], contiguous: the numbers of the rows' noise streams."""
    num_samples: int
    sampling: str
    activation_code: int
    activation_parameter: float
    save: bool
    """Whether a backward pass may follow."""
    precision: str
    """How Triton's products round."""


class MlpMixtureOutputs(NamedTuple):
    """What `mlp_mixture_log_prob` gives."""

    log_prob: Tensor
    """[B]."""
    kept: Tensor
    """Hidden activations that a backend keeps with `save`, within its budget."""


class MlpCovarianceInputs(NamedTuple):
    """What `mlp_covariance` takes for either of its transforms, checked."""

    mean: Tensor
    """[B, I]."""
    var: Tensor
    """[B, J]."""
    weights: Sequence[Tensor]
    """One [O, I] a layer."""
    biases: Sequence[Tensor]
    """One [O] a layer."""
    directions: Tensor | None
    """[J, K], orthonormal columns, constant; the unscented transform has none."""
    activation_code: int
    activation_parameter: float


class MlpCovarianceOutputs(NamedTuple):
    """What `mlp_covariance` gives."""

    mean: Tensor
    """[B, A]."""
    covariance: Tensor
    """[B, A, A]."""
