"""Argument checks shared by the ops: a user's mistake ends here, with the argument's name, before any kernel runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from p3kernels.transforms import transformed

P = ParamSpec("P")
R = TypeVar("R")
SUPPORTED = (torch.float32, torch.float64)
ON_DEVICE = ("triton", "cuda")
"""Backends for GPUs: float32 and bfloat16, also mixed, computed in float32."""
SUPPORTED_ON_DEVICE = (torch.float32, torch.bfloat16)
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")


def shape_text(shape: Sequence[int]) -> str:
    """[4, 3] as it stands in messages."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def _promote(value: Any) -> Any:
    """float32 for half-precision tensors, also inside lists and tuples; anything else as it is."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.bfloat16, torch.float16) else value
    if isinstance(value, list | tuple):
        return [_promote(item) for item in value]
    return value


def full_precision(op: Callable[P, R]) -> Callable[P, R]:
    """Under autocast the op runs outside of it, on float32: moments of rounded activations would not be moments."""

    @functools.wraps(op)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        tensor = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
        device = "cpu" if tensor is None else tensor.device.type
        if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
            return op(*args, **kwargs)
        with torch.autocast(device, enabled=False):
            return op(*_promote(args), **{name: _promote(value) for name, value in kwargs.items()})

    return wrapper


def dtype_text(dtype: torch.dtype) -> str:
    """torch.float32 as it stands in messages: float32."""
    return str(dtype).removeprefix("torch.")


def check_tensor(name: str, tensor: Tensor, dimensions: int | None = None, backend: str = "reference") -> None:
    """A tensor of a dtype that the backend has, with the given number of dimensions.

    The backends for GPUs take float32 and bfloat16 (arithmetic in float32), the others float32 and float64.

    Raises:
        TypeError: Not a tensor, or of another dtype.
        ValueError: Another number of dimensions.
    """
    _check_dense(name, tensor)
    if backend in ON_DEVICE:
        if tensor.dtype not in SUPPORTED_ON_DEVICE:
            hint = " (float64 runs on the reference backend)" if tensor.dtype == torch.float64 else ""
            raise TypeError(
                f"{name}: the {backend} backend expects float32 or bfloat16, got {dtype_text(tensor.dtype)}{hint}"
            )
    elif tensor.dtype not in SUPPORTED:
        hint = " (bfloat16 runs on the triton and cuda backends)" if tensor.dtype == torch.bfloat16 else ""
        raise TypeError(f"{name}: expected float32 or float64, got {dtype_text(tensor.dtype)}{hint}")
    if dimensions is not None and tensor.dim() != dimensions:
        raise ValueError(f"{name}: expected {dimensions} dimensions, got shape {shape_text(tensor.shape)}")


def _check_dense(name: str, tensor: Tensor) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        raise TypeError(f"{name}: expected a dense tensor, got the layout {layout}; .to_dense() makes one")


def check_like(name: str, tensor: Tensor, like_name: str, like: Tensor, backend: str = "reference") -> None:
    """The device of another argument, and its dtype; the backends for GPUs may mix float32 and bfloat16."""
    if tensor.dtype != like.dtype and backend not in ON_DEVICE:
        raise TypeError(
            f"{name}: expected the dtype of {like_name}, {dtype_text(like.dtype)}, got {dtype_text(tensor.dtype)}"
        )
    if tensor.device != like.device:
        raise ValueError(f"{name}: expected the device of {like_name}, {like.device}, got {tensor.device}")


def check_shape(name: str, tensor: Tensor, expected: Sequence[int]) -> None:
    """Raises ValueError unless the tensor has exactly this shape."""
    if tuple(tensor.shape) != tuple(expected):
        raise ValueError(f"{name}: expected shape {shape_text(expected)}, got {shape_text(tensor.shape)}")


def checking_values() -> bool:
    """Whether P3_CHECK_VALUES asks for it: 1; unset, empty or 0 do not, and anything else is an error."""
    asked = os.environ.get("P3_CHECK_VALUES", "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"P3_CHECK_VALUES: expected 0 or 1, got {asked!r}")
    return asked == "1"


def check_values(name: str, tensor: Tensor) -> None:
    """With P3_CHECK_VALUES=1, no NaN and nothing negative; otherwise nothing, for it costs a pass and a sync.

    Values inside a compiled graph or a `torch.func` transform cannot be looked at, and are not.

    Without the check a negative or NaN variance gives NaN for the elements that it touches, as `sqrt` does.
    """
    if torch.compiler.is_compiling() or not checking_values() or transformed(tensor):
        return
    bad = ~(tensor >= 0)
    if bool(bad.any()):
        value = tensor[bad][0].item()
        raise ValueError(f"{name}: expected values >= 0, got {int(bad.sum())} that are not, the first {value}")


def check_policy(
    actor: nn.Module, context: Tensor, latent_mean: Tensor, latent_std: Tensor, action_std: Tensor
) -> None:
    """The arguments of an estimator's policy: nothing is broadcast but an action_std [A] over the rows.

    Raises:
        TypeError: Not a dense tensor of floating-point numbers.
        ValueError: Shapes or devices that do not fit each other or the actor; with P3_CHECK_VALUES=1 a std below 0.
    """
    named = {"context": context, "latent_mean": latent_mean, "latent_std": latent_std, "action_std": action_std}
    _check_dense("context", context)
    # Half precision beside float32: of autocast, and of the backends for GPUs, which compute in float32.
    mixed = context.device.type != "cpu" or torch.is_autocast_enabled("cpu")
    for name, tensor in named.items():
        _check_dense(name, tensor)
        if not tensor.is_floating_point():
            raise TypeError(f"{name}: expected floating-point numbers, got {dtype_text(tensor.dtype)}")
        if tensor.dim() != 2 and not (name == "action_std" and tensor.dim() == 1):
            raise ValueError(f"{name}: expected 2 dimensions, got shape {shape_text(tensor.shape)}")
        if tensor.device != context.device:
            raise ValueError(f"{name}: expected the device of context, {context.device}, got {tensor.device}")
        if tensor.dtype != context.dtype and not mixed:
            raise TypeError(
                f"{name}: expected the dtype of context, {dtype_text(context.dtype)}, got {dtype_text(tensor.dtype)}"
            )
    rows = context.shape[0]
    check_shape("latent_mean", latent_mean, (rows, latent_mean.shape[1]))
    check_shape("latent_std", latent_std, latent_mean.shape)
    if isinstance(actor, nn.Sequential) and len(actor):
        first, last = actor[0], actor[-1]
        columns = context.shape[1] + latent_mean.shape[1]
        if isinstance(first, nn.Linear) and first.in_features != columns:
            raise ValueError(
                f"context: expected {first.in_features} columns with those of latent_mean, which the actor takes, got"
                f" {context.shape[1]} + {latent_mean.shape[1]}"
            )
        if isinstance(last, nn.Linear):
            actions = last.out_features
            check_shape("action_std", action_std, (actions,) if action_std.dim() == 1 else (rows, actions))
    check_values("latent_std", latent_std)
    check_values("action_std", action_std)


def _matmul_precision() -> str:
    return torch.get_float32_matmul_precision()


# A compiled graph is guarded on this setting already; tracing the getter itself is what the compiler cannot do.
_matmul_precision._dynamo_marked_constant = True  # type: ignore[attr-defined]


def dot_precision(precision: str | None, backend: str) -> str:
    """How the matrix products of an op round: one of `PRECISIONS`.

    Args:
        precision: What the caller asked for; None follows `torch.get_float32_matmul_precision()`.
        backend: The backend that will run; only Triton has another than "ieee".

    Raises:
        ValueError: Not a known precision, or one that the backend does not have.
    """
    if precision is not None and precision not in PRECISIONS:
        raise ValueError(f"precision: expected one of {', '.join(PRECISIONS)} or None, got {precision!r}")
    if backend != "triton":
        if precision not in (None, "ieee"):
            raise ValueError(f"precision: {precision!r} is only for the triton backend, got the {backend} backend")
        return "ieee"
    if precision is not None:
        return precision
    return {"highest": "ieee", "high": "tf32", "medium": "bf16"}[_matmul_precision()]


def check_layer(
    names: tuple[str, str],
    input_size: int,
    like_name: str,
    like: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    backend: str = "reference",
) -> None:
    """weight [O, I] with I = `input_size` and bias [O] or None, of the dtype and device of another argument."""
    check_tensor(names[0], weight, 2, backend)
    check_like(names[0], weight, like_name, like, backend)
    if weight.shape[1] != input_size:
        raise ValueError(f"{names[0]}: expected {input_size} columns, got shape {shape_text(weight.shape)}")
    if bias is not None:
        check_tensor(names[1], bias, backend=backend)
        check_like(names[1], bias, like_name, like, backend)
        check_shape(names[1], bias, (weight.shape[0],))


def check_layers(
    input_size: int,
    like_name: str,
    like: Tensor,
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None],
    backend: str = "reference",
) -> None:
    """Weights [O, I] that chain from `input_size`, each with a bias [O] or None."""
    for name, value in (("weights", weights), ("biases", biases)):
        if isinstance(value, Tensor) or not hasattr(value, "__len__"):
            raise TypeError(f"{name}: expected a list, one entry a layer, got {type(value).__name__}")
    if len(weights) == 0:
        raise ValueError("weights: expected at least one layer, got none")
    if len(biases) != len(weights):
        raise ValueError(f"biases: expected {len(weights)} entries, one a weight, got {len(biases)}")
    for index, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        check_layer((f"weights[{index}]", f"biases[{index}]"), input_size, like_name, like, weight, bias, backend)
        input_size = weight.shape[0]
