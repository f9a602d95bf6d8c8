"""The paper's seven terrains and a flat one, as axis-aligned boxes; an engine turns the boxes into its own geometry.

A terrain is a tile: metres, z up, the tile's middle at x = y = 0, boxes and nothing else. Where there is no box there
is a pit, which a height scan sees at PIT_FLOOR; no surface lies as deep as that, so a robot down there has fallen.

Difficulty 0 and 1, linear between (the paper gives the kinds, not the numbers; these are ours, for a humanoid of 1.3 m
with feet of 0.2 m at up to 1 m/s):

| name                    | parameter                             | 0      | 1      |
|-------------------------|---------------------------------------|--------|--------|
| flat                    | nothing changes                       |        |        |
| pyramid_stairs          | riser, 8 down from the top            | 0.05 m | 0.22 m |
| inverted_pyramid_stairs | riser, 8 up from the bottom           | 0.05 m | 0.22 m |
| stairs                  | riser, 8 up, a landing, 8 down        | 0.05 m | 0.22 m |
| gaps                    | gap                                   | 0.10 m | 0.70 m |
|                         | platform between gaps, ± 20 %         | 1.00 m | 0.60 m |
| dual_row_stones         | stone, square                         | 0.55 m | 0.22 m |
|                         | gap along a row                       | 0.05 m | 0.35 m |
|                         | gap between the rows                  | 0.05 m | 0.08 m |
| single_row_stones       | stone, along the row                  | 0.55 m | 0.22 m |
|                         | stone, across the row                 | 0.80 m | 0.30 m |
|                         | gap                                   | 0.05 m | 0.35 m |
|                         | sideways jitter, ±                    | 0      | 0.05 m |
| sparse_stones           | stone, square                         | 0.55 m | 0.22 m |
|                         | gap, both ways, before jitter         | 0.05 m | 0.30 m |
|                         | jitter, both ways, ±                  | 0      | 0.05 m |
|                         | share of the grid's stones missing    | 0      | 35 %   |
| all stones              | height jitter, ±                      | 0.01 m | 0.04 m |

Treads are 0.30 m deep. The pyramids are 8 x 8 m tiles, the robot starts in the middle and may leave in any direction.
The courses are 10 x 4 m, from a platform of 2 x 4 m along +x to another one. The flat tile is 10 x 8 m.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from trainer.config.names import did_you_mean

PIT_FLOOR = -1.0
"""Height, in metres, that a height scan sees where there is no box."""
HALF_EXTENT = (5.0, 4.0)
"""Half the x and y extent that every tile fits in: given to `height_map`, all maps have one shape."""
MAX_BOXES = 50
"""No terrain has more boxes; engines pad to it. The sparse stones reach it, where a tenth row first fits."""

_BOTTOM = PIT_FLOOR - 0.5  # every box reaches below the pit's floor, so that no foot tunnels through or gets under one
_ANY_HEADING = (-math.pi, math.pi)
_COURSE_HEADING = (-0.1, 0.1)
_PYRAMID_HALF = 4.0
_PYRAMID_PLATFORM_HALF = 1.0
_COURSE_HALF = (5.0, 2.0)
_FIELD_HALF = 3.0  # a course's obstacles lie in |x| <= this; its platforms beyond
_COURSE_SPAWN_X = -4.0
_COURSE_GOAL_DISTANCE = 7.5  # half a metre onto the end platform
_RISERS = 8
_TREAD = 0.3
_SPARSE_COLUMNS = 5


@dataclass(frozen=True, eq=False)
class Terrain:
    """One tile; equal only to itself, because arrays have no single truth."""

    name: str
    """Its key in TERRAINS."""
    difficulty: float
    """In [0, 1]."""
    boxes: np.ndarray
    """[K, 6] float64: centre x, y, z, then half sizes x, y, z; axis-aligned, in the tile's frame; K ≤ MAX_BOXES."""
    size: tuple[float, float]
    """x and y extent of the tile; every box is inside."""
    spawn: tuple[float, float, float]
    """Where the robot starts; z is the surface there, flat for at least 0.6 m in x and y."""
    heading: tuple[float, float]
    """Range of the initial yaw in radians; yaw 0 looks along +x."""
    goal_distance: float
    """A robot that is horizontally this far from the spawn has traversed the terrain.

    From the middle of a pyramid it reaches the flat rim straight ahead, and the last stairs in the corners.
    """
    fill: np.ndarray = field(default_factory=lambda: np.zeros((0, 6)))
    """[M, 6] float64: boxes that a simulator has beside `boxes` and that no height map and no scan shows; M ≤ 1."""

    @property
    def solid(self) -> np.ndarray:
        """[K + M, 6]: what bears a robot."""
        return np.concatenate([self.boxes, self.fill])


