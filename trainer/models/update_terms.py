"""The row-by-row parts of an update beside its networks, as operators of one launch each where Triton runs.

Elsewhere they are plain torch, in the files that call these: `networks`, `reconstruction` and `algorithms.losses`.
A minibatch of moment matching would else be several hundred launches of a few microseconds each.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels.backends import choose_backend, on_gpu
from p3kernels.ops.register import Kernels, Operators, launched
from p3kernels.records import Backward, Gradients, Inputs, Outputs

LAUNCHERS = "triton_kernels.update_terms"


def fused(*tensors: Tensor) -> bool:
    """Whether the operators of this module take these tensors: float32 on a GPU that Triton runs on."""
    first = tensors[0]
    return (
        on_gpu(first)
        and all(tensor.dtype == torch.float32 for tensor in tensors)
        and not torch.jit.is_tracing()
        and choose_backend(None, *tensors) == "triton"
    )


def _triton() -> Any:
    return importlib.import_module(LAUNCHERS)  # triton is not imported with the package


def _operators(
    name: str,
    inputs: type[Inputs],
    outputs: type[Outputs],
    fake: Callable[[Inputs], Outputs],
    gradients: Sequence[str] = (),
    *,
    empty: bool = False,
) -> Operators[Inputs, Outputs]:
    """An op of the launchers `<name>` and `<name>_backward` alone, with first derivatives."""
    kernels = launched(LAUNCHERS, outputs, gradients, forward=name, backward=f"{name}_backward")
    return Operators(
        name,
        inputs,
        outputs,
        fake=fake,
        kernels={"triton": kernels},
        differentiable=gradients,
        twice=False,
        empty=empty,
    )


class _HeadsInputs(NamedTuple):
    first: Tensor
    second: Tensor
    first_latent: int


class _Heads(NamedTuple):
    mean: Tensor
    std: Tensor
    velocity: Tensor


def _heads_fake(inputs: _HeadsInputs) -> _Heads:
    first, rows = inputs.first, inputs.first.shape[0]
    latent = inputs.first_latent + inputs.second.shape[1] // 2
    sizes = (latent, latent, first.shape[1] - 2 * inputs.first_latent)
    return _Heads(*(first.new_empty(rows, size) for size in sizes))


_HEADS = _operators("latent_heads", _HeadsInputs, _Heads, _heads_fake, ("first", "second"), empty=True)


def latent_heads(first: Tensor, second: Tensor, first_latent: int) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and std [B, Z1 + Z2] of the latents, and the velocity [B, V], of what the encoder's two heads give.

    Args:
        first: [B, 2 Z1 + V]: means, log-variances, velocity.
        second: [B, 2 Z2]: means, log-variances.
        first_latent: Z1.
    """
    return _HEADS("triton", _HeadsInputs(first, second, first_latent))


class _PolicyInputs(NamedTuple):
    log_prob: Tensor
    old_log_prob: Tensor
    advantage: Tensor
    value: Tensor
    old_value: Tensor
    returns: Tensor
    kl: Tensor
    drawn: Tensor | None
    clip: float
    dual_clip: float
    clips_value: bool

    @property
    def rows_of(self) -> tuple[Tensor, ...]:
        """[B] each."""
        return self.log_prob, self.old_log_prob, self.advantage, self.value, self.old_value, self.returns

    @property
    def clips(self) -> Any:
        """As the launchers take them: a `dual_clip` of 0 is none."""
        return _triton().Clips(self.clip, self.dual_clip or None, self.clips_value)


class _PolicyTerms(NamedTuple):
    losses: Tensor
    numbers: Tensor


def _policy_fake(inputs: _PolicyInputs) -> _PolicyTerms:
    return _PolicyTerms(inputs.kl.new_empty(2), inputs.kl.new_empty(3))


def _policy_forward(inputs: _PolicyInputs) -> _PolicyTerms:
    return _PolicyTerms(*_triton().policy_terms(inputs.rows_of, inputs.kl, inputs.drawn, inputs.clips))


def _policy_backward(request: Backward[_PolicyInputs, _PolicyTerms]) -> Gradients:
    inputs = request.inputs
    d_log_prob, d_value = _triton().policy_terms_backward(request.d_outputs.losses, inputs.rows_of, inputs.clips)
    return {"log_prob": d_log_prob, "value": d_value}


