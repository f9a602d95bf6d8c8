"""Terrains: the numbers of the module's table, measured on the boxes and again on the height map."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainer.tasks.terrains import HALF_EXTENT, MAX_BOXES, PIT_FLOOR, TERRAINS, Terrain, height_map, make_terrain

RESOLUTION = 0.05
DIFFICULTIES = (0.0, 0.5, 1.0)
PYRAMIDS = ("pyramid_stairs", "inverted_pyramid_stairs")
STAIRS = (*PYRAMIDS, "stairs")
STONES = ("dual_row_stones", "single_row_stones", "sparse_stones")
COURSES = ("stairs", "gaps", *STONES)
ROUNDING = 1e-6
"""Metres: a height map is float32, and no height is above 2 m."""

every_terrain = pytest.mark.parametrize("name", TERRAINS)
every_difficulty = pytest.mark.parametrize("difficulty", DIFFICULTIES)


def build(name: str, difficulty: float, seed: int = 0) -> Terrain:
    return make_terrain(name, difficulty, np.random.default_rng(seed))


def edges(terrain: Terrain) -> tuple[np.ndarray, np.ndarray]:
    """[K, 3] twice: the lowest and the highest corner of every box."""
    return terrain.boxes[:, :3] - terrain.boxes[:, 3:], terrain.boxes[:, :3] + terrain.boxes[:, 3:]


def surface(terrain: Terrain, x: float, y: float) -> float:
    """Top of the highest box over a point, one box after the other."""
    height = PIT_FLOOR
    for cx, cy, cz, hx, hy, hz in terrain.boxes:
        if abs(x - cx) <= hx and abs(y - cy) <= hy:
            height = max(height, cz + hz)
    return height


def tile_map(terrain: Terrain) -> np.ndarray:
    return height_map(terrain, HALF_EXTENT, RESOLUTION)


def along(heights: np.ndarray, y: float) -> np.ndarray:
    """[X]: the heights along x in the cells that hold y."""
    return heights[:, int((y + HALF_EXTENT[1]) / RESOLUTION)]


def pit_lengths(heights: np.ndarray) -> np.ndarray:
    """Lengths, in metres, of the runs of pit that have surface on both sides."""
    edge = np.diff((heights == np.float32(PIT_FLOOR)).astype(int))
    starts, ends = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    return (ends[ends > starts[0]] - starts[: np.sum(starts < ends[-1])]) * RESOLUTION


def stones(terrain: Terrain) -> np.ndarray:
    """[K, 6]: the boxes that are no platform; the platforms' tops are exactly 0, the stones' are jittered."""
    return terrain.boxes[terrain.boxes[:, 2] + terrain.boxes[:, 5] != 0]


@every_terrain
@every_difficulty
def test_tile(name, difficulty):
    terrain = build(name, difficulty)
    assert (terrain.name, terrain.difficulty) == (name, difficulty)
    assert terrain.boxes.dtype == np.float64
    assert terrain.boxes.shape == (len(terrain.boxes), 6)
    assert (terrain.boxes[:, 3:] > 0.05).all()
    low, high = edges(terrain)
    half = np.array(terrain.size) / 2
    assert (half <= HALF_EXTENT).all()
    assert (low[:, :2] >= -half - 1e-12).all()
    assert (high[:, :2] <= half + 1e-12).all()
    assert (low[:, 2] < PIT_FLOOR).all()
    assert (high[:, 2] > PIT_FLOOR + 0.5).all(), "a surface so deep is hard to tell from the pit"


@every_terrain
def test_kind_of_tile(name):
    terrain = build(name, 0.3)
    if name in COURSES:
        assert terrain.size == (10, 4)
        assert -0.2 < terrain.heading[0] < 0 < terrain.heading[1] < 0.2
    else:
        assert terrain.size == ((10, 8) if name == "flat" else (8, 8))
        assert terrain.heading == (-math.pi, math.pi)


def test_box_count():
    counts = {
        name: max(len(build(name, level / 200, seed).boxes) for level in range(201) for seed in range(3))
        for name in TERRAINS
    }
    assert max(counts.values()) == MAX_BOXES, counts
    assert MAX_BOXES <= 96


@every_terrain
@every_difficulty
def test_spawn_is_flat(name, difficulty):
    terrain = build(name, difficulty)
    x, y, z = terrain.spawn
    around = np.linspace(-0.6, 0.6, 25)
    heights = [surface(terrain, x + dx, y + dy) for dx in around for dy in around]
    np.testing.assert_allclose(heights, z, atol=ROUNDING)
    cells = tile_map(terrain)
    i, j = int((x + HALF_EXTENT[0]) / RESOLUTION), int((y + HALF_EXTENT[1]) / RESOLUTION)
    np.testing.assert_allclose(cells[i - 10 : i + 10, j - 10 : j + 10], z, atol=ROUNDING)


@every_terrain
@every_difficulty
def test_goal_has_surface(name, difficulty):
    """On a course the end platform is all that is so far away; on the other tiles every direction has surface."""
    terrain = build(name, difficulty)
    x, y, _ = terrain.spawn
    angles = np.linspace(-math.pi, math.pi, 181)
    ring = [(x + terrain.goal_distance * math.cos(a), y + terrain.goal_distance * math.sin(a)) for a in angles]
    inside = [(gx, gy) for gx, gy in ring if abs(gx) <= terrain.size[0] / 2 and abs(gy) <= terrain.size[1] / 2]
    heights = np.array([surface(terrain, gx, gy) for gx, gy in inside])
    if name in COURSES:
        assert inside
        assert all(gx > 3 for gx, _ in inside)
        np.testing.assert_allclose(heights, 0, atol=ROUNDING)
    else:
        assert len(inside) == len(ring)
        assert (heights > PIT_FLOOR).all()
    goal = (x + terrain.goal_distance, y)
    end = [surface(terrain, goal[0] + dx, goal[1] + dy) for dx in (-0.35, 0, 0.4) for dy in (-0.5, 0, 0.5)]
    np.testing.assert_allclose(end, end[0], atol=ROUNDING)


def test_flat_is_one_box():
    terrain = build("flat", 0.7)
    assert len(terrain.boxes) == 1
    assert (tile_map(terrain) == 0).all()


@pytest.mark.parametrize(("difficulty", "riser"), [(0.0, 0.05), (0.5, 0.135), (1.0, 0.22)])
@pytest.mark.parametrize("name", STAIRS)
def test_risers(name, difficulty, riser):
    terrain = build(name, difficulty)
    tops = np.unique(np.round(edges(terrain)[1][:, 2], 9))
    np.testing.assert_allclose(tops, riser * np.arange(9), atol=1e-9)
    heights = tile_map(terrain)
    slices = {"x": along(heights, 0.01)}
    if name in PYRAMIDS:
        slices = {"x": slices["x"][20:-20], "y": heights[heights.shape[0] // 2]}
    for line in slices.values():
        steps = np.diff(line)
        places = np.flatnonzero(np.abs(steps) > ROUNDING)
        np.testing.assert_allclose(np.abs(steps[places]), riser, atol=ROUNDING)
        expected = np.repeat([-riser, riser] if name == "inverted_pyramid_stairs" else [riser, -riser], 8)
        np.testing.assert_allclose(steps[places], expected, atol=ROUNDING)
        treads = np.diff(places) * RESOLUTION
        np.testing.assert_allclose(np.delete(treads, 7), 0.3, atol=1e-9)  # the 8th is the platform in the middle
        assert treads[7] > 1.2


@pytest.mark.parametrize("name", PYRAMIDS)
def test_pyramids_look_the_same_from_all_sides(name):
    heights = tile_map(build(name, 0.6))[20:-20]
    for turned in (np.rot90(heights), heights[::-1], heights[:, ::-1]):
        np.testing.assert_array_equal(turned, heights)


def test_pyramid_spawns():
    assert build("pyramid_stairs", 1.0).spawn == (0, 0, pytest.approx(8 * 0.22))
    assert build("inverted_pyramid_stairs", 1.0).spawn == (0, 0, 0)


@pytest.mark.parametrize(("difficulty", "gap", "platform"), [(0.0, 0.1, 1.0), (0.5, 0.4, 0.8), (1.0, 0.7, 0.6)])
def test_gap_widths(difficulty, gap, platform):
    terrain = build("gaps", difficulty)
    low, high = edges(terrain)
    order = np.argsort(low[:, 0])
    widths = low[order[1:], 0] - high[order[:-1], 0]
    assert len(widths) >= 3
    np.testing.assert_allclose(widths, gap, atol=1e-9)
    lengths = (high - low)[order[1:-1], 0]
    assert (lengths >= 0.8 * platform).all()
    assert (lengths <= 1.2 * platform).all()
    for y in (-1.9, 0.01, 1.9):
        measured = pit_lengths(along(tile_map(terrain), y))
        assert len(measured) == len(widths)
        np.testing.assert_allclose(measured, gap, atol=RESOLUTION + 1e-9)


@pytest.mark.parametrize(("difficulty", "size"), [(0.0, 0.55), (0.5, 0.385), (1.0, 0.22)])
@pytest.mark.parametrize("name", STONES)
def test_stone_sizes(name, difficulty, size):
    terrain = build(name, difficulty)
    across = 0.8 - 0.5 * difficulty if name == "single_row_stones" else size
    found = stones(terrain)
    assert len(found) >= 9
    np.testing.assert_allclose(2 * found[:, 3:5], [[size, across]] * len(found), atol=1e-9)
    jitter = 0.01 + 0.03 * difficulty
    tops = found[:, 2] + found[:, 5]
    assert np.abs(tops).max() <= jitter
    assert np.ptp(tops) > 0.5 * jitter
    heights = tile_map(terrain)[40:]
    area = np.sum((heights != np.float32(PIT_FLOOR)) & (heights != 0)) * RESOLUTION**2
    # A stone's area in whole cells is off by at most the cells that its outline crosses.
    assert area == pytest.approx(len(found) * size * across, abs=len(found) * 2 * (size + across) * RESOLUTION)


@pytest.mark.parametrize(("difficulty", "gap"), [(0.0, 0.05), (0.5, 0.2), (1.0, 0.35)])
@pytest.mark.parametrize("name", ["dual_row_stones", "single_row_stones"])
def test_gaps_in_rows(name, difficulty, gap):
    terrain = build(name, difficulty)
    low, high = edges(terrain)
    size = 0.55 - 0.33 * difficulty
    for side in (-1, 1) if name == "dual_row_stones" else (1,):
        y = side * (0.04 + size / 4)  # over every stone of its row, off the other
        row = np.flatnonzero((low[:, 1] < y) & (y < high[:, 1]))
        row = row[np.argsort(low[row, 0])]
        widths = low[row[1:], 0] - high[row[:-1], 0]
        pits = widths > 1e-9  # a ledge abuts its platform
        np.testing.assert_allclose(widths[~pits], 0, atol=1e-9)
        np.testing.assert_allclose(widths[pits], gap, atol=1e-9)
        assert pits.sum() == 10
        measured = pit_lengths(along(tile_map(terrain), y))
        assert len(measured) == 10
        np.testing.assert_allclose(measured, gap, atol=RESOLUTION + 1e-9)


@pytest.mark.parametrize(("difficulty", "between"), [(0.0, 0.05), (0.5, 0.065), (1.0, 0.08)])
def test_dual_rows_are_staggered(difficulty, between):
    found = stones(build("dual_row_stones", difficulty))
    left, right = found[found[:, 1] > 0], found[found[:, 1] < 0]
    assert len(left) == len(right) == 9
    np.testing.assert_allclose(left[:, 1] - left[:, 4] - (right[:, 1] + right[:, 4]), between, atol=1e-9)
    pitch = left[1, 0] - left[0, 0]
    assert pitch == pytest.approx(0.6 - 0.03 * difficulty)
    np.testing.assert_allclose(right[:, 0] - left[:, 0], pitch / 2, atol=1e-9)


@every_difficulty
def test_single_row_is_on_the_centre_line(difficulty):
    y = stones(build("single_row_stones", difficulty))[:, 1]
    assert np.abs(y).max() <= 0.05 * difficulty
    assert (np.ptp(y) > 0) == (difficulty > 0)


@pytest.mark.parametrize("seed", range(10))
@every_difficulty
def test_sparse_stones_can_be_crossed(difficulty, seed):
    """From the start platform to the end platform by steps over no more than the gap and the jitter of both stones."""
    terrain = build("sparse_stones", difficulty, seed)
    low, high = edges(terrain)
    reach = 0.05 + 0.25 * difficulty + 2 * 0.05 * difficulty + 1e-9
    apart = np.maximum(0, np.maximum(low[:, None, :2] - high[None, :, :2], low[None, :, :2] - high[:, None, :2]))
    # Both ways at once would be a diagonal step; jitter alone makes an offset that small across.
    near = (apart.max(-1) <= reach) & (apart.min(-1) == 0)
    seen = np.zeros(len(low), dtype=bool)
    seen[np.argmin(low[:, 0])] = True
    for _ in range(len(low)):
        seen |= near[seen].any(0)
    assert seen[np.argmax(high[:, 0])]
    assert not near[np.argmin(low[:, 0]), np.argmax(high[:, 0])]


@pytest.mark.parametrize(("difficulty", "missing"), [(0.0, 0), (0.5, 9), (1.0, 18)])
def test_sparse_stones_are_missing(difficulty, missing):
    terrain = build("sparse_stones", difficulty)
    found = stones(terrain)
    rows = 9 if difficulty == 0 else 10
    assert len(found) == 5 * rows - missing
    pitch = 0.6 - 0.08 * difficulty
    offset = found[:, 1] - pitch * np.round(found[:, 1] / pitch)
    assert np.abs(offset).max() <= 0.05 * difficulty + 1e-9
    assert (np.abs(offset).max() > 0.01) == (difficulty > 0)


@pytest.mark.parametrize("name", ["gaps", *STONES])
@pytest.mark.parametrize("seed", range(3))
def test_harder_has_less_surface(name, seed):
    field = (slice(40, 140), slice(60, 100))  # |y| <= 1 and x from the start platform to 2
    fractions = [(tile_map(build(name, d, seed))[field] > PIT_FLOOR).mean() for d in np.linspace(0, 1, 5)]
    assert (np.diff(fractions) < 0).all(), fractions
    assert fractions[0] < 1


@pytest.mark.parametrize("name", STAIRS)
def test_harder_is_higher(name):
    heights = [np.ptp(edges(build(name, d))[1][:, 2]) for d in np.linspace(0, 1, 11)]
    assert (np.diff(heights) > 0.1).all()


@every_terrain
@every_difficulty
def test_tops_do_not_overlap_in_one_plane(name, difficulty):
    low, high = edges(build(name, difficulty))
    overlap = np.minimum(high[:, None, :2], high[None, :, :2]) - np.maximum(low[:, None, :2], low[None, :, :2])
    same_top = np.abs(high[:, None, 2] - high[None, :, 2]) < 1e-9
    pairs = (overlap > 1e-9).all(-1) & same_top
    assert np.array_equal(pairs, np.eye(len(low), dtype=bool))


@every_terrain
@every_difficulty
def test_seeds(name, difficulty):
    first, again, other = (build(name, difficulty, seed).boxes for seed in (5, 5, 6))
    assert np.array_equal(first, again)
    assert np.array_equal(first, other) == (name not in ("gaps", *STONES))


def test_a_generator_goes_on():
    rng = np.random.default_rng(0)
    first, second = (make_terrain("sparse_stones", 0.5, rng).boxes for _ in range(2))
    assert not np.array_equal(first, second)


@every_terrain
@every_difficulty
def test_height_map_against_points(name, difficulty):
    terrain = build(name, difficulty, seed=3)
    heights = tile_map(terrain)
    assert heights.dtype == np.float32
    assert heights.shape == (200, 160)
    rng = np.random.default_rng(1)
    cells = np.stack([rng.integers(200, size=400), rng.integers(160, size=400)], axis=1)
    points = -np.array(HALF_EXTENT) + (cells + 0.5) * RESOLUTION
    # On an edge, rounding decides; a point that is moved by less than that must agree too.
    agrees = [
        any(abs(heights[i, j] - surface(terrain, x + d, y + d)) < ROUNDING for d in (0, 1e-8, -1e-8))
        for (i, j), (x, y) in zip(cells, points, strict=True)
    ]
    assert all(agrees)


def tile_of(*boxes: tuple[float, ...]) -> Terrain:
    return Terrain("flat", 0.0, np.array(boxes), (4.0, 4.0), (0.0, 0.0, 0.0), (0.0, 0.0), 1.0)


def test_height_map_by_hand():
    terrain = tile_of((0.5, -0.5, -1.0, 0.5, 0.5, 0.7))
    np.testing.assert_allclose(height_map(terrain, (1.0, 1.0), 1.0), [[-1, -1], [-0.3, -1]], rtol=1e-6)
    np.testing.assert_allclose(height_map(terrain, (1.0, 1.0), 1.0, floor=-9), [[-9, -9], [-0.3, -9]], rtol=1e-6)
    assert height_map(terrain, (1.5, 0.5), 0.1).shape == (30, 10)
    deep = tile_of((0.5, -0.5, -5.0, 0.5, 0.5, 0.5))  # below the floor, but a box
    np.testing.assert_allclose(height_map(deep, (1.0, 1.0), 1.0), [[-1, -1], [-4.5, -1]])


def test_height_map_has_no_slits():
    """Two boxes that abut at x = 0.5, where a cell has its centre, but for the rounding of their edges."""
    slit = 1e-12
    terrain = tile_of((-0.25 - slit, 0.0, -0.5, 0.75, 1.0, 0.5), (1.25 + slit, 0.0, -0.5, 0.75, 1.0, 0.5))
    np.testing.assert_allclose(height_map(terrain, (2.0, 1.0), 1.0), [[-1, -1], [0, 0], [0, 0], [0, 0]])


@pytest.mark.parametrize(
    ("half_extent", "resolution", "message"),
    [
        ((5.0, 4.0), 0.0, "resolution: expected a finite number > 0, got 0.0"),
        ((5.0, 4.0), math.nan, "resolution: expected a finite number > 0, got nan"),
        ((5.0, -4.0), 0.05, "half_extent: expected finite numbers > 0, got -4.0"),
        ((math.inf, 4.0), 0.05, "half_extent: expected finite numbers > 0, got inf"),
        ((5.0, 4.0), 0.3, "half_extent: expected twice 5.0 to be a whole number of cells of 0.3"),
        ((0.1, 4.0), 1.0, "half_extent: expected twice 0.1 to be a whole number of cells of 1.0"),
    ],
)
def test_bad_maps(half_extent, resolution, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        height_map(build("flat", 0.0), half_extent, resolution)


def test_unknown_name():
    with pytest.raises(ValueError, match=r"name: expected one of flat, .*, got 'pyramid_stair' \(did you mean 'pyr"):
        build("pyramid_stair", 0.5)
    with pytest.raises(ValueError, match=r"got 'xyz'$"):
        build("xyz", 0.5)


@pytest.mark.parametrize("difficulty", [-0.01, 1.01, math.nan, math.inf])
@every_terrain
def test_bad_difficulty(name, difficulty):
    with pytest.raises(ValueError, match=r"difficulty: expected a number in \[0, 1\], got"):
        build(name, difficulty)
