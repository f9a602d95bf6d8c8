"""PhysX's tensors by the names that Isaac Lab's articulation asks its `root_physx_view` for."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
import torch
from ovphysx import LogLevel, PhysX, PhysXConfig, set_log_level
from ovphysx.types import TensorType
from torch import Tensor

from trainer.engines.physx.stage import ENVS, ROBOT, Mesh, write_stage

_TENSORS = {
    "dof_positions": TensorType.ARTICULATION_DOF_POSITION,
    "dof_velocities": TensorType.ARTICULATION_DOF_VELOCITY,
    "dof_stiffnesses": TensorType.ARTICULATION_DOF_STIFFNESS,
    "dof_dampings": TensorType.ARTICULATION_DOF_DAMPING,
    "dof_armatures": TensorType.ARTICULATION_DOF_ARMATURE,
    "dof_position_targets": TensorType.ARTICULATION_DOF_POSITION_TARGET,
    "dof_velocity_targets": TensorType.ARTICULATION_DOF_VELOCITY_TARGET,
    "dof_actuation_forces": TensorType.ARTICULATION_DOF_ACTUATION_FORCE,
    "dof_limits": TensorType.ARTICULATION_DOF_LIMIT,
    "dof_friction_properties": TensorType.ARTICULATION_DOF_FRICTION_PROPERTIES,
    "dof_max_velocities": TensorType.ARTICULATION_DOF_MAX_VELOCITY,
    "dof_max_forces": TensorType.ARTICULATION_DOF_MAX_FORCE,
    "dof_projected_joint_forces": TensorType.ARTICULATION_DOF_PROJECTED_JOINT_FORCE,
    "root_transforms": TensorType.ARTICULATION_ROOT_POSE,
    "root_velocities": TensorType.ARTICULATION_ROOT_VELOCITY,
    "link_transforms": TensorType.ARTICULATION_LINK_POSE,
    "link_velocities": TensorType.ARTICULATION_LINK_VELOCITY,
    "link_accelerations": TensorType.ARTICULATION_LINK_ACCELERATION,
    "masses": TensorType.ARTICULATION_BODY_MASS,
    "inertias": TensorType.ARTICULATION_BODY_INERTIA,
    "coms": TensorType.ARTICULATION_BODY_COM_POSE,
    "material_properties": TensorType.ARTICULATION_SHAPE_FRICTION_AND_RESTITUTION,
    "generalized_mass_matrices": TensorType.ARTICULATION_MASS_MATRIX,
    "coriolis_and_centrifugal_compensation_forces": TensorType.ARTICULATION_CORIOLIS_AND_CENTRIFUGAL_FORCE,
    "gravity_compensation_forces": TensorType.ARTICULATION_GRAVITY_FORCE,
}


class _World:
    """The one PhysX of this process, and the scene that is loaded: a second instance of ovphysx 0.4.13 crashes."""

    physx: PhysX | None = None
    loaded: int | None = None

    @classmethod
    def load(cls, usd: Path) -> PhysX:
        """PhysX with this scene alone."""
        with _said_by_native_code() as said:
            try:
                return cls._load(usd)
            except RuntimeError as error:
                raise RuntimeError(f"{error}\n{said()}") from error

    @classmethod
    def _load(cls, usd: Path) -> PhysX:
        if cls.physx is None:
            set_log_level(LogLevel.ERROR)
            cls.physx = PhysX(device="cpu", config=PhysXConfig(num_threads=0))  # 0: on the caller's
        if cls.loaded is not None:
            cls.physx.remove_usd(cls.loaded)
            cls.physx.wait_all()
        cls.loaded = cls.physx.add_usd(str(usd))[0]
        cls.physx.wait_all()
        return cls.physx


@contextlib.contextmanager
def _said_by_native_code() -> Iterator[Callable[[], str]]:
    """Keeps what libraries write past Python's streams, a line for each file that USD opens, off the terminal."""
    sys.stdout.flush()
    sys.stderr.flush()
    with tempfile.TemporaryFile() as log:
        kept = [os.dup(stream) for stream in (1, 2)]

        def said() -> str:
            log.seek(0)
            return log.read().decode(errors="replace")

        try:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
            yield said
        finally:
            for stream, copy in zip((1, 2), kept, strict=True):
                os.dup2(copy, stream)
                os.close(copy)


