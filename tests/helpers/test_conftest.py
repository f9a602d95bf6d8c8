"""The test suite's own tools: memory really is poisoned where the ops allocate it."""

from __future__ import annotations

import pytest
import torch

import p3kernels
from p3kernels.cpu import native


def test_fresh_float_memory_is_nan():
    like = torch.zeros(3, 2, dtype=torch.float64)
    for fresh in (torch.empty(5), torch.empty_like(like), like.new_empty(4), torch.empty(2, requires_grad=True)):
        assert fresh.isnan().all()
    assert torch.empty(4, dtype=torch.int64).dtype == torch.int64


def test_an_output_that_a_kernel_does_not_write_shows(monkeypatch):
    monkeypatch.setattr(native, "moments_forward", lambda *_: None)
    mean, var = p3kernels.elu_moments(torch.zeros(3), torch.ones(3), backend="cpu")
    assert mean.isnan().all()
    assert var.isnan().all()


@pytest.mark.gpu
def test_gpu_marker_runs_only_with_a_gpu():
    assert torch.zeros(1, device="cuda").is_cuda
