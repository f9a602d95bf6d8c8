"""A robot-centric elevation map: a ring-buffer grid of heights and variances from point clouds. numpy alone.

Cells keep their place in the world; moving the map only forgets what leaves it. A cell holds the upper surface that was
seen in it. Rays tell more than their ends: where one passed, there is nothing as high as the ray. Cells without a point
are filled for the policy the way its training's terrain is: with the lower of the surfaces around them, and with the
pit's floor where rays went below those.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_UNKNOWN = np.float32(np.nan)
_NOTHING = np.float32(np.inf)
_PIT_SPREAD = 3


@dataclass(frozen=True)
class MapSettings:
    """How the map is kept."""

    resolution: float = 0.04
    """Side of a cell, m."""
    size: float = 4.0
    """Side of the map, m."""
    point_noise: float = 0.02
    """Standard deviation of a point's height, m."""
    growth: float = 0.004
    """How fast a height becomes uncertain, m of standard deviation a square root of a second."""
    surface: float = 0.06
    """Points this far below a cell's highest belong to the same surface, m."""
    gate: float = 0.06
    """A height that differs by more than this, and by three standard deviations, is a new one, m."""
    least_points: int = 2
    """Points of one cloud that make a surface: a single one may be a stray."""
    upper_share: float = 0.4
    """Share of a cell's points that must lie on its upper surface for it to count."""
    covered: float = 0.5
    """Share of its fullest neighbour's points that a cell must have."""
    shadow: float = 0.24
    """How far behind an edge the ground may be hidden, m."""
    pit_below: float = 0.04
    """Rays this far below the surfaces around an empty cell make it a pit, m."""
    pit_depth: float = 1.0
    """Depth of a pit below the surfaces around it, m: the training's pit floor."""
    rays: int = 4000
    """Rays of a cloud that are followed."""

    def __post_init__(self) -> None:
        if not 0 < self.resolution <= 0.2 or not self.resolution < self.size <= 20:
            raise ValueError(f"map: resolution {self.resolution} and size {self.size}: expected up to 0.2 m and 20 m")

    @property
    def cells(self) -> int:
        """N, the number of cells along one side."""
        return round(self.size / self.resolution)


