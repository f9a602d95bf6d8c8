"""PhysX's tensors without PhysX, so that Isaac Lab's own articulation, sensors, managers and environment run on a CPU.

The "physics" is random: every step throws the robots somewhere plausible. What is checked is everything between
PhysX's tensors and the task. The joints and bodies come in an order of their own, with hands among them, as Isaac Sim's
do; poses have the quaternion's w last, velocities are those of the centre of mass, as PhysX's are.
"""

from __future__ import annotations

import builtins
import contextlib
import random
from types import SimpleNamespace
from typing import Any

import gymnasium
import omni.physics.tensors.impl.api as physx
import torch
from isaaclab.assets.articulation import Articulation, articulation, articulation_data
from isaaclab.envs import manager_based_env
from isaaclab.sensors import ContactSensor, RayCaster
from isaaclab.sensors.contact_sensor.contact_sensor_data import ContactSensorData
from isaaclab.sensors.ray_caster.ray_caster_data import RayCasterData
from isaaclab.terrains import TerrainGenerator
from isaaclab.terrains.trimesh.utils import make_plane
from isaaclab.utils.warp import convert_to_warp_mesh
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry
from scipy.spatial.transform import Rotation
from torch import Tensor

import trainer.engines.isaaclab.tasks  # noqa: F401  registers them
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


class FakeBodies(physx.RigidBodyView):
    """The view through which Isaac Lab's ray-caster follows a body."""

    def __init__(self, view: FakeArticulationView, body: str) -> None:
        self.view, self.body, self.count = view, BODIES.index(body), view.count

    def get_transforms(self) -> Tensor:
        return self.view.tensors["link_transforms"][:, self.body]


def _as_sensor(sensor: Any, cfg: Any, num_envs: int) -> Any:
    """The part of a sensor's initialisation that does not ask USD."""
    sensor.cfg, sensor._device, sensor._num_envs, sensor._debug_vis_handle = cfg, "cpu", num_envs, None
    sensor._is_outdated = torch.ones(num_envs, dtype=torch.bool)
    sensor._timestamp, sensor._timestamp_last_update = torch.zeros(num_envs), torch.zeros(num_envs)
    sensor._sim_physics_dt, sensor._is_visualizing, sensor._clear_callbacks = 0.005, False, lambda: None
    return sensor


class MeshHandle:
    """What the ray-caster asks of a mesh; has no `__dict__`, into which the next environment's `validate` would go."""

    __slots__ = ("device", "id", "mesh")

    def __init__(self, mesh: Any) -> None:
        self.mesh = convert_to_warp_mesh(mesh.vertices, mesh.faces, device="cpu")
        self.device, self.id = self.mesh.device, self.mesh.id


