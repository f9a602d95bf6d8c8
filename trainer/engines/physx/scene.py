"""Stand-ins for Isaac Sim's part of a scene, around any view of the robots: PhysX's own, or a test's.

Robot, ray-caster, contact sensor and terrain generator are Isaac Lab's; what they would look up in USD through Isaac
Sim is given to them here.
"""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
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
from torch import Tensor

from trainer.engines.physx.stage import GROUND, Mesh


class RobotView(Protocol):
    """What a scene needs of the robots beside the tensors that Isaac Lab's articulation asks for."""

    count: int
    shared_metatype: SimpleNamespace

    def advance(self) -> None:
        """One physics step."""

    def update_articulations_kinematic(self) -> None:
        """Brings the links' poses up to date with positions just written."""

    def get_net_contact_forces(self, dt: float) -> Tensor:
        """[E·L, 3]."""

    def get_link_transforms(self) -> Tensor:
        """[E, L, 7]."""


ViewMaker = Callable[[np.ndarray, "Mesh | None", Any, Any], RobotView]
"""Makes the view of robots at origins [E, 3] on a mesh or the plane, with Isaac Lab's `SimulationCfg` and robot."""


class _Bodies(physx.RigidBodyView):
    """The view through which Isaac Lab's ray-caster follows a body."""

    def __init__(self, view: RobotView, body: str) -> None:
        self._view, self._body, self.count = view, view.shared_metatype.link_names.index(body), view.count

    def get_transforms(self) -> Tensor:
        return self._view.get_link_transforms()[:, self._body]


class _MeshHandle:
    """What the ray-caster asks of a mesh; has no `__dict__`, into which the next environment's `validate` would go."""

    __slots__ = ("device", "id", "mesh")

    def __init__(self, mesh: Any) -> None:
        self.mesh = convert_to_warp_mesh(mesh.vertices, mesh.faces, device="cpu")
        self.device, self.id = self.mesh.device, self.mesh.id


def _as_sensor(sensor: Any, cfg: Any, num_envs: int, dt: float) -> Any:
    """The part of a sensor's initialisation that does not ask USD."""
    sensor.cfg, sensor._device, sensor._num_envs, sensor._debug_vis_handle = cfg, "cpu", num_envs, None
    sensor._is_outdated = torch.ones(num_envs, dtype=torch.bool)
    sensor._timestamp, sensor._timestamp_last_update = torch.zeros(num_envs), torch.zeros(num_envs)
    sensor._sim_physics_dt, sensor._is_visualizing, sensor._clear_callbacks = dt, False, lambda: None
    return sensor


