from __future__ import annotations

import pytest
import torch
from helpers.device_cases import LinearEluMomentsCases

import p3kernels
from triton_kernels import launch


class TestLinearEluMoments(LinearEluMomentsCases):
    pass


@pytest.mark.parametrize("bias", [True, False])
def test_is_the_composition(bias):
    mean, var, weight = torch.randn(9, 6), torch.rand(9, 4), torch.randn(5, 6)
    offset = torch.randn(5) if bias else None
    fused = p3kernels.linear_elu_moments(mean, var, weight, offset, 0.8, backend="triton")
    layer = p3kernels.linear_moments(mean, var, weight, offset, backend="triton")
    for got, expected in zip(fused, p3kernels.elu_moments(*layer, 0.8, backend="triton"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)  # the sums round in another order


def test_linear_moments_take_bfloat16():
    mean, var, weight = torch.randn(9, 6), torch.rand(9, 4), torch.randn(5, 6, requires_grad=True)
    low = [tensor.detach().bfloat16() for tensor in (mean, var, weight)]
    low[2].requires_grad_()
    for got, expected in zip(
        p3kernels.linear_moments(*low, backend="triton"),
        p3kernels.linear_moments(*(tensor.float() for tensor in low), backend="reference"),
        strict=True,
    ):
        assert got.dtype == torch.float32
        assert torch.equal(got, expected)
        (gradient,) = torch.autograd.grad(got.sum(), low[2], retain_graph=True)
        assert gradient.dtype == torch.bfloat16


def test_zero_variance_is_the_layer():
    mean, weight, bias = torch.randn(9, 6), torch.randn(5, 6), torch.randn(5)
    for var in (torch.zeros(9, 6), torch.zeros(9, 0)):
        out_mean, out_var = p3kernels.linear_elu_moments(mean, var, weight, bias, backend="triton")
        expected = torch.nn.functional.elu(torch.nn.functional.linear(mean, weight, bias))
        torch.testing.assert_close(out_mean, expected, rtol=1e-6, atol=1e-6)  # a few float32 roundings
        assert torch.equal(out_var, torch.zeros(9, 5))


@pytest.mark.parametrize("poison", ["mean", "var", "negative"])
def test_nan_stays_in_its_row(poison):
    inputs = {"mean": torch.randn(9, 6), "var": torch.rand(9, 4)}
    if poison == "negative":
        inputs["var"][4] = -1.0
    else:
        inputs[poison][4, 1] = float("nan")
    outputs = p3kernels.linear_elu_moments(**inputs, weight=torch.randn(5, 6), backend="triton")
    for out in outputs:
        assert out[4].isnan().all()
        assert out[[0, 1, 2, 3, 5, 6, 7, 8]].isfinite().all()


@pytest.mark.parametrize(
    ("rows", "columns", "summed", "chunk"), [(16, 16, 16, 4), (32, 16, 16, 8), (16, 64, 32, 2), (128, 32, 64, 128)]
)
def test_every_tiling_is_true_to_the_reference(rows, columns, summed, chunk, monkeypatch):
    case = TestLinearEluMoments()
    sizes = {"BLOCK_ROWS": rows, "CHUNK_ROWS": chunk}

    def tuned(kernel: str, key: tuple, default: launch.Config) -> launch.Config:
        if "CHUNK_ROWS" not in default:
            return default
        names = ("BLOCK_OUT", "BLOCK_IN") if "fwd" in kernel else ("BLOCK_IN", "BLOCK_OUT")
        return {**default, **sizes, names[0]: columns, names[1]: summed}

    monkeypatch.setattr(launch, "tuned", tuned)
    case.assert_true_to_reference(case.make_inputs((37, 35, 19, 33), torch.float32), "large")


def test_precision_is_the_triton_backends():
    layer = torch.randn(3, 4), torch.rand(3, 4), torch.randn(5, 4)
    for name in ("reference", "cpu"):
        p3kernels.linear_elu_moments(*layer, precision="ieee", backend=name)
        with pytest.raises(ValueError, match=rf"precision: 'tf32' is only for the triton backend, got the {name} "):
            p3kernels.linear_elu_moments(*layer, precision="tf32", backend=name)
    with pytest.raises(ValueError, match="precision: expected one of ieee, tf32x3, tf32, bf16 or None, got 'fp8'"):
        p3kernels.linear_elu_moments(*layer, precision="fp8", backend="triton")
