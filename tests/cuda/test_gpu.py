"""The kernels on a GPU: run with `pytest -m gpu tests/cuda`, and under compute-sanitizer as docs/cuda.md says."""

from __future__ import annotations

import pytest
import torch
from helpers import layered
from helpers.battery import grouped, run

import p3kernels

pytestmark = pytest.mark.gpu


DEVICE = "cuda"


def on_device(inputs, dtype=torch.float32):
    return {name: tensor.to(DEVICE, dtype) for name, tensor in inputs.items()}


def assert_true_to_reference(op, inputs, dtype, tolerance, **options):
    """Outputs and gradients against the reference in float64 on the CPU, relative to each tensor's largest value."""
    rounded = {name: tensor.to(dtype).double() for name, tensor in inputs.items()}
    exact, exact_gradients = run(lambda x: _tuple(op(**grouped(x), backend="reference", **options)), rounded)
    leaves = {name: tensor.requires_grad_() for name, tensor in on_device(inputs, dtype).items()}
    outputs = _tuple(op(**grouped(leaves), backend="cuda", **options))
    with torch.no_grad():
        alone = _tuple(op(**grouped(leaves), backend="cuda", **options))
    generator = torch.Generator().manual_seed(7)  # the cotangents of `run`
    incoming = [0.5 + torch.rand(out.shape, generator=generator, dtype=torch.float64) for out in outputs]
    torch.autograd.backward(outputs, [gradient.to(out) for gradient, out in zip(incoming, outputs, strict=True)])
    found = [*zip(outputs, exact, strict=True), *zip(alone, exact, strict=True)]
    found += [(leaf.grad, exact_gradients[name]) for name, leaf in leaves.items()]
    for got, expected in found:
        own = 2**-8 if got.dtype == torch.bfloat16 else 0.0
        assert (got.cpu().double() - expected).abs().max() <= (tolerance + own) * expected.abs().max()


def _tuple(outputs):
    return outputs if isinstance(outputs, tuple) else (outputs,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", [p3kernels.elu_moments, p3kernels.relu_moments], ids=lambda op: op.__name__)
def test_activation_moments(op, dtype):
    generator = torch.Generator().manual_seed(3)
    mean = 2 * torch.randn(1001, 37, generator=generator, dtype=torch.float64)
    var = 0.01 + 3 * torch.rand(1001, 37, generator=generator, dtype=torch.float64)
    assert_true_to_reference(op, {"mean": mean, "var": var}, dtype, 1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 1000, 4096, 5000])
def test_mlp_moments(rows, dtype):
    generator = torch.Generator().manual_seed(2)
    named = layered.moments(generator, rows, 209, 110)
    inputs = {**named, **layered.layers(generator, (209, 512, 256, 128, 29))}
    assert_true_to_reference(p3kernels.mlp_moments, inputs, dtype, 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("rows", [1, 1000])
def test_mlp_mixture_log_prob(rows, dtype):
    inputs = layered.policy((15, rows, 99, 110, 512, 256, 128, 29), torch.float64)
    assert_true_to_reference(p3kernels.mlp_mixture_log_prob, inputs, dtype, 1e-4, num_samples=15)


def test_backends_draw_the_same():
    inputs = grouped(on_device(layered.policy((15, 100, 99, 110, 512, 29), torch.float32)))
    del inputs["noise"]
    got, expected = (
        p3kernels.mlp_mixture_log_prob(**inputs, num_samples=15, seed=11, backend=name)
        for name in ("cuda", "reference")
    )
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)


def test_a_captured_graph_replays():
    generator = torch.Generator().manual_seed(2)
    named = layered.moments(generator, 64, 209, 110)
    inputs = grouped(on_device({**named, **layered.layers(generator, (209, 512, 256, 128, 29))}))
    expected = p3kernels.mlp_moments(**inputs, backend="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = p3kernels.mlp_moments(**inputs, backend="cuda")
    graph.replay()
    for got, value in zip(captured, expected, strict=True):
        assert torch.equal(got, value)
