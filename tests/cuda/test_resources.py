"""What nvcc makes of the kernels: no spills, and the shared memory that the documentation states."""

from __future__ import annotations

import shutil

import pytest

from p3kernels.cuda.resources import G1_SHARED_BYTES, compile_for, parse, table
from triton_kernels.proof.actor import ACTOR

CONTEXT = 99

SAID = """
ptxas info    : Compiling entry function '_ZN2p34cuda5entryINS0_10MlpActionsINS0_4TileILi16EEENS0_4Bf16EEEEEvNT_9ArgumentsE' for 'sm_90'
ptxas info    : Function properties for x
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 237 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN2p34cuda5entryINS0_10MlpMomentsINS0_4TileILi8EEEfEEEEvNT_9ArgumentsE' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 183 registers, used 1 barriers
ptxas info    : Compiling entry function '_ZN2p34cuda5entryINS0_14MixtureForwardEEEvNT_9ArgumentsE' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 86 registers, used 0 barriers
"""  # noqa: E501


def test_reads_what_ptxas_says(no_shim):
    found = {one.kernel: one for one in parse(SAID)}
    assert set(found) == {"MlpActions<Tile<16>, Bf16>", "MlpMoments<Tile<8>, float>", "MixtureForward"}
    spilling = found["MlpActions<Tile<16>, Bf16>"]
    assert (spilling.registers, spilling.spilled_bytes, spilling.stack_bytes) == (237, 16, 8)
    assert found["MlpMoments<Tile<8>, float>"].registers == 183
    assert "MixtureForward" in table("sm_90", list(found.values()))


@pytest.mark.parametrize("tile", [8, 16])
def test_shared_memory_of_the_g1_actor(shim, tile):
    rows = 4096 if tile == 16 else 8
    assert shim.moments_tile(list(ACTOR), rows, 132, 227 * 1024) == (tile, G1_SHARED_BYTES["MlpMoments", tile])
    assert shim.actions_tile(list(ACTOR), CONTEXT, rows, 132, 227 * 1024) == (tile, G1_SHARED_BYTES["MlpActions", tile])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_no_kernel_spills_on_hopper(no_shim, capsys):
    found = compile_for("sm_90")
    with capsys.disabled():
        print("\n" + table("sm_90", found))
    assert len(found) == 18
    for one in found:
        assert (one.spilled_bytes, one.stack_bytes) == (0, 0), one
        blocks = one.blocks("sm_90")
        assert blocks >= 2, one
