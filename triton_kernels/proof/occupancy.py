"""How many warps of a kernel an SM can hold, from what the compiled kernel needs."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True)
class SmLimits:
    """One SM's resources, from the CUDA programming guide's table of compute capabilities."""

    warps: int
    blocks: int
    shared_bytes: int
    """Shared memory of the SM, which its blocks divide."""
    shared_bytes_per_block: int
    """The most one block may ask for."""
    reserved_shared_bytes: int = KIB
    """Taken by the system for every block."""
    registers: int = 65536
    register_granularity: int = 256
    """Registers are handed to a warp in multiples of this."""


LIMITS = {
    "sm_80": SmLimits(warps=64, blocks=32, shared_bytes=164 * KIB, shared_bytes_per_block=163 * KIB),
    "sm_90": SmLimits(warps=64, blocks=32, shared_bytes=228 * KIB, shared_bytes_per_block=227 * KIB),
    "sm_120": SmLimits(warps=48, blocks=24, shared_bytes=100 * KIB, shared_bytes_per_block=99 * KIB),
}


def fits(arch: str, shared_bytes: int) -> bool:
    """Whether a block may have that much shared memory; a launch that may not fails."""
    return shared_bytes <= LIMITS[arch].shared_bytes_per_block


def blocks_per_sm(arch: str, registers: int, shared_bytes: int, num_warps: int) -> int:
    """Blocks that are resident on one SM at once; 0 for a block that does not fit.

    Args:
        arch: A key of `LIMITS`.
        registers: For each thread.
        shared_bytes: For each block, without the system's own.
        num_warps: For each block.
    """
    limits = LIMITS[arch]
    if not fits(arch, shared_bytes):
        return 0
    granules = -(-registers * 32 // limits.register_granularity)
    by_registers = limits.registers // max(granules * limits.register_granularity * num_warps, 1)
    by_shared = limits.shared_bytes // (shared_bytes + limits.reserved_shared_bytes)
    return min(limits.blocks, limits.warps // num_warps, by_registers, by_shared)


def occupancy(arch: str, registers: int, shared_bytes: int, num_warps: int) -> float:
    """Resident warps over the most that an SM holds: 0 to 1."""
    return blocks_per_sm(arch, registers, shared_bytes, num_warps) * num_warps / LIMITS[arch].warps