def make_terrain(name: str, difficulty: float, rng: np.random.Generator) -> Terrain:
    """Builds one terrain; the same generator state gives the same boxes.

    Args:
        name: A key of TERRAINS.
        difficulty: In [0, 1]; the module's docstring says what it changes.
        rng: Source of all randomness.

    Raises:
        ValueError: `name` is not known, or `difficulty` is outside [0, 1] or NaN.
    """
    if name not in TERRAINS:
        raise ValueError(f"name: expected one of {', '.join(TERRAINS)}, got {name!r}{did_you_mean(name, TERRAINS)}")
    if not 0 <= difficulty <= 1:
        raise ValueError(f"difficulty: expected a number in [0, 1], got {difficulty}")
    return TERRAINS[name](float(difficulty), rng)


def softened(terrain: Terrain) -> Terrain:
    """The tile with its pits filled to z = 0 for the simulator, while every map still shows them.

    A robot that steps beside a stone goes on walking and can be told so by a reward. The fill's top is 3 mm lower, so
    that a foot on a platform does not stand on two boxes at once. Terrains without pits have nothing to fill.
    """
    if terrain.name not in WITH_PITS:
        return terrain
    x, y = terrain.size[0] / 2, terrain.size[1] / 2
    return replace(terrain, fill=np.array([_box((-x, x), (-y, y), -0.003)]))


def height_map(
    terrain: Terrain, half_extent: tuple[float, float], resolution: float = 0.05, floor: float = PIT_FLOOR
) -> np.ndarray:
    """[X, Y] float32: the top of the highest box over each cell's centre, `floor` where there is none.

    Cell (i, j) has its centre at x = -half_extent[0] + (i + 0.5) resolution, and y likewise from j.

    Args:
        terrain: The tile; what is outside of it is pit.
        half_extent: Half the x and y extent of the map, around the tile's middle; HALF_EXTENT covers every terrain.
        resolution: Side of a cell; the extent has to be a whole number of them.
        floor: Height where there is no box.

    Raises:
        ValueError: `resolution` or `half_extent` is not positive, or they do not divide.
    """
    if not (math.isfinite(resolution) and resolution > 0):
        raise ValueError(f"resolution: expected a finite number > 0, got {resolution}")
    x, y = (_cell_centres(half, resolution) for half in half_extent)
    heights = np.full((len(x), len(y)), -np.inf, dtype=np.float32)
    tolerance = 1e-9  # boxes that abut leave no slit between them, whatever the rounding of their edges
    lower = terrain.boxes[:, :3] - terrain.boxes[:, 3:] - tolerance
    upper = terrain.boxes[:, :3] + terrain.boxes[:, 3:] + tolerance
    for low, high, top in zip(lower, upper, terrain.boxes[:, 2] + terrain.boxes[:, 5], strict=True):
        cells = heights[slice(*np.searchsorted(x, (low[0], high[0]))), slice(*np.searchsorted(y, (low[1], high[1])))]
        np.maximum(cells, np.float32(top), out=cells)
    heights[np.isneginf(heights)] = floor
    return heights


def _cell_centres(half: float, resolution: float) -> np.ndarray:
    if not (math.isfinite(half) and half > 0):
        raise ValueError(f"half_extent: expected finite numbers > 0, got {half}")
    count = round(2 * half / resolution)
    if count < 1 or abs(count * resolution - 2 * half) > 1e-6 * half:
        raise ValueError(f"half_extent: expected twice {half} to be a whole number of cells of {resolution}")
    return -half + (np.arange(count) + 0.5) * resolution


def _between(easy: float, hard: float, difficulty: float) -> float:
    return easy + (hard - easy) * difficulty


def _box(x: tuple[float, float], y: tuple[float, float], top: float) -> list[float]:
    """A row of `Terrain.boxes` from its x and y ranges and the height of its top."""
    ranges = (x, y, (_BOTTOM, top))
    return [*((low + high) / 2 for low, high in ranges), *((high - low) / 2 for low, high in ranges)]


def _square(half: float, top: float) -> list[float]:
    return _box((-half, half), (-half, half), top)


def _stones(centres: np.ndarray, size: tuple[float, float], difficulty: float, rng: np.random.Generator) -> np.ndarray:
    """[K, 6]: a stone at each of centres [K, 2], all of x and y extent `size`, their tops jittered."""
    jitter = _between(0.01, 0.04, difficulty)
    tops = rng.uniform(-jitter, jitter, len(centres))
    x, y = size[0] / 2, size[1] / 2
    return np.array(
        [_box((cx - x, cx + x), (cy - y, cy + y), top) for (cx, cy), top in zip(centres, tops, strict=True)]
    )


