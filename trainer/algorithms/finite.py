"""Nothing that is not finite spreads: which tensor was the first, and the way back to weights that were.

A NaN that reaches a weight makes every later step NaN. So the weights after every update that went well are remembered
(a copy in memory, small beside a rollout), and weights found broken are replaced by them at once.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn


def first_nonfinite(named: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor with a NaN or an infinity in it, and which of the two; None if there is none."""
    for name, tensor in named:
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            return f"{name} has {'NaN' if torch.isnan(tensor).any() else 'an infinity'}"
    return None


def all_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every floating-point tensor is finite: one look for all, one wait for the device."""
    checked = [tensor.detach() for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not checked:
        return True
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(checked, float("inf"))).sum()))


def replace_nonfinite(observations: TensorDict) -> tuple[TensorDict, dict[str, Tensor]]:
    """Observation groups with 0 where a value is not finite, and in how many rows of each group that was.

    Without a look at the values, which on a GPU would stall every step of a rollout.

    Args:
        observations: [E] rows.
    """
    groups = _groups(observations)
    broken = {name: (~torch.isfinite(value)).flatten(1).any(-1).sum() for name, value in groups.items()}
    replaced = {name: value.nan_to_num(0.0, 0.0, 0.0) for name, value in groups.items()}
    return TensorDict(replaced, batch_size=observations.batch_size, device=observations.device), broken


def _groups(observations: TensorDict) -> dict[str, Tensor]:
    return {name: value for name, value in observations.items() if isinstance(value, Tensor)}


def named_batch(batch: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a minibatch, observation groups by their own names."""
    for name, value in batch.items():
        if isinstance(value, TensorDict):
            yield from ((f"{name}.{group}", tensor) for group, tensor in _groups(value).items())
        else:
            yield name, value


class LastGoodWeights:
    """The weights and the optimiser's state as they last were finite.

    Args:
        networks: By the name to report them under.
        optimizer: Of their parameters.
    """

    def __init__(self, networks: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer) -> None:
        self._networks, self._optimizer = dict(networks), optimizer
        self.remember()

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers, then the optimiser's moments, which would break the parameters at the next step."""
        names = {}
        for prefix, network in self._networks.items():
            for name, value in network.state_dict(keep_vars=True).items():
                names[value] = f"{prefix}.{name}"
                yield names[value], value.detach()
        for parameter, state in self._optimizer.state.items():
            for kind, value in state.items():
                if isinstance(value, Tensor):
                    yield f"the optimiser's {kind} of {names.get(parameter, 'a parameter')}", value

    def first_nonfinite(self) -> str | None:
        """What is broken now; None if all is well."""
        if all_finite(value for _, value in self._named()):
            return None
        return first_nonfinite(self._named())

    def remember(self) -> None:
        """Takes the present state as good."""
        self._state = copy.deepcopy(
            {
                "networks": {name: network.state_dict() for name, network in self._networks.items()},
                "optimizer": self._optimizer.state_dict(),
            }
        )

    def restore(self) -> None:
        """Back to the state that was last good."""
        with torch.inference_mode(False):  # a rollout may call; what is restored here must train afterwards
            for name, network in self._networks.items():
                network.load_state_dict(self._state["networks"][name])
            self._optimizer.load_state_dict(copy.deepcopy(self._state["optimizer"]))
