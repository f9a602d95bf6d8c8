"""A robot's visible geometry as triangles, a mesh for each body and colour; a terrain's boxes as one mesh."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import mujoco
import numpy as np
import trimesh

VISIBLE_GROUPS = 3
"""Geometry of the groups below is for the eye, as in MuJoCo's viewers; the rest collides."""
CELL = 0.004
"""Metres: finer detail of a mesh is not sent. The G1 has 390,000 triangles, a picture of it shows few of them."""
SHARP = 0.5
"""Radians between two triangles, above which their edge is drawn as an edge."""
_BOX_QUADS = np.array([(0, 2, 3, 1), (4, 5, 7, 6), (0, 1, 5, 4), (2, 6, 7, 3), (0, 4, 6, 2), (1, 3, 7, 5)])
_BOX_FACES = np.concatenate([_BOX_QUADS[:, (0, 1, 2)], _BOX_QUADS[:, (0, 2, 3)]])
_BOX_EDGES = np.array([(0, 1), (0, 2), (1, 3), (2, 3), (4, 5), (4, 6), (5, 7), (6, 7), (0, 4), (1, 5), (2, 6), (3, 7)])
_CORNERS = np.array([(x, y, z) for z in (-1, 1) for y in (-1, 1) for x in (-1, 1)], dtype=float)


@dataclass(frozen=True)
class Shape:
    """A part of one colour."""

    body: int
    """Its number in the model; the frame of the vertices."""
    vertices: np.ndarray
    """[V, 3] float32."""
    faces: np.ndarray
    """[F, 3] int64."""
    colour: tuple[int, int, int]
    """RGB, 0 to 255."""


def robot_shapes(model: mujoco.MjModel) -> list[Shape]:
    """Everything visible that is not of the world."""
    parts: dict[tuple[int, tuple[int, int, int]], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)
    for geom in range(model.ngeom):
        rgba = _rgba(model, geom)
        if model.geom_bodyid[geom] == 0 or model.geom_group[geom] >= VISIBLE_GROUPS or rgba[3] == 0:
            continue
        vertices, faces = _triangles(model, geom)
        turn = np.empty(9)
        mujoco.mju_quat2Mat(turn, model.geom_quat[geom])
        red, green, blue = (round(255 * float(value)) for value in rgba[:3])
        parts[int(model.geom_bodyid[geom]), (red, green, blue)].append(
            (vertices @ turn.reshape(3, 3).T + model.geom_pos[geom], faces)
        )
    return [Shape(body, *_joined(pieces), colour) for (body, colour), pieces in parts.items()]


def box_mesh(boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Vertices [8 K, 3] and faces [12 K, 3] of boxes [K, 6], as `Terrain.boxes`."""
    vertices = boxes[:, None, :3] + _CORNERS * boxes[:, None, 3:]
    faces = _BOX_FACES + 8 * np.arange(len(boxes))[:, None, None]
    return vertices.reshape(-1, 3).astype(np.float32), faces.reshape(-1, 3)


def box_edges(boxes: np.ndarray) -> np.ndarray:
    """[12 K, 2, 3] float32: the edges of boxes [K, 6]."""
    vertices, _ = box_mesh(boxes)
    return vertices.reshape(-1, 8, 3)[:, _BOX_EDGES].reshape(-1, 2, 3)


def thinned(vertices: np.ndarray, faces: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """The mesh with all vertices of a cubic cell made one, at their mean, and what that makes flat left out."""
    _, cells = np.unique(np.floor(vertices / cell).astype(np.int64), axis=0, return_inverse=True)
    cells = cells.reshape(-1)
    count = np.bincount(cells)
    means = np.stack([np.bincount(cells, vertices[:, axis]) / count for axis in range(3)], -1)
    faces = cells[faces]
    first, second, third = faces.T
    faces = faces[(first != second) & (second != third) & (third != first)]
    _, kept = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    return means, faces[np.sort(kept)]


def _rgba(model: mujoco.MjModel, geom: int) -> np.ndarray:
    material = model.geom_matid[geom]
    return model.geom_rgba[geom] if material < 0 else model.mat_rgba[material]


def _triangles(model: mujoco.MjModel, geom: int) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces in the geom's frame."""
    kinds, size = mujoco.mjtGeom, model.geom_size[geom]
    kind = int(model.geom_type[geom])
    if kind == kinds.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        vertex, face = model.mesh_vertadr[mesh], model.mesh_faceadr[mesh]
        vertices = model.mesh_vert[vertex : vertex + model.mesh_vertnum[mesh]].astype(float)
        vertices, faces = thinned(vertices, model.mesh_face[face : face + model.mesh_facenum[mesh]], CELL)
        shape = trimesh.graph.smooth_shade(trimesh.Trimesh(vertices, faces, process=False), angle=SHARP)
        return np.asarray(shape.vertices), np.asarray(shape.faces)
    if kind == kinds.mjGEOM_BOX:
        return box_mesh(np.concatenate([np.zeros(3), size])[None])
    if kind == kinds.mjGEOM_CAPSULE:
        shape = trimesh.creation.capsule(height=2 * size[1], radius=size[0], count=(16, 16))
    elif kind == kinds.mjGEOM_CYLINDER:
        shape = trimesh.creation.cylinder(radius=size[0], height=2 * size[1], sections=24)
    elif kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID):
        shape = trimesh.creation.icosphere(subdivisions=2)
        shape.apply_scale(size[0] if kind == kinds.mjGEOM_SPHERE else size)
    else:
        raise ValueError(f"geom {geom}: no triangles for a geom of type {kinds(kind).name}")
    return np.asarray(shape.vertices), np.asarray(shape.faces)


def _joined(pieces: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    starts = np.cumsum([0, *(len(vertices) for vertices, _ in pieces)])
    vertices = np.concatenate([vertices for vertices, _ in pieces]).astype(np.float32)
    return vertices, np.concatenate([faces + start for (_, faces), start in zip(pieces, starts, strict=False)])
