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
from torch.utils._pytree import tree_leaves


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
    if torch.isfinite(torch.stack(torch._foreach_norm(checked)).sum()):  # the quickest of norms
        return True
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(checked, float("inf"))).sum()))  # squares may overflow


def replace_nonfinite(observations: TensorDict) -> tuple[TensorDict, dict[str, Tensor]]:
    """Observation groups with 0 where a value is not finite, and in how many rows of each group that was.

    Without a look at the values, which on a GPU would stall every step of a rollout; on a CPU it saves the rest of the
    work, and what is finite comes back as it is.

    Args:
        observations: [E] rows.
    """
    groups = _groups(observations)
    if all(value.device.type == "cpu" for value in groups.values()):
        sums = [value.sum() for value in groups.values()]
        if sums and bool(torch.isfinite(torch.stack(sums).sum())):
            return observations, dict.fromkeys(groups, torch.zeros((), dtype=torch.int64))
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


def _fits(old: Any, new: Any) -> bool:
    """Whether the value of `new` can be copied into `old`."""
    tensors = isinstance(old, Tensor) and isinstance(new, Tensor)
    return tensors and (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)


class LastGoodWeights:
    """The weights and the optimiser's state as they last were finite.

    Args:
        networks: By the name to report them under.
        optimizer: Optimiser of their parameters.
    """

    def __init__(self, networks: Mapping[str, nn.Module], optimizer: torch.optim.Optimizer) -> None:
        self._networks, self._optimizer = dict(networks), optimizer
        self._values: dict[str, Any] = {}
        self._groups: list[dict[str, Any]] = []
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
        """Takes the present state as good: into the copies of before, where there are such."""
        optimizer = self._optimizer.state_dict()
        present = {"optimizer": optimizer["state"]}
        present |= {name: dict(network.state_dict()) for name, network in self._networks.items()}
        old, new = tree_leaves(self._values), tree_leaves(present)
        with torch.inference_mode(False), torch.no_grad():
            if len(old) == len(new) and all(map(_fits, old, new)):
                torch._foreach_copy_(old, new)
            else:  # the first time, and when the optimiser has made its moments
                self._values = copy.deepcopy(present)
        self._groups = copy.deepcopy(optimizer["param_groups"])

    def restore(self) -> None:
        """Back to the state that was last good."""
        with torch.inference_mode(False):  # a rollout may call; what is restored here must train afterwards
            for name, network in self._networks.items():
                network.load_state_dict(self._values[name])
            state = {"state": self._values["optimizer"], "param_groups": self._groups}
            self._optimizer.load_state_dict(copy.deepcopy(state))
