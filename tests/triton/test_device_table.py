"""The table that `p3 bench --device cuda` measures, with the interpreter in the GPU's place and a small actor."""

from __future__ import annotations

import pytest
import torch

from p3kernels.bench import actor, device, paper
from p3kernels.bench.entry import Size

SIZES = (7, 6, 5, 3)


@pytest.fixture
def small_actor(monkeypatch):
    def inputs(size: Size) -> dict[str, torch.Tensor]:
        source = actor.generator()
        mean = torch.randn(size.batch, SIZES[0], generator=source)
        var = 0.2 + torch.rand(size.batch, 4, generator=source)
        return {"mean": mean, "var": var} | actor.parameters(SIZES)

    monkeypatch.setattr(device, "moment_inputs", inputs)


def test_a_precision_is_compared_then_timed(small_actor):
    rows = device.measure(5, repeats=1, compile=False, precisions=("ieee", "bf16"), device="cpu", verify_rows=5)
    assert [row.name for row in rows] == ["eager torch", "ours, ieee", "ours, bf16"]
    for row in rows:
        assert row.skipped is None, row
        assert 0 < row.best_ms <= row.median_ms
    errors = {row.name: row.error for row in rows[1:]}
    assert 0 < errors["ours, ieee"] < 1e-5
    assert errors["ours, ieee"] < errors["ours, bf16"] < 2e-2
    assert len({len(line) for line in device.format_rows(rows).splitlines()}) == 1


def test_a_wrong_result_is_not_timed(small_actor, monkeypatch):
    right = device.ours

    def wrong(precision):
        def forward(tensors, size):
            mean, var = right(precision)(tensors, size)
            return mean * 1.001, var

        return forward

    monkeypatch.setattr(device, "ours", wrong)
    (_, row) = device.measure(5, repeats=1, compile=False, precisions=("ieee",), device="cpu", verify_rows=5)
    assert row.skipped.startswith("wrong: error")
    assert row.best_ms is None


def test_the_fair_rival_is_timed_at_torchs_own_precision(small_actor, monkeypatch):
    settings = {}

    def run(name, build, repeats, where, graph=False):
        settings[name] = torch.get_float32_matmul_precision()
        return device.Row(name)

    monkeypatch.setattr(device, "_run", run)
    before = torch.get_float32_matmul_precision()
    device.measure(5, repeats=1, compile=False, precisions=(), device="cuda")
    assert settings == {
        "eager torch": before,
        "cuBLAS and elementwise, ieee": "highest",
        "cuBLAS and elementwise, tf32": "high",
    }
    assert torch.get_float32_matmul_precision() == before


def test_paper_table_meets_its_bars():
    text, met = paper.report()
    assert "on paper, not measured" in text
    assert met, text
    assert set(paper.ours_on_paper()) >= {"ieee", "tf32"}
