"""PhysX's tensors without PhysX, so that Isaac Lab's own articulation, sensors, managers and environment run on a CPU.

The "physics" is random: every step throws the robots somewhere plausible. What is checked is everything between
PhysX's tensors and the task. The joints and bodies come in an order of their own, with hands among them, as Isaac Sim's
do; poses have the quaternion's w last, velocities are those of the centre of mass, as PhysX's are.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import gymnasium
import torch
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry
from scipy.spatial.transform import Rotation
from torch import Tensor

import trainer.engines.isaaclab.tasks  # noqa: F401  registers them
from trainer.engines.physx import scene
from trainer.tasks.robots import G1

HANDS = tuple(
    f"{side}_hand_{finger}_{index}_joint"
    for side in ("left", "right")
    for finger, count in (("thumb", 3), ("index", 2), ("middle", 2))
    for index in range(count)
)
JOINTS = [*G1.joint_names, *HANDS]
BODIES = ["torso_link", *(name.replace("_joint", "_link") for name in JOINTS)]
random.Random(0).shuffle(JOINTS)
random.Random(1).shuffle(BODIES)
BODIES = ["pelvis", *BODIES]
SHAPES = 5


class FakeArticulationView:
    """`get_NAME` and `set_NAME` of the tensors below, and nothing else."""

    _backend = "none"
    max_fixed_tendons = max_spatial_tendons = 0
    max_shapes = SHAPES

    def __init__(self, num_envs: int) -> None:
        self.count, joints, bodies = num_envs, len(JOINTS), len(BODIES)
        self.shared_metatype = SimpleNamespace(
            fixed_base=False, dof_count=joints, link_count=bodies, dof_names=JOINTS, link_names=BODIES
        )
        self.random = torch.Generator().manual_seed(1)
        names = "positions velocities stiffnesses dampings armatures position_targets velocity_targets actuation_forces"
        self.tensors = {f"dof_{name}": torch.zeros(num_envs, joints) for name in names.split()}
        self.tensors |= {
            "dof_limits": torch.tensor([-3.0, 3.0]).repeat(num_envs, joints, 1),
            "dof_friction_properties": torch.zeros(num_envs, joints, 3),
            "dof_max_velocities": torch.full((num_envs, joints), 30.0),
            "dof_max_forces": torch.full((num_envs, joints), 1000.0),
            "root_transforms": self.poses(num_envs),
            "root_velocities": torch.zeros(num_envs, 6),
            "link_transforms": self.poses(num_envs, bodies),
            "link_velocities": torch.zeros(num_envs, bodies, 6),
            "link_accelerations": torch.zeros(num_envs, bodies, 6),
            "masses": 1.0 + self.uniform(1, bodies).repeat(num_envs, 1),
            "inertias": self.uniform(1, bodies, 9).repeat(num_envs, 1, 1),
            "coms": self.poses(1, bodies).repeat(num_envs, 1, 1),
            "material_properties": torch.zeros(num_envs, SHAPES, 3),
        }
        self.forces = torch.zeros(num_envs, bodies, 3)

    def uniform(self, *shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=self.random) - 1

    def poses(self, *shape: int, tilt: float = 0.1) -> Tensor:
        """Positions within 0.1 m, orientations of any yaw and a little tilt."""
        angles = self.uniform(*shape, 3) * torch.tensor([torch.pi, tilt, tilt])
        quat = torch.from_numpy(Rotation.from_euler("ZYX", angles.view(-1, 3).numpy()).as_quat()).float()
        return torch.cat([0.1 * self.uniform(*shape, 3), quat.view(*shape, 4)], -1)

    def __getattr__(self, name: str) -> Any:
        verb, _, tensor = name.partition("_")
        if verb == "get":
            return lambda: self.tensors[tensor]
        if verb == "set" and tensor in self.tensors:
            return lambda value, indices: self._set(tensor, value, indices)
        raise AttributeError(name)

    def _set(self, name: str, value: Tensor, rows: Tensor) -> None:
        if name == "root_transforms":  # the links move along
            moved = value[rows, None, :3] - self.tensors[name][rows, None, :3]
            self.tensors["link_transforms"][rows, :, :3] += moved
            self.tensors["link_transforms"][rows, 0] = value[rows]
        self.tensors[name] = self.tensors[name].clone()
        self.tensors[name][rows] = value[rows]

    def get_net_contact_forces(self, dt: float) -> Tensor:
        return self.forces.view(-1, 3)

    def update_articulations_kinematic(self) -> None:
        """The links move with the root as soon as it is written."""

    def advance(self) -> None:
        """Throws everything somewhere else; a robot in fifty falls over, one in fifty bears on its trunk."""
        envs, tensors = self.count, self.tensors
        bodies = len(BODIES)
        root = self.poses(envs, tilt=0.2)
        root[:, :3] += tensors["root_transforms"][:, :3]
        fallen = torch.rand(envs, generator=self.random) < 0.02
        root[fallen, 3:] = torch.tensor([1.0, 0.0, 0.0, 0.0])
        tensors["root_transforms"] = root
        links = self.poses(envs, bodies)
        links[..., :3] += root[:, None, :3] - torch.tensor([0.0, 0.0, 0.7])
        links[:, 0] = root
        tensors["link_transforms"] = links
        tensors["root_velocities"] = self.uniform(envs, 6)
        tensors["link_velocities"] = self.uniform(envs, bodies, 6)
        tensors["link_velocities"][:, 0] = tensors["root_velocities"]
        for name in ("dof_positions", "dof_velocities"):
            tensors[name] = 0.5 * self.uniform(envs, len(JOINTS))
        loaded = torch.rand(envs, bodies, 1, generator=self.random) < 0.5
        loaded[:, [BODIES.index("pelvis"), BODIES.index("torso_link")]] = self.uniform(envs, 2, 1) > 0.96
        self.forces = 400 * self.uniform(envs, bodies, 3) * loaded


def install() -> None:
    """From now on Isaac Lab's manager-based environments run on the fakes."""
    scene.install(lambda origins, mesh, sim_cfg, robot_cfg: FakeArticulationView(len(origins)))


def make_env(task_id: str, num_envs: int, **changes: Any) -> Any:
    """A registered environment on the fakes, by way of gymnasium; `changes` are of its top-level settings."""
    cfg = load_cfg_from_registry(task_id, "env_cfg_entry_point")
    cfg.scene.num_envs, cfg.sim.device = num_envs, "cpu"
    for name, value in changes.items():
        setattr(cfg, name, value)
    return gymnasium.make(task_id, cfg=cfg).unwrapped
