"""The CPU kernels of every instruction set that this machine runs, each in a process of its own."""

from __future__ import annotations

import os

import pytest
import torch
from helpers import forked
from helpers.accuracy import CONFIGURATIONS, assert_accurate, points

from p3kernels import reference
from p3kernels.reference.latent_noise import normal

# Imports only what it needs: inputs come from the parent, numbers go back to it.
CHILD = """
import sys, torch, p3kernels
from p3kernels.backends import load_extension
from p3kernels.cpu import native
extension, reason = load_extension()
if extension is None:
    print(reason)
    sys.exit(3)
inputs, ops = torch.load(sys.argv[1]), {"elu": p3kernels.elu_moments, "leaky_relu": p3kernels.leaky_relu_moments}
results = {"isa": extension.isa()}
for activation, parameter, dtype, mean, var in inputs["moments"]:
    mean.requires_grad_(), var.requires_grad_()
    out = ops[activation](mean, var, parameter, backend="cpu")
    gradients = [torch.autograd.grad(o.sum(), (mean, var), retain_graph=True) for o in out]
    results[activation, parameter, dtype] = torch.stack([*out, *gradients[0], *gradients[1]]).detach()
for dtype, (action, means, std) in inputs["mixture"].items():
    leaves = [tensor.requires_grad_() for tensor in (action, means, std)]
    log_prob = p3kernels.mixture_log_prob(*leaves, backend="cpu")
    results["mixture", dtype] = [log_prob.detach(), *torch.autograd.grad(log_prob.sum(), leaves)]
    results["normal", dtype] = torch.empty(3, 5, 133, dtype=dtype)
    native.normal(11, 2, 4, 6, results["normal", dtype])
torch.save(results, sys.argv[2])
"""


def run_child(isa: str, tmp_path, inputs) -> dict:
    torch.save(inputs, tmp_path / "inputs.pt")
    files = tmp_path / "inputs.pt", tmp_path / "results.pt"
    done = forked.python("-c", CHILD, *files, env={**os.environ, "P3_CPU_ISA": isa})
    if done.returncode == 3 and "is not one this CPU and build can run" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(tmp_path / "results.pt")


@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
def test_every_kernel(isa, tmp_path):
    dtypes = (torch.float32, torch.float64)
    generator = torch.Generator().manual_seed(1)
    mixture = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((9, 29), (7, 9, 29), (29,))]
    mixture[2] = mixture[2].exp()
    inputs = {
        "moments": [(*config, str(dtype), *points(dtype)) for config in CONFIGURATIONS for dtype in dtypes],
        "mixture": {dtype: [tensor.to(dtype) for tensor in mixture] for dtype in dtypes},
    }
    results = run_child(isa, tmp_path, inputs)
    assert results["isa"] == isa
    for activation, parameter in CONFIGURATIONS:
        for dtype in dtypes:
            assert_accurate(results[activation, parameter, str(dtype)], activation, parameter, "cpu")
    for dtype in dtypes:
        leaves = [tensor.to(dtype).double().requires_grad_() for tensor in mixture]
        log_prob = reference.mixture_log_prob(*leaves)
        expected = [log_prob.detach(), *torch.autograd.grad(log_prob.sum(), leaves)]
        for got, value in zip(results["mixture", dtype], expected, strict=True):
            # As in test_mixture_log_prob: 64 roundings of the largest value.
            assert (got.double() - value).abs().max() <= 64 * torch.finfo(dtype).eps * value.abs().max()
        expected = normal(11, 2, 7, 11, 133)[4:, 6:]
        # As in test_latent_noise: float32 uniforms near 1 move a small radius.
        assert (results["normal", dtype].double() - expected).abs().max() <= (
            1e-13 if dtype == torch.float64 else 2.0**-12
        )


def test_an_unknown_instruction_set_is_a_reason_not_a_crash(tmp_path):
    code = "import p3kernels; print(p3kernels.available_backends()['cpu'])"
    done = forked.python("-c", code, env={**os.environ, "P3_CPU_ISA": "sse9"})
    assert done.stdout.strip() == "P3_CPU_ISA=sse9 is not one this CPU and build can run"
