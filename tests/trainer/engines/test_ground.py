"""The ground's look-ups: the C++ kernels against the same in torch."""

import numpy as np
import pytest
import torch

from p3kernels.backends import available_backends
from trainer.engines.ground import MAP_RESOLUTION, Ground
from trainer.tasks.terrains import PIT_FLOOR, make_terrain

needs_kernels = pytest.mark.skipif(
    not available_backends()["cpu"].startswith("available"), reason=f"backend cpu: {available_backends()['cpu']}"
)


def both_ways(monkeypatch):
    tiles = [make_terrain(name, 0.6, np.random.default_rng(0)) for name in ("stairs", "gaps", "single_row_stones")]
    native, plain = Ground(tiles), Ground(tiles)
    assert native._native
    monkeypatch.setattr(plain, "_native", False)
    return native, plain, torch.tensor([0, 1, 2, 1, 0, 2, 2])


def away_from_edges(cell: torch.Tensor) -> torch.Tensor:
    """Where rounding cannot change the cell."""
    return ((cell - cell.round()).abs() > 1e-4).all(-1)


@needs_kernels
@pytest.mark.parametrize("threads", [1, 2])
def test_heights_at_points_are_those_of_torch(monkeypatch, threads):
    native, plain, tile = both_ways(monkeypatch)
    points = 12 * torch.rand(len(tile), 4001, 2, generator=torch.Generator().manual_seed(0)) - 6  # also outside
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found, expected = native.height(tile, points), plain.height(tile, points)
    finally:
        torch.set_num_threads(before)
    sure = away_from_edges(points / MAP_RESOLUTION + native._middle)
    assert sure.float().mean() > 0.99
    assert torch.equal(found[sure], expected[sure])
    assert len(found.unique()) > 5


@needs_kernels
def test_the_scan_is_that_of_torch(monkeypatch):
    native, plain, tile = both_ways(monkeypatch)
    generator = torch.Generator().manual_seed(0)
    heights: set[float] = set()
    for _ in range(20):
        root = 8 * torch.rand(len(tile), 3, generator=generator) - 4
        yaw = 7 * torch.rand(len(tile), generator=generator) - 3.5
        found, expected = native.scan(tile, root, yaw), plain.scan(tile, root, yaw)
        assert (found == expected).float().mean() > 0.999  # points on a cell's edge may round to either side
        heights.update(expected.flatten().tolist())
    assert len(heights) > 5


@needs_kernels
def test_what_is_no_number_is_looked_up_in_the_border(monkeypatch):
    native, _, tile = both_ways(monkeypatch)
    points = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(len(tile), 1)[..., None].repeat(1, 1, 2)
    assert (native.height(tile, points) == PIT_FLOOR).all()


@needs_kernels
def test_no_robots_and_no_points():
    native = Ground([make_terrain("gaps", 0.2, np.random.default_rng(0))])
    none = torch.zeros(0, dtype=torch.int64)
    assert native.scan(none, torch.zeros(0, 3), torch.zeros(0)).shape == (0, 187)
    assert native.height(none + 0, torch.zeros(0, 5, 2)).shape == (0, 5)
    assert native.height(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 0, 2)).shape == (2, 0)


@needs_kernels
def test_what_the_kernels_would_misread_is_refused():
    ground = Ground([make_terrain("gaps", 0.2, np.random.default_rng(0))])
    points = torch.zeros(2, 3, 2)
    with pytest.raises(TypeError, match="expected float32"):
        ground.height(torch.zeros(2, dtype=torch.int64), points.double())
    with pytest.raises(TypeError, match="int64"):
        ground.height(torch.zeros(2, dtype=torch.int32), points)
    for tile in (1, -1):
        with pytest.raises(IndexError, match="expected tiles in"):
            ground.height(torch.full((2,), tile), points)