def _row(size: float, gap: float, end: float) -> tuple[np.ndarray, float]:
    """x of the centres of as many stones as fit from the start platform to `end`; where the end platform begins.

    Every gap is exact, those to the platforms too: the end platform comes as far forward as the row is short.
    """
    count = math.floor((end + _FIELD_HALF - gap) / (size + gap))
    centres = -_FIELD_HALF + gap + size / 2 + (size + gap) * np.arange(count)
    return centres, -_FIELD_HALF + gap + (size + gap) * count


def _platforms(end: float) -> list[list[float]]:
    """The start and the end platform of a course, at z = 0; the end platform begins at x = `end`."""
    x, y = _COURSE_HALF
    return [_box((-x, -_FIELD_HALF), (-y, y), 0.0), _box((end, x), (-y, y), 0.0)]


def _course(name: str, difficulty: float, *boxes: np.ndarray | Sequence[Sequence[float]]) -> Terrain:
    return Terrain(
        name=name,
        difficulty=difficulty,
        boxes=np.concatenate([np.asarray(part, dtype=np.float64) for part in boxes]),
        size=(2 * _COURSE_HALF[0], 2 * _COURSE_HALF[1]),
        spawn=(_COURSE_SPAWN_X, 0.0, 0.0),
        heading=_COURSE_HEADING,
        goal_distance=_COURSE_GOAL_DISTANCE,
    )


def _pyramid(name: str, difficulty: float, boxes: Sequence[Sequence[float]], spawn_height: float) -> Terrain:
    return Terrain(
        name=name,
        difficulty=difficulty,
        boxes=np.array(boxes, dtype=np.float64),
        size=(2 * _PYRAMID_HALF, 2 * _PYRAMID_HALF),
        spawn=(0.0, 0.0, spawn_height),
        heading=_ANY_HEADING,
        goal_distance=3.5,
    )


def _riser(difficulty: float) -> float:
    return _between(0.05, 0.22, difficulty)


def _flat(difficulty: float, rng: np.random.Generator) -> Terrain:
    """One box that fills HALF_EXTENT, its top at z = 0; an engine may use a plane instead."""
    x, y = HALF_EXTENT
    boxes = np.array([_box((-x, x), (-y, y), 0.0)])
    return Terrain("flat", difficulty, boxes, (2 * x, 2 * y), (0.0, 0.0, 0.0), _ANY_HEADING, goal_distance=3.5)


def _pyramid_stairs(difficulty: float, rng: np.random.Generator) -> Terrain:
    """Square boxes stacked on a base at z = 0; the robot starts on the top."""
    riser = _riser(difficulty)
    boxes = [_square(_PYRAMID_HALF, 0.0)]
    boxes += [
        _square(_PYRAMID_PLATFORM_HALF + _TREAD * (_RISERS - step), step * riser) for step in range(1, _RISERS + 1)
    ]
    return _pyramid("pyramid_stairs", difficulty, boxes, _RISERS * riser)


def _inverted_pyramid_stairs(difficulty: float, rng: np.random.Generator) -> Terrain:
    """Rings of four boxes around a square at z = 0, each higher than the one inside; the robot starts in the middle."""
    boxes = [_square(_PYRAMID_HALF, 0.0)]
    for step in range(1, _RISERS + 1):
        inner = _PYRAMID_PLATFORM_HALF + _TREAD * (step - 1)
        outer = _PYRAMID_HALF if step == _RISERS else inner + _TREAD
        top = step * _riser(difficulty)
        boxes += [_box(x, (-outer, outer), top) for x in ((-outer, -inner), (inner, outer))]
        boxes += [_box((-inner, inner), y, top) for y in ((-outer, -inner), (inner, outer))]
    return _pyramid("inverted_pyramid_stairs", difficulty, boxes, 0.0)


def _stairs(difficulty: float, rng: np.random.Generator) -> Terrain:
    """A straight flight up, a landing and a flight down: boxes stacked on a base at z = 0."""
    x, y = _COURSE_HALF
    boxes = [_box((-x, x), (-y, y), 0.0)]
    for step in range(1, _RISERS + 1):
        half = _FIELD_HALF - _TREAD * (step - 1)
        boxes.append(_box((-half, half), (-y, y), step * _riser(difficulty)))
    return _course("stairs", difficulty, boxes)


