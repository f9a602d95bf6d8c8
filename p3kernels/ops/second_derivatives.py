"""What an operator's backward says to somebody who differentiates it again."""

from __future__ import annotations

from typing import Any

from torch.library import CustomOpDef


def refuse_second_derivatives(backward: CustomOpDef, backend: str, *, reference_has_them: bool = True) -> None:
    """Makes a backward operator of a backend raise where its own derivative is asked for.

    Without it torch says that the operator has no autograd formula, and not what to do.

    Args:
        backward: The operator.
        backend: Whose it is.
        reference_has_them: Whether the op is twice differentiable on the reference backend.
    """
    way_out = "; backend='reference' has second derivatives" if reference_has_them else ""

    def refuse(ctx: Any, *gradients: Any) -> None:
        raise RuntimeError(f"cannot differentiate twice on the {backend} backend{way_out}")

    backward.register_autograd(refuse)
