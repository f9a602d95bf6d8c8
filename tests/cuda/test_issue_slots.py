"""The model of the one CUDA launch: trips by hand, and what nvcc makes of the kernel against the committed table."""

from __future__ import annotations

import itertools
import shutil

import pytest
import torch

from p3kernels.cuda import issue_slots, one_launch
from p3kernels.cuda.issue_slots import Rollout, Tile
from triton_kernels.proof import model
from triton_kernels.proof.actor import ACTOR
from triton_kernels.proof.sass import Code


def test_stages_by_hand(no_shim):
    """209 → 512 → 256 → 128 → 29, 99 of the inputs deterministic."""
    assert (Tile(16).columns, Tile(16).depth) == (256, 8)
    assert issue_slots.stages(Tile(16)) == (2 * 27 + 64 + 32 + 16, 2 * 12)
    assert (Tile(8).columns, Tile(8).depth) == (512, 4)
    assert issue_slots.stages(Tile(8)) == (53 + 128 + 64 + 32, 24)


def test_time_by_hand(no_shim):
    """1,755 instructions a warp take a scheduler one microsecond."""
    assert Rollout(8, Tile(8), 1755.0).busiest_us == pytest.approx(1)
    assert Rollout(8 * 132 + 1, Tile(8), 1755.0).busiest_us == pytest.approx(2)
    record = Rollout(16 * 132, Tile(16), 1755.0).record()
    assert record["issue_us"] == pytest.approx(1)
    assert record["instructions_per_activation"] == pytest.approx(1755 * 128 / (16 * 896))


def test_loops_of_another_kernel_are_not_counted(no_shim):
    assert issue_slots.warp_instructions(Code(("EXIT",), (True,), ()), Tile(16)) is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_a_change_that_costs_shows(no_shim, capsys):
    """What is meant to cost is accepted by `python -m p3kernels.cuda.issue_slots --table`."""
    few, many = issue_slots.rollouts(rows=(1024, 4096))
    with capsys.disabled():
        print(f"\n{model.table([many.record()])}")
    assert model.dearer([many.record()]) == []
    assert (few.tile.rows, many.tile.rows) == (8, 16)
    assert few.issued < many.issued < 2 * few.issued, "else the choice of tiles is wrong"


@pytest.mark.parametrize(("rows", "preferred"), [(1, True), (1056, True), (1057, True), (2112, True), (2113, False)])
def test_triton_takes_what_no_multiprocessor_does_in_one_tile(shim, rows, preferred):
    """The shim says that it has an H100's 132 multiprocessors."""
    weights = [torch.empty(outputs, inputs) for inputs, outputs in itertools.pairwise(ACTOR)]
    assert one_launch.moments_before_triton(torch.empty(rows, ACTOR[0]), weights) == preferred
    assert one_launch.moments_fit(torch.empty(rows, ACTOR[0]), weights)