def _gaps(difficulty: float, rng: np.random.Generator) -> Terrain:
    """Platforms as wide as the tile, of random length so that the gaps keep no rhythm, with pits between them."""
    gap, nominal = _between(0.1, 0.7, difficulty), _between(1.0, 0.6, difficulty)
    y = (-_COURSE_HALF[1], _COURSE_HALF[1])
    boxes: list[list[float]] = []
    start = -_FIELD_HALF + gap
    while (end := start + nominal * rng.uniform(0.8, 1.2)) + gap <= _FIELD_HALF:
        boxes.append(_box((start, end), y, 0.0))
        start = end + gap
    return _course("gaps", difficulty, _platforms(start), boxes)


def _dual_row_stones(difficulty: float, rng: np.random.Generator) -> Terrain:
    """A row of stones for each foot, the right one half a step ahead.

    So are the platforms' right halves: a ledge at the start on the right, one at the end on the left.
    """
    size, gap, between = (_between(*ends, difficulty) for ends in ((0.55, 0.22), (0.05, 0.35), (0.05, 0.08)))
    shift = (size + gap) / 2
    x, end = _row(size, gap, _FIELD_HALF - shift)
    y = (between + size) / 2
    left = np.stack([x, np.full_like(x, y)], axis=1)
    right = np.stack([x + shift, np.full_like(x, -y)], axis=1)
    ledges = [
        _box((-_FIELD_HALF, -_FIELD_HALF + shift), (-_COURSE_HALF[1], 0.0), 0.0),
        _box((end, end + shift), (0.0, _COURSE_HALF[1]), 0.0),
    ]
    stones = _stones(np.concatenate([left, right]), (size, size), difficulty, rng)
    return _course("dual_row_stones", difficulty, _platforms(end + shift), ledges, stones)


def _single_row_stones(difficulty: float, rng: np.random.Generator) -> Terrain:
    """One row of stones on the centre line, wide at first, at last for one foot at a time."""
    size, gap, width = (_between(*ends, difficulty) for ends in ((0.55, 0.22), (0.05, 0.35), (0.8, 0.3)))
    x, end = _row(size, gap, _FIELD_HALF)
    jitter = _between(0.0, 0.05, difficulty)
    centres = np.stack([x, rng.uniform(-jitter, jitter, len(x))], axis=1)
    return _course("single_row_stones", difficulty, _platforms(end), _stones(centres, (size, width), difficulty, rng))


def _sparse_stones(difficulty: float, rng: np.random.Generator) -> Terrain:
    """A grid of stones, each moved a little, some missing; a way of straight and sideways steps always remains."""
    size, gap = _between(0.55, 0.22, difficulty), _between(0.05, 0.3, difficulty)
    x, end = _row(size, gap, _FIELD_HALF)
    y = (size + gap) * (np.arange(_SPARSE_COLUMNS) - (_SPARSE_COLUMNS - 1) / 2)
    kept = _way(len(x), rng)
    missing = round(_between(0.0, 0.35, difficulty) * kept.size)
    present = np.ones(kept.size, dtype=bool)
    present[rng.choice(np.flatnonzero(~kept), size=missing, replace=False)] = False
    centres = np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1).reshape(-1, 2)[present]
    jitter = _between(0.0, 0.05, difficulty)
    centres += rng.uniform(-jitter, jitter, centres.shape)
    return _course("sparse_stones", difficulty, _platforms(end), _stones(centres, (size, size), difficulty, rng))


def _way(rows: int, rng: np.random.Generator) -> np.ndarray:
    """[rows, _SPARSE_COLUMNS] bool: a random way from the middle of the first row to the last row, no step diagonal."""
    way = np.zeros((rows, _SPARSE_COLUMNS), dtype=bool)
    column = _SPARSE_COLUMNS // 2
    for row in way:
        row[column] = True
        column = min(max(column + int(rng.integers(-1, 2)), 0), _SPARSE_COLUMNS - 1)
        row[column] = True
    return way


TERRAINS: dict[str, Callable[[float, np.random.Generator], Terrain]] = {
    "flat": _flat,
    "pyramid_stairs": _pyramid_stairs,
    "inverted_pyramid_stairs": _inverted_pyramid_stairs,
    "stairs": _stairs,
    "gaps": _gaps,
    "dual_row_stones": _dual_row_stones,
    "single_row_stones": _single_row_stones,
    "sparse_stones": _sparse_stones,
}
"""name → builder, by difficulty and generator; `make_terrain` checks its arguments first."""

WITH_PITS = ("gaps", "dual_row_stones", "single_row_stones", "sparse_stones")
"""Terrains with something to fall into: those that `softened` changes."""
FLAT = "flat"
"""The terrain that is the same at every difficulty: it teaches walking and says nothing about a curriculum."""
