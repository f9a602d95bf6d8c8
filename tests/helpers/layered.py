"""Inputs of the ops that take layers, and the ways to get the layers wrong."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

import p3kernels
from helpers.bad_inputs import Bad, bad
from helpers.battery import Inputs, grouped


def moments(generator: torch.Generator, rows: int, inputs: int, stochastic: int) -> Inputs:
    """mean [B, I] and var [B, J], float64."""
    return {
        "mean": torch.randn(rows, inputs, generator=generator, dtype=torch.float64),
        "var": 0.05 + torch.rand(rows, stochastic, generator=generator, dtype=torch.float64),
    }


def layers(generator: torch.Generator, widths: Sequence[int]) -> Inputs:
    """weights.k [O, I] that keep the size of activations, biases.k [O], float64."""
    weights, biases = {}, {}
    for index, (width, out) in enumerate(itertools.pairwise(widths)):
        weight = torch.randn(out, width, generator=generator, dtype=torch.float64)
        weights[f"weights.{index}"] = weight / math.sqrt(max(width, 1))
        biases[f"biases.{index}"] = 0.3 * torch.randn(out, generator=generator, dtype=torch.float64)
    return weights | biases


def policy(size: Sequence[int], dtype: torch.dtype, row_std: bool = False) -> Inputs:
    """Inputs of `mlp_mixture_log_prob` for size (N, B, C, Z, *widths)."""
    samples, rows, context, latent, *widths = size
    generator = torch.Generator().manual_seed(6)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = {
        "action": normal(rows, widths[-1]),
        "context": normal(rows, context),
        "latent_mean": normal(rows, latent),
        "latent_std": 0.1 + normal(rows, latent).abs(),
        **layers(generator, (context + latent, *widths)),
        "std": 0.5 + normal(*((rows,) if row_std else ()), widths[-1]).abs(),
        "noise": normal(samples, rows, latent),
    }
    return cast(inputs, dtype)


def policy_without_noise(
    size: Sequence[int] = (6, 9, 3, 2, 7, 5, 4), dtype: torch.dtype = torch.float64
) -> dict[str, Any]:
    """Arguments of `mlp_mixture_log_prob` but for num_samples and where the noise comes from."""
    named = grouped(policy(size, dtype))
    del named["noise"]
    return named


def cast(inputs: Inputs, dtype: torch.dtype) -> Inputs:
    return {name: tensor.to(dtype) for name, tensor in inputs.items()}


def replaced(items: list, index: int, change) -> list:
    return [change(item) if at == index else item for at, item in enumerate(items)]


def bad_layers(like: str, columns: int) -> tuple[Bad, ...]:
    """For ops that take `weights` and `biases`; `like` is the argument whose dtype and device rule, `columns` I."""

    def weight(name: str, error: type[Exception], message: str, index: int, change) -> Bad:
        return bad(f"weight {name}", error, message, weights=lambda items: replaced(items, index, change))

    def bias(name: str, error: type[Exception], message: str, index: int, change) -> Bad:
        return bad(f"bias {name}", error, message, biases=lambda items: replaced(items, index, change))

    dtype = rf"expected the dtype of {like}, float32, got float64"
    device = rf"expected the device of {like}, cpu, got meta"
    return (
        bad("weights a number", TypeError, r"weights: expected a list, one entry a layer, got int", weights=3),
        bad("weights one tensor", TypeError, r"weights: expected a list, .* got Tensor", weights=lambda w: w[0]),
        bad("biases None", TypeError, r"biases: expected a list, one entry a layer, got NoneType", biases=None),
        bad("activation a list", ValueError, r"activation: expected one of elu, .* got \['elu'\]", activation=["elu"]),
        bad("no layers", ValueError, r"weights: expected at least one layer, got none", weights=[], biases=[]),
        bad("too few biases", ValueError, r"biases: expected 3 entries, one a weight, got 2", biases=lambda b: b[:2]),
        weight("missing", TypeError, r"weights\[1\]: expected a tensor, got NoneType", 1, lambda _: None),
        weight("int64", TypeError, r"weights\[2\]: expected float32 or float64, got int64", 2, torch.Tensor.long),
        weight("float16", TypeError, r"weights\[0\]: expected float32 or float64, got float16", 0, torch.Tensor.half),
        weight("float64", TypeError, rf"weights\[1\]: {dtype}", 1, torch.Tensor.double),
        weight("on meta", ValueError, rf"weights\[1\]: {device}", 1, lambda w: w.to("meta")),
        weight("3-D", ValueError, r"weights\[1\]: expected 2 dimensions, got shape \[1, ", 1, lambda w: w[None]),
        weight("columns", ValueError, rf"weights\[0\]: expected {columns} columns, got", 0, lambda w: w[:, 1:]),
        weight("chain", ValueError, r"weights\[1\]: expected \d+ columns, got shape \[\d+, ", 1, lambda w: w[:, :-1]),
        bias("not a tensor", TypeError, r"biases\[1\]: expected a tensor, got float", 1, lambda _: 0.5),
        bias("int64", TypeError, r"biases\[1\]: expected float32 or float64, got int64", 1, torch.Tensor.long),
        bias("float64", TypeError, rf"biases\[0\]: {dtype}", 0, torch.Tensor.double),
        bias("on meta", ValueError, rf"biases\[2\]: {device}", 2, lambda b: b.to("meta")),
        bias("too short", ValueError, r"biases\[2\]: expected shape \[\d+\], got \[\d+\]", 2, lambda b: b[1:]),
        bias("a column", ValueError, r"biases\[0\]: expected shape \[\d+\], got \[\d+, 1\]", 0, lambda b: b[:, None]),
        bad(
            "activation",
            ValueError,
            r"activation: expected one of elu, relu, leaky_relu, got 'tanh'",
            activation="tanh",
        ),
        bad(
            "parameter of relu",
            ValueError,
            r"activation_parameter: relu has none; use leaky_relu",
            activation="relu",
            activation_parameter=0.1,
        ),
        bad(
            "alpha zero",
            ValueError,
            r"activation_parameter: expected a finite number > 0, got 0\.0",
            activation="elu",
            activation_parameter=0.0,
        ),
        bad(
            "slope nan",
            ValueError,
            r"activation_parameter: expected a finite number >= 0, got nan",
            activation="leaky_relu",
            activation_parameter=math.nan,
        ),
    )


def bad_layer() -> tuple[Bad, ...]:
    """For ops that take one `weight` [7, 5] and `bias` [7] beside `mean`."""
    return (
        bad("weight not a tensor", TypeError, r"^weight: expected a tensor, got NoneType", weight=None),
        bad("weight int64", TypeError, r"^weight: expected float32 or float64, got int64", weight=torch.Tensor.long),
        bad("weight float64", TypeError, r"^weight: expected the dtype of mean, float32", weight=torch.Tensor.double),
        bad("weight on meta", ValueError, r"^weight: expected the device of mean, cpu", weight=lambda w: w.to("meta")),
        bad("weight 1-D", ValueError, r"^weight: expected 2 dimensions, got shape \[5\]", weight=lambda w: w[0]),
        bad("weight columns", ValueError, r"^weight: expected 5 columns, got shape \[5, 7\]", weight=torch.Tensor.t),
        bad("bias not a tensor", TypeError, r"^bias: expected a tensor, got float", bias=0.5),
        bad("bias float16", TypeError, r"^bias: expected float32 or float64, got float16", bias=torch.Tensor.half),
        bad("bias float64", TypeError, r"^bias: expected the dtype of mean, float32", bias=torch.Tensor.double),
        bad("bias shape", ValueError, r"^bias: expected shape \[7\], got \[6\]", bias=lambda b: b[:6]),
    )


def bad_moments(rows: int, inputs: int) -> tuple[Bad, ...]:
    """`var` [B, J] that does not belong to `mean` [B, I]."""
    expected = rf"var: expected shape \[{rows}, J\] with J <= {inputs}, got"
    return (
        bad(
            "more columns than mean",
            ValueError,
            rf"{expected} \[{rows}, {inputs + 1}\]",
            var=torch.ones(rows, inputs + 1),
        ),
        bad("rows of var", ValueError, rf"{expected} \[{rows + 1}, 1\]", var=torch.ones(rows + 1, 1)),
        bad(
            "mean on meta", ValueError, r"var: expected the device of mean, meta, got cpu", mean=lambda m: m.to("meta")
        ),
    )


def extreme() -> tuple[list[torch.Tensor], dict[str, Any]]:
    """Mean and variance [64, 6] over many magnitudes, differentiable, and a network for them."""
    generator = torch.Generator().manual_seed(4)
    network = grouped(cast(layers(generator, (6, 9, 8, 3)), torch.float32))
    mean = torch.randn(64, 6, generator=generator) * torch.logspace(-20, 4, 64)[:, None]
    var = torch.logspace(-40, 8, 64)[torch.randperm(64, generator=generator)][:, None].expand(64, 6)
    return [mean.requires_grad_(), var.clone().requires_grad_()], network


def assert_extreme_moments_are_finite(backend: str) -> None:
    """`mlp_moments` of `extreme` inputs: finite, no negative variance, and gradients that are finite and there."""
    tensors, network = extreme()
    out_mean, out_var = p3kernels.mlp_moments(*tensors, **network, backend=backend)
    assert out_mean.isfinite().all()
    assert (out_var >= 0).all()
    assert out_var.isfinite().all()
    for gradient in torch.autograd.grad(out_mean.sum() + out_var.sum(), tensors):
        assert gradient.isfinite().all()
        assert gradient.count_nonzero() > 0


def assert_draws_follow_their_seed(log_prob: Callable[[Any], torch.Tensor]) -> None:
    """The same seed draws the same; another one, or none twice, something else; torch's own seed decides for none."""
    for same in (4, torch.tensor([4]), torch.tensor(4)):
        assert torch.equal(log_prob(same), log_prob(4))
    assert (log_prob(4) != log_prob(5)).all()
    torch.manual_seed(1)
    first, second = log_prob(None), log_prob(None)
    assert (first != second).all()
    torch.manual_seed(1)
    assert torch.equal(log_prob(None), first)