class ElevationMap:
    """The map; x, y and z are metres in a frame that does not move with the robot.

    Args:
        settings: How it is kept.
    """

    def __init__(self, settings: MapSettings | None = None) -> None:
        self.settings = settings or MapSettings()
        count = self.settings.cells
        self._height = np.full((count, count), _UNKNOWN, np.float32)
        self._var = np.full((count, count), _NOTHING, np.float32)
        self._ceiling = np.full((count, count), _NOTHING, np.float32)
        self._assumed = np.zeros((count, count), bool)  # seeded, never measured
        self._origin = np.zeros(2, np.int64)  # world cell of the map's first row and column
        self._time = 0.0

    def seed(self, x: float, y: float, ground: float, radius: float = 0.9) -> None:
        """Takes the ground around (x, y) as flat at `ground` where nothing was measured: no lidar sees its own feet."""
        self.move(x, y)
        near = (self._centres(0) - x)[:, None] ** 2 + (self._centres(1) - y)[None, :] ** 2 <= radius * radius
        rows, columns = self._ring()
        target = np.ix_(rows, columns)
        fresh = near & (np.isnan(self._height[target]) | self._assumed[target])
        self._assumed[target] |= fresh
        self._height[target] = np.where(fresh, np.float32(ground), self._height[target])
        self._var[target] = np.where(fresh, np.float32(0.02**2), self._var[target])

    def move(self, x: float, y: float) -> None:
        """Puts the middle of the map at (x, y); what leaves the map is forgotten."""
        count, resolution = self.settings.cells, self.settings.resolution
        origin = np.floor(np.array([x, y]) / resolution).astype(np.int64) - count // 2
        for axis in (0, 1):
            shift = int(origin[axis] - self._origin[axis])
            if shift == 0:
                continue
            first = self._origin[axis] + count if shift > 0 else origin[axis]
            entering = np.arange(first, first + min(abs(shift), count)) % count if abs(shift) < count else slice(None)
            index = (entering, slice(None)) if axis == 0 else (slice(None), entering)
            self._height[index], self._var[index], self._ceiling[index] = _UNKNOWN, _NOTHING, _NOTHING
            self._assumed[index] = False
        self._origin = origin

    def update(self, points: np.ndarray, sensor: np.ndarray, time: float) -> None:
        """Takes in a cloud.

        Args:
            points: [P, 3] m, in the map's frame; those that are not finite are passed over.
            sensor: [3] where the rays began.
            time: s; heights grow uncertain with it.
        """
        settings = self.settings
        passed = min(max(time - self._time, 0.0), 10.0) if self._time else 0.0
        self._time = time
        self._var += np.float32(settings.growth**2 * passed)
        points = np.asarray(points, np.float32)
        points = points[np.isfinite(points).all(axis=1)]
        if not len(points):
            return
        self._follow(points, np.asarray(sensor, np.float32))
        cell, inside = self._cells_of(points[:, 0], points[:, 1])
        self._fuse(cell[inside], points[inside, 2])

    def _cells_of(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Flat index of the ring buffer, and which points are inside the map."""
        count, resolution = self.settings.cells, self.settings.resolution
        row = np.floor(x * np.float32(1.0 / resolution)).astype(np.int64)
        column = np.floor(y * np.float32(1.0 / resolution)).astype(np.int64)
        inside = (row >= self._origin[0]) & (row < self._origin[0] + count)
        inside &= (column >= self._origin[1]) & (column < self._origin[1] + count)
        return (row % count) * count + column % count, inside

    def _fuse(self, cell: np.ndarray, z: np.ndarray) -> None:
        settings = self.settings
        seen, measured, points = self._surfaces(cell, z)
        # What is common to a cloud's points, the pose's error above all, does not average out.
        noise = (settings.point_noise**2 / points + 0.003**2).astype(np.float32)
        height, var, ceiling = self._height.ravel(), self._var.ravel(), self._ceiling.ravel()
        self._assumed.ravel()[seen] = False
        old, old_var = height[seen], np.minimum(var[seen], np.float32(1e6))
        apart = np.abs(measured - old)
        new = ~(apart <= settings.gate) & ~(apart <= 3 * np.sqrt(old_var + noise))  # an unknown height is NaN: new
        gain = np.where(new, np.float32(1.0), old_var / (old_var + noise))
        height[seen] = np.where(new, measured, old + gain * (measured - old))
        var[seen] = np.where(new, noise, (1 - gain) * old_var)
        # A ray that was below what is measured now was another moment's.
        ceiling[seen] = np.where(ceiling[seen] < height[seen] - settings.gate, _NOTHING, ceiling[seen])

    def _surfaces(self, cell: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cells with a surface in this cloud, its height and how many points have it.

        The upper surface where a good part of the cell's points lie on it; else the lower one, if it is one: the points
        of a wall are spread over all heights and are none.
        """
        settings = self.settings
        size = settings.cells**2
        every = np.bincount(cell, minlength=size)
        top = np.full(size, -_NOTHING, np.float32)
        np.maximum.at(top, cell, z)
        upper = z >= top[cell] - np.float32(settings.surface)
        above = np.bincount(cell[upper], minlength=size)
        above_sum = np.bincount(cell[upper], z[upper], minlength=size)
        low_cell, low_z = cell[~upper], z[~upper]
        least, most = np.full(size, _NOTHING, np.float32), np.full(size, -_NOTHING, np.float32)
        np.minimum.at(least, low_cell, low_z)
        np.maximum.at(most, low_cell, low_z)
        below = every - above
        # A cell at an edge has few points of the surface that ends in it: it is not that surface's.
        enough = np.maximum(settings.least_points, settings.covered * _most_around(above, settings.cells))
        below_sum = np.bincount(low_cell, low_z, minlength=size)
        takes_upper = (above >= enough) & (above >= settings.upper_share * every)
        takes_lower = ~takes_upper & (below >= settings.least_points) & (most - least <= 2 * settings.surface)
        seen = np.flatnonzero(takes_upper | takes_lower)
        is_upper = takes_upper[seen]
        points = np.where(is_upper, above[seen], below[seen])
        total = np.where(is_upper, above_sum[seen], below_sum[seen])
        return seen, (total / points).astype(np.float32), points

    def _follow(self, points: np.ndarray, sensor: np.ndarray) -> None:
        """Lowers the ceilings of the cells that rays passed over, and forgets heights that stand in their way."""
        settings = self.settings
        stride = max(1, len(points) // settings.rays)
        ends = points[::stride]
        along = ends - sensor
        reach = np.hypot(along[:, 0], along[:, 1])
        descending = (along[:, 2] < 0) & (reach > settings.resolution)
        ends, along, reach = ends[descending], along[descending], reach[descending]
        # The last metre of a ray, without its end's own cell: further back it is too high to tell anything.
        steps = np.arange(1, 26, dtype=np.float32) * np.float32(settings.resolution)
        share = (steps[None, :] + np.float32(0.5 * settings.resolution)) / reach[:, None]
        share = np.minimum(share, 1.0)
        x = ends[:, :1] - share * along[:, :1]
        y = ends[:, 1:2] - share * along[:, 1:2]
        z = (ends[:, 2:] - share * along[:, 2:]).ravel()
        cell, inside = self._cells_of(x.ravel(), y.ravel())
        np.minimum.at(self._ceiling.ravel(), cell[inside], z[inside])
        height, var, ceiling = self._height.ravel(), self._var.ravel(), self._ceiling.ravel()
        pierced = ceiling < height - 3 * np.sqrt(np.minimum(var, 1.0)) - np.float32(settings.gate)
        height[pierced], var[pierced] = _UNKNOWN, _NOTHING

    def _ring(self) -> tuple[np.ndarray, np.ndarray]:
        count = self.settings.cells
        steps = np.arange(count)
        return (self._origin[0] + steps) % count, (self._origin[1] + steps) % count

    def _centres(self, axis: int) -> np.ndarray:
        return (self._origin[axis] + np.arange(self.settings.cells) + 0.5) * self.settings.resolution

    @property
    def origin(self) -> tuple[float, float]:
        """x and y of the corner of the map's first cell."""
        x, y = (self._origin * self.settings.resolution).tolist()
        return x, y

    def known(self) -> np.ndarray:
        """[N, N] heights by x and y, NaN where none was measured."""
        return self._height[np.ix_(*self._ring())]

    def variance(self) -> np.ndarray:
        """[N, N] of the heights; infinite where none was measured."""
        return self._var[np.ix_(*self._ring())]

    def filled(self) -> np.ndarray:
        """[N, N] heights without holes."""
        ring = np.ix_(*self._ring())
        height, ceiling = self._height[ring].copy(), self._ceiling[ring]
        height[_walls(height, self.settings.gate)] = _UNKNOWN
        lowest = height.copy()
        empty = np.isnan(height)
        if not empty.any() or empty.all():
            return np.nan_to_num(height)
        # Behind an edge that goes down lies ground that no ray reaches: it belongs to what is lower, not to the nearer.
        for _ in range(round(self.settings.shadow / self.settings.resolution)):
            lowest = np.where(empty, np.fmin(lowest, _lower_neighbour(lowest)), lowest)
        for _ in range(self.settings.cells):
            hollow = np.isnan(lowest)
            if not hollow.any():
                break
            lowest = np.where(hollow, _lower_neighbour(lowest), lowest)
        # Towards the outside of the map the same rule carries on; nothing better is known there.
        pit = empty & (ceiling < lowest - np.float32(self.settings.pit_below))
        pit &= _neighbours(pit) >= 2  # a lone one is a stray ray
        for _ in range(_PIT_SPREAD):  # the rest of the same hole, where no ray happened to pass
            pit |= empty & (_neighbours(pit) >= 3)
        return np.where(empty, np.where(pit, lowest - np.float32(self.settings.pit_depth), lowest), height)


def _most_around(points: np.ndarray, cells: int) -> np.ndarray:
    """[N²] the most points of a cell and its eight neighbours, in the ring buffer's order."""
    grid = points.reshape(cells, cells)
    rows = np.maximum(np.maximum(np.roll(grid, 1, 0), np.roll(grid, -1, 0)), grid)
    return np.maximum(np.maximum(np.roll(rows, 1, 1), np.roll(rows, -1, 1)), rows).ravel()


def _shifted(values: np.ndarray, fill: float) -> list[np.ndarray]:
    padded = np.pad(values, 1, constant_values=fill)
    count = len(values)
    return [padded[1 + i : 1 + i + count, 1 + j : 1 + j + count] for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j]


def _lower_neighbour(values: np.ndarray) -> np.ndarray:
    """[N, N]: the lowest of the eight neighbours; NaN where all are."""
    around = _shifted(values, np.nan)
    lowest = around[0]
    for other in around[1:]:
        lowest = np.fmin(lowest, other)
    return lowest


def _walls(height: np.ndarray, step: float) -> np.ndarray:
    """[N, N] bool: cells below a neighbour that are no floor themselves: hardly a neighbour is as high as they are."""
    around = _shifted(height, np.nan)
    highest = around[0]
    for other in around[1:]:
        highest = np.fmax(highest, other)
    alike = np.sum([np.abs(other - height) <= 0.7 * step for other in around], axis=0)
    return (height < highest - step) & (alike <= 3)


def _neighbours(mask: np.ndarray) -> np.ndarray:
    """[N, N]: how many of the eight neighbours are set."""
    return np.sum(_shifted(mask.astype(np.int64), 0), axis=0)


def sampled(filled: np.ndarray, origin: tuple[float, float], resolution: float, points: np.ndarray) -> np.ndarray:
    """[S] heights of a filled map at points [S, 2]; the map's border counts for what is outside."""
    cells = np.floor((points - np.array(origin)) / resolution).astype(np.int64)
    cells = np.clip(cells, 0, len(filled) - 1)
    return filled[cells[:, 0], cells[:, 1]]
