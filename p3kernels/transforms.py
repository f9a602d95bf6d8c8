"""Whether a call takes part in `torch.func` or forward-mode AD, which compiled kernels do not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _active() -> bool:
    """Whether a transform of `torch.func` or a level of forward-mode AD is entered."""
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


# A compiled graph is guarded on both already.
_active._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _takes_part(tensor: Tensor) -> bool:
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return True
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(tensor).tangent is not None


def transformed(*values: Any) -> bool:
    """Whether any tensor, also in a list, belongs to a `torch.func` transform (grad, jvp, vmap, …) or has a tangent.

    A kernel behind a torch operator sees only the numbers of such a tensor: the tangent would be lost without a word.
    """
    if not _active():
        return False
    if torch.compiler.is_compiling():
        return True  # tensors have no tangents to look for while a graph is made
    tensors = [item for value in values for item in (value if isinstance(value, list | tuple) else [value])]
    return any(isinstance(tensor, Tensor) and _takes_part(tensor) for tensor in tensors)