class StandInScene:
    """In place of `InteractiveScene`: Isaac Lab's own robot, ray-caster and contact sensor, and its terrain.

    Args:
        cfg: Isaac Lab's settings of the scene.
        sim_cfg: And of the simulation.
        make_view: Makes the robots.

    Attributes:
        view: The robots.
    """

    def __init__(self, cfg: Any, sim_cfg: Any, make_view: ViewMaker) -> None:
        self.cfg, self.num_envs, self.device, self._dt = cfg, cfg.num_envs, "cpu", sim_cfg.dt
        self.terrain, mesh = self._make_terrain(cfg.terrain)
        self.view = make_view(self.terrain.env_origins.numpy(), mesh, sim_cfg, cfg.robot)
        self._bodies = self.view.shared_metatype.link_names
        self._entities = {"robot": self._robot(), "height_scanner": self._scanner(), "contact_forces": self._contacts()}

    @property
    def env_origins(self) -> Tensor:
        """[E, 3]."""
        return cast("Tensor", self.terrain.env_origins)

    def keys(self) -> list[str]:
        """Names of robot and sensors."""
        return list(self._entities)

    def __getitem__(self, name: str) -> Any:
        return self._entities[name]

    def _make_terrain(self, cfg: Any) -> tuple[SimpleNamespace, Mesh | None]:
        origins = None
        if cfg.terrain_type == "generator":
            generated = TerrainGenerator(cfg.terrain_generator)
            surface, origins = generated.terrain_mesh, torch.from_numpy(generated.terrain_origins).float()
        else:
            surface = make_plane(size=(2e6, 2e6), height=0.0, center_zero=True)
        RayCaster.meshes[GROUND] = _MeshHandle(surface)
        env_origins = torch.zeros(self.num_envs, 3)
        env_origins[:, 0] = 2.5 * torch.arange(self.num_envs)
        terrain = SimpleNamespace(terrain_origins=origins, env_origins=env_origins)
        return terrain, None if origins is None else Mesh(np.array(surface.vertices), np.array(surface.faces))

    def _robot(self) -> Articulation:
        robot = Articulation.__new__(Articulation)
        robot.cfg, robot._device, robot._clear_callbacks = self.cfg.robot.copy(), "cpu", lambda: None
        robot._debug_vis_handle = None
        robot.cfg.articulation_root_prim_path = ""
        world = SimpleNamespace(
            get_gravity=lambda: (0.0, 0.0, -9.81),
            update_articulations_kinematic=self.view.update_articulations_kinematic,
            create_articulation_view=lambda path: self.view,
        )
        for module in (articulation, articulation_data):
            module.SimulationManager = SimpleNamespace(get_physics_sim_view=lambda: world)
        robot._initialize_impl()
        return robot

    def _scanner(self) -> RayCaster:
        scanner = _as_sensor(RayCaster.__new__(RayCaster), self.cfg.height_scanner, self.num_envs, self._dt)
        scanner._view = _Bodies(self.view, self.cfg.height_scanner.prim_path.rpartition("/")[2])
        scanner._offset = (torch.zeros(self.num_envs, 3), torch.tensor([1.0, 0.0, 0.0, 0.0]).repeat(self.num_envs, 1))
        scanner._data = RayCasterData()
        scanner._initialize_rays_impl()
        return scanner

    def _contacts(self) -> ContactSensor:
        contacts = _as_sensor(ContactSensor.__new__(ContactSensor), self.cfg.contact_forces, self.num_envs, self._dt)
        contacts._num_bodies, contacts._data = len(self._bodies), ContactSensorData()
        contacts._data.net_forces_w = torch.zeros(self.num_envs, len(self._bodies), 3)
        contacts._data.net_forces_w_history = contacts._data.net_forces_w.unsqueeze(1)
        paths = [f"/World/envs/env_0/Robot/{body}" for body in self._bodies]
        contacts._body_physx_view = SimpleNamespace(prim_paths=paths)
        contacts._contact_physx_view = SimpleNamespace(get_net_contact_forces=self.view.get_net_contact_forces)
        return contacts

    def reset(self, env_ids: Any = None) -> None:
        """Resets the buffers of robot and sensors."""
        for entity in self._entities.values():
            entity.reset(env_ids)

    def write_data_to_sim(self) -> None:
        """Writes the targets into the drives."""
        self["robot"].write_data_to_sim()

    def update(self, dt: float) -> None:
        """Updates the buffers of robot and sensors after a physics step."""
        for entity in self._entities.values():
            entity.update(dt)


class StandInSimulation:
    """In place of Isaac Lab's simulation context."""

    RenderMode = SimpleNamespace(PARTIAL_RENDERING=1)
    render_mode = 0
    scene: StandInScene

    def __init__(self, cfg: Any) -> None:
        self.cfg, self.device = cfg, "cpu"

    @staticmethod
    def instance() -> None:
        """None: every environment makes its own."""
        return

    def get_initial_stage(self) -> None:
        """None: the view has its stage."""
        return

    def is_playing(self) -> bool:
        """True: the physics runs whenever it is stepped."""
        return True

    def has_gui(self) -> bool:
        """False: there is no window."""
        return False

    has_rtx_sensors = has_gui

    def reset(self) -> None:
        """Starts the physics."""
        self.scene.view.advance()

    def forward(self) -> None:
        """Brings kinematics up to date."""
        self.scene.view.update_articulations_kinematic()

    def step(self, render: bool) -> None:
        """One physics step."""
        self.scene.view.advance()

    def clear_all_callbacks(self) -> None:
        """Does nothing: there are no callbacks."""

    clear_instance = clear_all_callbacks


def install(make_view: ViewMaker) -> None:
    """From now on Isaac Lab's manager-based environments of this process are made of the stand-ins."""
    simulations: list[StandInSimulation] = []

    def simulation_of(cfg: Any) -> StandInSimulation:
        simulations[:] = [StandInSimulation(cfg)]
        return simulations[0]

    def scene_of(cfg: Any) -> StandInScene:
        simulations[0].scene = StandInScene(cfg, simulations[0].cfg, make_view)
        return simulations[0].scene

    # Any: a builtin that Isaac Lab's app would set.
    cast("Any", builtins).ISAAC_LAUNCHED_FROM_TERMINAL = False
    simulation_of.instance = StandInSimulation.instance  # type: ignore[attr-defined]
    manager_based_env.SimulationContext = simulation_of
    manager_based_env.InteractiveScene = scene_of
    manager_based_env.use_stage = lambda stage: contextlib.nullcontext()
    manager_based_env.attach_stage_to_usd_context = lambda: None