_POLICY = Operators(
    "policy_terms",
    _PolicyInputs,
    _PolicyTerms,
    fake=_policy_fake,
    kernels={"triton": Kernels(_policy_forward, _policy_backward)},
    differentiable=("log_prob", "value"),
    kept=("numbers",),
    twice=False,
)


def policy_terms(
    rows_of: Sequence[Tensor],
    kl: Tensor,
    drawn: Tensor | None,
    clip: float,
    dual_clip: float | None,
    *,
    clips_value: bool,
) -> tuple[Tensor, Tensor]:
    """Loss of the policy and of the value, and KL, clipped ratios and drawn rows, all of them means over B rows.

    Args:
        rows_of: log_prob, old log_prob, advantage, value, old value and return, [B] each; the first and the value have
            a gradient.
        kl: [B].
        drawn: [B]: 1 for rows whose KL and ratio count, 0 for others; None for all.
        clip: Distance from 1 at which a ratio is clipped, and from the old value a value.
        dual_clip: As for `clipped_surrogate`.
        clips_value: Whether the value's move is clipped.

    Returns:
        The two losses [2], differentiable, and the three numbers [3].
    """
    log_prob, old_log_prob, advantage, value, old_value, returns = rows_of
    rows = (log_prob, old_log_prob, advantage, value, old_value, returns, kl, drawn)
    return _POLICY("triton", _PolicyInputs(*rows, clip, dual_clip or 0.0, clips_value))


class _ErrorsInputs(NamedTuple):
    predictions: Sequence[Tensor]
    targets: Sequence[Tensor]
    mask: Tensor
    divisor: Tensor
    least: float


class _Errors(NamedTuple):
    errors: Tensor


def _errors_fake(inputs: _ErrorsInputs) -> _Errors:
    return _Errors(inputs.mask.new_empty(len(inputs.predictions)))


_ERRORS = _operators("squared_errors", _ErrorsInputs, _Errors, _errors_fake, ("predictions",))


def squared_errors(
    predictions: Sequence[Tensor], targets: Sequence[Tensor], mask: Tensor, divisor: Tensor, least: float
) -> Tensor:
    """[K]: mean squared errors of pairs, that of the first one over the rows of the mask.

    Args:
        predictions: K tensors [B, C], float32.
        targets: K tensors [B, C].
        mask: [B]: 1 for rows that count in the first pair, 0 for others.
        divisor: []: what the first pair's sum over rows is divided by,
        least: but not by less than this.
    """
    return _ERRORS("triton", _ErrorsInputs(predictions, targets, mask, divisor, least)).errors


class _KlInputs(NamedTuple):
    mean: Tensor
    std: Tensor
    first_latent: int
    shares: Sequence[float]


class _Kl(NamedTuple):
    kl: Tensor


def _kl_fake(inputs: _KlInputs) -> _Kl:
    return _Kl(inputs.mean.new_empty(()))


_KL = _operators("latent_kl", _KlInputs, _Kl, _kl_fake, ("mean", "std"))


def latent_kl(mean: Tensor, std: Tensor, first_latent: int, shares: tuple[float, float]) -> Tensor:
    """[]: Σ KL(N(mean, std²) ‖ N(0, 1)) of mean and std [B, Z], columns before `first_latent` times the first share."""
    return _KL("triton", _KlInputs(mean, std, first_latent, shares)).kl


class _BoundsInputs(NamedTuple):
    norms: Tensor
    loss: Tensor
    first: int
    max_norm: float


class _Bounds(NamedTuple):
    divisors: Tensor
    broken: Tensor
    taken: Tensor


def _bounds_fake(inputs: _BoundsInputs) -> _Bounds:
    norms = inputs.norms
    return _Bounds(norms.new_empty(2), norms.new_empty(()), norms.new_empty((), dtype=torch.bool))


_BOUNDS = _operators("gradient_bounds", _BoundsInputs, _Bounds, _bounds_fake)


def gradient_bounds(norms: Tensor, loss: Tensor, first: int, max_norm: float) -> tuple[Tensor, Tensor, Tensor]:
    """What the gradients of two parts are divided by [2]; whether anything is not finite, 1 or 0 []; whether not [].

    Args:
        norms: [P]: norms of the parameters' gradients, those of the first part before the second's.
        loss: [].
        first: Number of parameters of the first part.
        max_norm: Norm of a part's gradient above which it is divided.
    """
    return _BOUNDS("triton", _BoundsInputs(norms, loss, first, max_norm))
