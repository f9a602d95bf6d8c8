"""The 3D scene in the browser: robot, terrain and height scan, with the robot kept in the middle."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import viser

from trainer.engines.mjcf.model import build_model
from trainer.engines.mujoco.env import MujocoEnv
from trainer.tasks.rotation import yaw_of
from trainer.tasks.scan import scan_points
from trainer.tasks.terrains import PIT_FLOOR
from trainer.viewer.shapes import box_edges, box_mesh, robot_shapes

WORLD = "/world"
"""Everything is under it; it moves against the robot, so that cameras stay the viewers' own to turn."""
_GROUND = (158, 168, 180)
_GRID = (128, 138, 150)
_TERRAIN = (158, 168, 180)
_EDGES = (84, 92, 104)
_PIT = (90, 90, 110)
_LOW, _LEVEL, _HIGH = np.array([(34, 102, 221), (43, 178, 76), (224, 49, 49)], dtype=float)
_SCAN_RANGE = 0.4
"""Metres above or below the ground under the robot, at which the scan's colours end."""


class Scene:
    """Environment 0, in a viser server.

    Args:
        server: Draws nothing itself; browsers that are connected to it do.
        env: Whose robot it is.
        plain: Simple light, without shadows and reflections: many times faster in a browser without a GPU.
    """

    def __init__(self, server: viser.ViserServer, env: MujocoEnv, plain: bool = False) -> None:
        self.server, self._env, self._tile = server, env, -1
        robot = env.task.config.robot
        self._model = build_model(robot, None, visual=True)
        self._data = mujoco.MjData(self._model)
        self._standing = robot.standing_height
        self._points = scan_points().numpy()
        self.follow = True
        scene = server.scene
        scene.set_up_direction("+z")
        scene.configure_default_lights(enabled=True, cast_shadow=not plain)
        scene.configure_environment_map(None if plain else "studio", environment_intensity=0.35)
        if plain:
            scene.add_light_hemisphere("/light", intensity=2.0)
        server.initial_camera.position = (2.0, -2.2, 0.9)
        server.initial_camera.look_at = (0.0, 0.0, -0.1)
        server.initial_camera.fov = 0.8
        self.world = scene.add_frame(WORLD, show_axes=False)
        self.robot = scene.add_frame(f"{WORLD}/robot", show_axes=False)
        shapes = robot_shapes(self._model)
        self.bodies = {
            body: scene.add_frame(self._name(body), show_axes=False) for body in sorted({s.body for s in shapes})
        }
        self.meshes = [
            scene.add_mesh_simple(
                f"{self._name(shape.body)}/part{index}", shape.vertices, shape.faces, color=shape.colour, side="double"
            )
            for index, shape in enumerate(shapes)
        ]
        self.scan = scene.add_point_cloud(
            f"{WORLD}/scan",
            np.zeros((len(self._points), 3), np.float32),
            np.zeros((len(self._points), 3), np.uint8),
            point_size=0.013,
            point_shape="circle",
            precision="float32",
        )
        if not env.engine.tiles:
            scene.add_grid(
                f"{WORLD}/ground",
                infinite_grid=True,
                plane_color=_GROUND,
                plane_opacity=1.0,
                cell_color=_GRID,
                section_color=_GRID,
                section_thickness=1.5,
                fade_distance=25.0,
                shadow_opacity=0.3,
            )
        self.terrain: viser.MeshHandle | None = None
        self._middle = env.state.root_pos[0].numpy().astype(float)
        self.draw()

    def _name(self, body: int) -> str:
        return f"{WORLD}/robot/{self._model.body(body).name}"

    def show(self, *, robot: bool, scan: bool) -> None:
        """Which parts are to be seen."""
        for part, visible in ((self.robot, robot), (self.scan, scan)):
            if part.visible != visible:
                part.visible = visible

    def draw(self) -> None:
        """The state as of now, to all browsers."""
        with self.server.atomic():
            self._draw_terrain()
            self._draw_robot()
            self._draw_scan()
            self._draw_world()

    def _draw_robot(self) -> None:
        self._data.qpos[:] = self._env.engine.qpos_of(0)
        mujoco.mj_kinematics(self._model, self._data)
        for body, frame in self.bodies.items():
            frame.position, frame.wxyz = self._data.xpos[body], self._data.xquat[body]

    def _draw_scan(self) -> None:
        """The grid turns and moves as a whole, at once with the robot; only heights that changed are sent as points."""
        state = self._env.state
        half, root = 0.5 * yaw_of(state.root_quat[0]).item(), state.root_pos[0].tolist()
        self.scan.position = (root[0], root[1], 0.0)
        self.scan.wxyz = (math.cos(half), 0.0, 0.0, math.sin(half))
        height, ground = state.scan[0].numpy(), float(state.foot_ground[0].max())
        points = np.column_stack([self._points, height + 0.012]).astype(np.float32)
        colours = scan_colours(height, ground)
        if not np.array_equal(points, self.scan.points):
            self.scan.points = points
        if not np.array_equal(colours, self.scan.colors):
            self.scan.colors = colours

    def _draw_terrain(self) -> None:
        tile = int(self._env.engine.tile_of[0])
        if not self._env.engine.tiles or tile == self._tile:
            return
        self._tile = tile
        boxes = self._env.engine.tiles[tile].boxes
        vertices, faces = box_mesh(boxes)
        self.terrain = self.server.scene.add_mesh_simple(
            f"{WORLD}/terrain", vertices, faces, color=_TERRAIN, flat_shading=True
        )
        self.server.scene.add_line_segments(
            f"{WORLD}/edges", box_edges(boxes), _EDGES, thickness=1.5, thickness_units="screen"
        )
        self._middle = self._env.state.root_pos[0].numpy().astype(float)  # a new tile: a jump, not a glide

    def _draw_world(self) -> None:
        if not self.follow:
            return
        target = self._env.state.root_pos[0].numpy().astype(float)
        self._middle[:2] = target[:2]
        self._middle[2] += 0.1 * (target[2] - self._middle[2])  # steps and bounces would shake the whole picture
        self.world.position = -self._middle


def scan_colours(height: np.ndarray, ground: float) -> np.ndarray:
    """[S, 3] uint8 for heights [S]: blue below the ground under the feet, green level with it, red above; grey pits."""
    relative = np.clip((height - ground) / _SCAN_RANGE, -1.0, 1.0)[:, None]
    colours = _LEVEL + np.where(relative < 0, -relative * (_LOW - _LEVEL), relative * (_HIGH - _LEVEL))
    colours[height <= PIT_FLOOR] = _PIT
    return colours.round().astype(np.uint8)
