"""A MuJoCo model to look at, with meshes and light, posed like environment 0."""

from __future__ import annotations

import mujoco
import numpy as np

from trainer.engines.mjcf.model import build_model
from trainer.engines.mujoco.env import MujocoEnv


class Picture:
    """The picture of environment 0; one model for all terrains, whose boxes go where the robot's terrain has them.

    Args:
        env: Its engine says which terrain the robot is on, and its posture.
    """

    def __init__(self, env: MujocoEnv) -> None:
        self._env, self._tile = env, -1
        tiles = env.engine.tiles
        self._num_boxes = max((len(tile.boxes) for tile in tiles), default=0)
        self.model = build_model(env.task.config.robot, tiles[0] if tiles else None, self._num_boxes, visual=True)
        # Boxes that a terrain does not need lie far below; the camera's clipping planes must not know of them.
        self.model.stat.extent = 4.0
        self.data = mujoco.MjData(self.model)
        self.camera = mujoco.MjvCamera()
        self.camera.distance, self.camera.azimuth, self.camera.elevation = 3.0, 135.0, -15.0
        self.refresh()

    def refresh(self) -> None:
        """Terrain, posture and camera as of now."""
        tile = int(self._env.engine.tile_of[0])
        if self._num_boxes and tile != self._tile:
            self._place_boxes(self._env.engine.tiles[tile].boxes)
            self._tile = tile
        self.data.qpos[:] = self._env.engine.qpos_of(0)
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_comPos(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)
        self.camera.lookat[:] = self._env.state.root_pos[0].numpy() - (0.0, 0.0, 0.2)

    def _place_boxes(self, boxes: np.ndarray) -> None:
        for index in range(self._num_boxes):
            geom = self.model.geom(f"box{index}").id
            box = boxes[index] if index < len(boxes) else np.array([0, 0, -100.0 - index, 0.1, 0.1, 0.1])
            self.model.geom_pos[geom], self.model.geom_size[geom] = box[:3], box[3:]
            self.model.geom_rbound[geom] = np.linalg.norm(box[3:])