class FakeScene:
    """Isaac Lab's own robot, ray-caster and contact sensor on the fake view, and the terrain of its own generator."""

    def __init__(self, cfg: Any) -> None:
        self.cfg, self.num_envs, self.device = cfg, cfg.num_envs, "cpu"
        self.view = FakeArticulationView(cfg.num_envs)
        self.terrain = self._terrain(cfg.terrain)
        self._entities = {"robot": self._robot(), "height_scanner": self._scanner(), "contact_forces": self._contacts()}

    @property
    def env_origins(self) -> Tensor:
        return self.terrain.env_origins

    def keys(self) -> list[str]:
        return list(self._entities)

    def __getitem__(self, name: str) -> Any:
        return self._entities[name]

    def _terrain(self, cfg: Any) -> SimpleNamespace:
        origins = None
        if cfg.terrain_type == "generator":
            generated = TerrainGenerator(cfg.terrain_generator)
            mesh, origins = generated.terrain_mesh, torch.from_numpy(generated.terrain_origins).float()
        else:
            mesh = make_plane(size=(2e6, 2e6), height=0.0, center_zero=True)
        self.mesh = mesh
        RayCaster.meshes["/World/ground"] = MeshHandle(mesh)
        env_origins = torch.zeros(self.num_envs, 3)
        env_origins[:, 0] = 2.5 * torch.arange(self.num_envs)
        return SimpleNamespace(terrain_origins=origins, env_origins=env_origins)

    def _robot(self) -> Articulation:
        robot = Articulation.__new__(Articulation)
        robot.cfg, robot._device, robot._clear_callbacks = self.cfg.robot.copy(), "cpu", lambda: None
        robot._debug_vis_handle = None
        robot.cfg.articulation_root_prim_path = ""
        world = SimpleNamespace(
            get_gravity=lambda: (0.0, 0.0, -9.81),
            update_articulations_kinematic=lambda: None,
            create_articulation_view=lambda path: self.view,
        )
        for module in (articulation, articulation_data):
            module.SimulationManager = SimpleNamespace(get_physics_sim_view=lambda: world)
        robot._initialize_impl()
        return robot

    def _scanner(self) -> RayCaster:
        scanner = _as_sensor(RayCaster.__new__(RayCaster), self.cfg.height_scanner, self.num_envs)
        scanner._view = FakeBodies(self.view, self.cfg.height_scanner.prim_path.rpartition("/")[2])
        scanner._offset = (torch.zeros(self.num_envs, 3), torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(self.num_envs, 1))
        scanner._data = RayCasterData()
        scanner._initialize_rays_impl()
        return scanner

    def _contacts(self) -> ContactSensor:
        contacts = _as_sensor(ContactSensor.__new__(ContactSensor), self.cfg.contact_forces, self.num_envs)
        contacts._num_bodies, contacts._data = len(BODIES), ContactSensorData()
        contacts._data.net_forces_w = torch.zeros(self.num_envs, len(BODIES), 3)
        contacts._data.net_forces_w_history = contacts._data.net_forces_w.unsqueeze(1)
        contacts._body_physx_view = SimpleNamespace(prim_paths=[f"/World/envs/env_0/Robot/{body}" for body in BODIES])
        contacts._contact_physx_view = SimpleNamespace(get_net_contact_forces=lambda dt: self.view.forces.view(-1, 3))
        return contacts

    def reset(self, env_ids: Any = None) -> None:
        for entity in self._entities.values():
            entity.reset(env_ids)

    def write_data_to_sim(self) -> None:
        self["robot"].write_data_to_sim()

    def update(self, dt: float) -> None:
        for entity in self._entities.values():
            entity.update(dt)


class FakeSimulation:
    """In place of Isaac Lab's simulation context."""

    RenderMode = SimpleNamespace(PARTIAL_RENDERING=1)
    render_mode = 0
    scene: FakeScene

    def __init__(self, cfg: Any) -> None:
        self.cfg, self.device = cfg, "cpu"

    @staticmethod
    def instance() -> None:
        return None

    def get_initial_stage(self) -> None:
        return None

    def is_playing(self) -> bool:
        return True

    def has_gui(self) -> bool:
        return False

    has_rtx_sensors = has_gui

    def reset(self) -> None:
        self.scene.view.advance()

    def forward(self) -> None:
        pass

    clear_all_callbacks = clear_instance = forward

    def step(self, render: bool) -> None:
        self.scene.view.advance()


def install() -> None:
    """From now on Isaac Lab's manager-based environments run on the fakes."""

    def scene_of(cfg: Any) -> FakeScene:
        FakeSimulation.scene = FakeScene(cfg)
        return FakeSimulation.scene

    builtins.ISAAC_LAUNCHED_FROM_TERMINAL = False
    manager_based_env.SimulationContext = FakeSimulation
    manager_based_env.InteractiveScene = scene_of
    manager_based_env.use_stage = lambda stage: contextlib.nullcontext()
    manager_based_env.attach_stage_to_usd_context = lambda: None


def make_env(task_id: str, num_envs: int, **changes: Any) -> Any:
    """A registered environment on the fakes, by way of gymnasium; `changes` are of its top-level settings."""
    cfg = load_cfg_from_registry(task_id, "env_cfg_entry_point")
    cfg.scene.num_envs, cfg.sim.device = num_envs, "cpu"
    for name, value in changes.items():
        setattr(cfg, name, value)
    return gymnasium.make(task_id, cfg=cfg).unwrapped