class PhysxView:
    """E robots in PhysX: `get_NAME` and `set_NAME` of the tensors above, as Isaac Lab's articulation calls them.

    A process has one scene: a new view takes the place of the one before, which must not be asked any more.

    Args:
        model: Model of one robot.
        origins: [E, 3]: where the robots stand at first.
        mesh: The ground; None for a plane.
        sim_cfg: Isaac Lab's `SimulationCfg`.
        robot_cfg: Isaac Lab's `ArticulationCfg`.

    Attributes:
        count: E.
        shared_metatype: Sizes and names, as Isaac Lab asks for them.
    """

    _backend = "none"
    max_fixed_tendons = max_spatial_tendons = 0

    def __init__(
        self, model: mujoco.MjModel, origins: np.ndarray, mesh: Mesh | None, sim_cfg: Any, robot_cfg: Any
    ) -> None:
        self._dt, self._time = float(sim_cfg.dt), 0.0
        with tempfile.TemporaryDirectory() as folder:
            usd = Path(folder) / "scene.usda"
            write_stage(usd, model, origins, mesh, sim_cfg, robot_cfg)
            self._physx = _World.load(usd)
        self._scene = _World.loaded
        base = model.body(1).name
        roots = [f"{ENVS}/env_{env}/{ROBOT}/{base}" for env in range(len(origins))]
        self._bindings = {
            name: self._physx.create_tensor_binding(prim_paths=roots, tensor_type=kind, raise_if_empty=True)
            for name, kind in _TENSORS.items()
        }
        binding = self._bindings["root_transforms"]
        if list(binding.prim_paths) != roots:
            raise RuntimeError(f"PhysX has the robots in another order than asked for: {list(binding.prim_paths)[:3]}")
        self.count, self.max_shapes = len(roots), int(self._bindings["material_properties"].shape[1])
        self.shared_metatype = SimpleNamespace(
            fixed_base=False,
            dof_count=binding.dof_count,
            link_count=binding.body_count,
            dof_names=list(binding.dof_names),
            link_names=list(binding.body_names),
        )
        bodies = [
            f"{ENVS}/env_{env}/{ROBOT}/{name}" for env in range(self.count) for name in self.shared_metatype.link_names
        ]
        self._contacts = self._physx.create_contact_binding(sensor_patterns=bodies)
        row = {path: index for index, path in enumerate(self._contacts.sensor_paths)}
        self._contact_rows = torch.tensor([row[path] for path in bodies])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        verb, _, tensor = name.partition("_")
        if verb == "get" and tensor in _TENSORS:
            return lambda: self._get(tensor)
        if verb == "set" and tensor in _TENSORS:
            return lambda value, indices: self._set(tensor, value, indices)
        raise AttributeError(name)

    def _check(self) -> None:
        if _World.loaded != self._scene:
            raise RuntimeError("another environment on PhysX was made in this process since: there can be one only")

    def _get(self, name: str) -> Tensor:
        """A new tensor [E, ...]."""
        self._check()
        binding = self._bindings[name]
        values = np.empty(binding.shape, np.float32)
        binding.read(values)
        return torch.from_numpy(values)

    def _set(self, name: str, value: Tensor, indices: Tensor) -> None:
        """Writes the rows `indices` [K] of value [E, ...]."""
        self._check()
        binding = self._bindings[name]
        values = np.ascontiguousarray(value.detach().numpy().reshape(binding.shape), np.float32)
        binding.write(values, indices=indices.numpy().astype(np.int32))

    def get_net_contact_forces(self, dt: float) -> Tensor:
        """[E·L, 3]: contact forces on all links, N."""
        self._check()
        impulses = np.empty((self._contacts.sensor_count, 3), np.float32)  # N s, whatever its documentation says
        self._contacts.read_net_forces(impulses)
        return torch.from_numpy(impulses)[self._contact_rows] / dt

    def advance(self) -> None:
        """One physics step."""
        self._check()
        self._physx.step_sync(self._dt, self._time)
        self._time += self._dt

    def update_articulations_kinematic(self) -> None:
        """Brings the links' poses up to date with root and joint positions just written."""
        self._check()
        self._physx.update_articulations_kinematic()

    def height(self, point: np.ndarray, above: float = 50.0) -> float:
        """Height of what a ray from above hits first at a point [2] of the world; -inf where it hits nothing."""
        self._check()
        hits = self._physx.raycast([float(point[0]), float(point[1]), above], [0.0, 0.0, -1.0], 2 * above)
        return float(hits[0]["position"][2]) if hits else float("-inf")
