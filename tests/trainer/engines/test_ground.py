"""The ground's look-ups: the C++ kernels against the same in torch."""

import numpy as np
import pytest
import torch

from p3kernels.backends import available_backends
from p3kernels.cpu import native as kernels
from trainer.engines.ground import MAP_RESOLUTION, Ground
from trainer.engines.mjcf.model import build_model
from trainer.engines.mjcf.reading import StateReader
from trainer.tasks.robots import G1, WALKER
from trainer.tasks.terrains import PIT_FLOOR, make_terrain

needs_kernels = pytest.mark.skipif(
    not available_backends()["cpu"].startswith("available"), reason=f"backend cpu: {available_backends()['cpu']}"
)


def both_ways(monkeypatch):
    tiles = [make_terrain(name, 0.6, np.random.default_rng(0)) for name in ("stairs", "gaps", "single_row_stones")]
    native, plain = Ground(tiles), Ground(tiles)
    assert native.native
    monkeypatch.setattr(plain, "native", False)
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
        found, expected = (ground.scan(tile, root, (yaw.cos(), yaw.sin())) for ground in (native, plain))
        assert (found == expected).float().mean() > 0.999  # points on a cell's edge may round to either side
        heights.update(expected.flatten().tolist())
    assert len(heights) > 5


def states(monkeypatch, robot, count=60):
    """What a reader gives of random numbers: by the kernels, and by torch."""
    tiles = [make_terrain(name, 0.3, np.random.default_rng(0)) for name in ("stairs", "gaps", "single_row_stones")]
    model = build_model(robot, tiles[0])
    reader, generator = StateReader(model, robot), torch.Generator().manual_seed(0)
    qpos, qvel, sensors = (torch.randn(count, n, generator=generator) for n in (model.nq, model.nv, model.nsensordata))
    if not robot.planar:
        qpos[:, 3:7] /= qpos[:, 3:7].norm(dim=-1, keepdim=True)
    sensors *= 3.0 ** torch.randint(-2, 2, sensors.shape, generator=generator)  # feet in contact, and not
    by_torch = Ground(tiles)
    monkeypatch.setattr(by_torch, "native", False)
    tile, dynamics = torch.arange(count) % len(tiles), torch.zeros(count, 5)
    return [reader.read(qpos, qvel, sensors, ground, tile, dynamics) for ground in (Ground(tiles), by_torch)]


@needs_kernels
@pytest.mark.parametrize("robot", [G1, WALKER], ids=["g1", "walker"])
def test_what_follows_from_a_state_is_that_of_torch(monkeypatch, robot):
    found, expected = states(monkeypatch, robot)
    names = ["yaw", "tilt", "uprightness", "gravity", "body_velocity", "planar_velocity"]
    names += ["foot_contact", "foot_speed", "foot_height"]
    assert {*names, "ground_below", "cos_yaw", "sin_yaw"} == found._derived.keys(), "told, and not computed again"
    for name in (*vars(found), *names):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), atol=2e-5, rtol=1e-5, msg=name)
    for ours, theirs in zip(found.facing, expected.facing, strict=True):
        torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(found.ground_below(), expected.ground_below())
    assert found.foot_contact.float().mean() not in (0.0, 1.0)
    assert len(found.ground_below().unique()) > 5


@needs_kernels
def test_what_is_no_number_is_looked_up_in_the_border(monkeypatch):
    native, _, tile = both_ways(monkeypatch)
    points = torch.tensor([torch.nan, torch.inf, -torch.inf]).repeat(len(tile), 1)[..., None].repeat(1, 1, 2)
    assert (native.height(tile, points) == PIT_FLOOR).all()


@needs_kernels
def test_no_robots_and_no_points():
    native = Ground([make_terrain("gaps", 0.2, np.random.default_rng(0))])
    none = torch.zeros(0, dtype=torch.int64)
    assert native.scan(none, torch.zeros(0, 3), (torch.zeros(0), torch.zeros(0))).shape == (0, 187)
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


@needs_kernels
def test_states_that_the_kernels_would_misread_are_refused():
    quat, velocity = torch.zeros(2, 4), torch.zeros(2, 3)
    with pytest.raises(TypeError, match=r"orientation: expected float32, got torch\.float64"):
        kernels.orientation(quat.double(), velocity)
    with pytest.raises(ValueError, match=r"orientation: expected shape \(2, 3\), got \(3, 3\)"):
        kernels.orientation(quat, torch.zeros(3, 3))
    with pytest.raises(ValueError, match="orientation: expected contiguous rows"):
        kernels.orientation(torch.zeros(4, 2).t(), velocity)
    ground = Ground([make_terrain("gaps", 0.2, np.random.default_rng(0))])
    foot, sole = torch.zeros(2, 2, 3), torch.zeros(2, 2, 5, 3)
    with pytest.raises(ValueError, match="feet: expected the tiles of 2 robots, got 1"):
        ground.feet(torch.zeros(1, dtype=torch.int64), foot, sole, foot, foot)
    with pytest.raises(IndexError, match="height maps: expected tiles"):
        ground.feet(torch.tensor([0, 1]), foot, sole, foot, foot)
    with pytest.raises(ValueError, match=r"height_scan: expected shape \(2, 3\)"):
        ground.scan(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2), (torch.ones(2), torch.zeros(2)))
