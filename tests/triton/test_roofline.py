"""The bound on paper: its arithmetic on hand-made launches, and the bars on the kernels of the package."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import pytest

from triton_kernels.proof import roofline
from triton_kernels.proof.cases import Case, collect
from triton_kernels.proof.costs import Cost
from triton_kernels.proof.record import Launch


def fwd_kernel() -> None: ...


COST = Cost(3_350_000, 3_000_000, 5_500_000, 67_000_000, True, 0, ())
KERNEL = SimpleNamespace(fn=fwd_kernel)
CASE = Case(Launch(KERNEL, 1, {}, {"num_warps": 4}), "ieee", "B=24576 I=209 O=512", COST, {"mm_train": 2})


def test_least_time_is_the_greater_of_the_two():
    """3.35 MB take 1 us, 67 MFLOP take 1 us as fp32; twice."""
    (step,) = roofline.steps([CASE], "ieee")
    assert (step.launches, step.bytes_moved, step.compulsory_bytes, step.flops) == (
        2,
        6_700_000,
        6_000_000,
        134_000_000,
    )
    assert step.memory_us == pytest.approx(2)
    assert step.math_us == pytest.approx(2)
    (heavier,) = roofline.steps(
        [dataclasses.replace(CASE, cost=dataclasses.replace(COST, flops=3 * COST.flops))], "ieee"
    )
    assert heavier.least_us == pytest.approx(6)
    (on_cores,) = roofline.steps([dataclasses.replace(CASE, precision="tf32")], "tf32")
    assert on_cores.math_us == pytest.approx(2 * 67 / 495)
    assert on_cores.least_us == pytest.approx(2)


def test_only_launches_of_the_pass_count():
    assert roofline.steps([dataclasses.replace(CASE, launches={"rollout": 1})], "ieee") == []
    assert roofline.steps([CASE], "tf32") == []


def test_layer_by_layer_traffic_by_hand():
    """Two layers 3 → 2 → 1 on one row, the last input stochastic."""
    first_forward = (3 + 1) + 3 * 2 + 2 + 2 * 2 + 2 * 2  # inputs, weight, bias, pre-activation, output
    last_forward = 2 * 2 + 2 * 1 + 1 + 2 * 1
    last_backward = 2 * 1 + 2 * 2 + 2 * 1 + 2 * 2 + 2 * 1 + 1  # d_out, input, weight, d_input, d_weight, d_bias
    first_backward = 2 * 2 + 2 * 2 + (3 + 1) + 6 + (3 + 1) + 6 + 2
    expected = 4 * (first_forward + last_forward + last_backward + first_backward)
    assert roofline.layer_by_layer_bytes(1, (3, 2, 1), 1) == expected
    never_stored = roofline.layer_by_layer_bytes(1, (3, 2, 1), 1, activations_stored=False)
    assert never_stored == expected - 4 * 2 * 2


def test_bars_fail_when_they_should():
    (step,) = roofline.steps([CASE], "ieee")
    assert [met for met, _ in roofline.bars([step])] == [True, True]
    least = roofline.layer_by_layer_bytes()
    assert not roofline.bars([dataclasses.replace(step, bytes_moved=int(1.31 * least))])[0][0]
    assert not roofline.bars([dataclasses.replace(step, launches=13)])[1][0]
    assert roofline.verdict(False, "x").startswith("NOT MET")


@pytest.mark.parametrize("precision", ["ieee", "tf32"])
def test_bars_of_the_package(precision):
    found = roofline.steps(collect("sm_90"), precision)
    assert found
    for met, text in roofline.bars(found):
        assert met, text


def test_command(tmp_path, capsys):
    path = tmp_path / "roofline.json"
    assert roofline.main(["--precision", "ieee", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "on paper, not measured" in printed
    assert "NOT MET" not in printed
    saved = json.loads(path.read_text())["ieee"]
    assert sum(step["launches"] for step in saved) <= roofline.MOST_LAUNCHES
