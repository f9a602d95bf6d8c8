"""The Triton kernels of docs/extending.md have the moments and gradients of the reference."""

from __future__ import annotations

import importlib
from pathlib import Path

import torch


def test_square_moments(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "examples/extending"))
    op = importlib.import_module("square_moments")
    leaves = [torch.randn(37, 29).requires_grad_(), torch.rand(37, 29).requires_grad_()]
    results = {}
    for backend in ("triton", "reference"):
        outputs = op.square_moments(*leaves, backend=backend)
        results[backend] = (*outputs, *torch.autograd.grad((outputs[0] + outputs[1].sin()).sum(), leaves))
    for found, wanted in zip(results["triton"], results["reference"], strict=True):
        torch.testing.assert_close(found, wanted)
    assert results["triton"][2].abs().max() > 0
