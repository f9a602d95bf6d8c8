"""Reads `RobotState` from an Isaac Lab scene: bodies, joints and scan points by name and place, never by its order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from isaaclab.assets import Articulation
from isaaclab.scene import InteractiveScene
from isaaclab.sensors import ContactSensor, RayCaster
from isaaclab.utils.math import quat_apply
from torch import Tensor

from trainer.engines.ground import Ground
from trainer.tasks.robots import RobotSpec
from trainer.tasks.rotation import yaw_of
from trainer.tasks.scan import scan_points
from trainer.tasks.state import RobotState
from trainer.tasks.terrains import PIT_FLOOR

_TRUNK_TOUCH = 1.0
"""N on the trunk, above which it touches the terrain; the native engine's value."""


def rows(env_ids: Tensor) -> Sequence[int]:
    """env_ids [K] for the signatures of Isaac Lab's writers, which do not name the tensors that its own code passes."""
    return cast("Sequence[int]", env_ids)


def scan_order(rays: Tensor) -> Tensor:
    """[S] int64: for each scan point of the task, the ray that starts there.

    Args:
        rays: [R, 2]: where the rays of a pattern start, x and y in the sensor's frame.

    Raises:
        ValueError: A point has no ray.
    """
    points = scan_points().to(rays.device)
    distance = torch.cdist(points, rays, compute_mode="donot_use_mm_for_euclid_dist")
    nearest = distance.argmin(-1)
    missing = distance.gather(-1, nearest[:, None]).squeeze(-1) > 1e-4  # a tenth of a millimetre: rounding of sums
    if missing.any():
        x, y = points[missing][0].tolist()
        raise ValueError(f"height_scanner: no ray starts at x = {x:g}, y = {y:g}, which the task's scan needs")
    return nearest


class StateReader:
    """The robots of a scene as the task sees them.

    Args:
        scene: With `robot`, `contact_forces` and `height_scanner`, initialised.
        robot: Whose joints and feet are read, in its order.
        ground: Terrain heights below the feet.
        scan_from_maps: Take the height scan from `ground` instead of the scanner, whose rays end on filled pits.

    Attributes:
        robot: The articulation.
        joints: Isaac Lab's indices of the robot's joints, in our order.
        dynamics: [E, 5]: as in `RobotState`; what the simulator has once `read_dynamics` was called.

    Raises:
        ValueError: The asset lacks a joint or a body, or the scanner a ray.
    """

    def __init__(
        self, scene: InteractiveScene, robot: RobotSpec, ground: Ground, *, scan_from_maps: bool = False
    ) -> None:
        self.robot: Articulation = scene["robot"]
        self._contacts: ContactSensor = scene["contact_forces"]
        self._scanner: RayCaster = scene["height_scanner"]
        self._ground, self._scan_from_maps = ground, scan_from_maps
        device = self.robot.device
        self.joints = self.robot.find_joints(list(robot.joint_names), preserve_order=True)[0]
        self._feet = self.robot.find_bodies(list(robot.feet), preserve_order=True)[0]
        self._trunk = self.robot.find_bodies([robot.trunk])[0][0]
        self._foot_sensors = self._contacts.find_bodies(list(robot.feet), preserve_order=True)[0]
        self._trunk_sensors = self._contacts.find_bodies(list(robot.no_contact))[0]
        self._rays = scan_order(self._scanner.ray_starts[0, :, :2])
        self._sole = torch.tensor(robot.sole, device=device)
        self._sole_points = torch.tensor(robot.sole_points, device=device)
        self._com = self.robot.root_physx_view.get_coms()[:, self._trunk, :3].clone()
        self.dynamics = torch.zeros(scene.num_envs, 5, device=device)

    def read_dynamics(self) -> None:
        """Asks the simulator what the randomisation has given each robot; these tensors of PhysX are on the CPU."""
        view = self.robot.root_physx_view
        friction = view.get_material_properties()[:, 0, :1]  # all shapes of a robot have one material
        mass = view.get_masses()[:, self._trunk, None] - self.robot.data.default_mass[:, self._trunk, None].cpu()
        com = view.get_coms()[:, self._trunk, :3] - self._com
        self.dynamics.copy_(torch.cat([friction, mass, com], -1))

    def write_dynamics(self, env_ids: Tensor, dynamics: Tensor) -> None:
        """Gives the robots env_ids [K] dynamics [K, 5], as `RobotState` has them; restitution stays as it is."""
        view, trunk, rows, dynamics = self.robot.root_physx_view, self._trunk, env_ids.cpu(), dynamics.cpu()
        materials, masses, inertias = view.get_material_properties(), view.get_masses(), view.get_inertias()
        default_mass = self.robot.data.default_mass[rows, trunk].cpu()
        materials[rows, :, :2] = dynamics[:, :1, None]
        masses[rows, trunk] = default_mass + dynamics[:, 1]
        scale = 1.0 + dynamics[:, 1] / default_mass  # as native MuJoCo's engine does it
        inertias[rows, trunk] = self.robot.data.default_inertia[rows, trunk].cpu() * scale[:, None]
        view.set_material_properties(materials, rows)
        view.set_masses(masses, rows)
        view.set_inertias(inertias, rows)
        # Read after that: writing inertias turns the axes that come with the centres of mass, of every body.
        coms = view.get_coms()
        coms[rows, trunk, :3] = self._com[rows] + dynamics[:, 2:]
        view.set_coms(coms, rows)
        self.dynamics[env_ids] = dynamics.to(self.dynamics.device)

    def read(self, tile: Tensor, origin: Tensor) -> RobotState:
        """All robots, as new tensors: Isaac Lab writes into its own when it resets a robot.

        Args:
            tile: [E] int64: the tile of each robot.
            origin: [E, 3]: the middle of that tile in the world.
        """
        data = self.robot.data
        # Bodies first: this brings PhysX's kinematics up to date with poses just written, which the scanner reads too.
        foot_quat = data.body_link_quat_w[:, self._feet]
        arm = quat_apply(foot_quat, self._sole.expand(*foot_quat.shape[:-1], 3))
        foot_pos = data.body_link_pos_w[:, self._feet] + arm - origin[:, None]
        spin = torch.linalg.cross(data.body_link_ang_vel_w[:, self._feet], arm)
        turns = foot_quat[:, :, None].expand(-1, -1, len(self._sole_points), 4)
        points = quat_apply(turns, self._sole_points.expand(*turns.shape[:-1], 3))
        points = points + (data.body_link_pos_w[:, self._feet] - origin[:, None])[:, :, None]
        root_pos = data.root_link_pos_w - origin
        forces = self._contacts.data.net_forces_w
        assert forces is not None
        foot_ground, sole_drop = self._ground.below_feet(tile, foot_pos.nan_to_num(), points.nan_to_num())
        return RobotState(
            root_pos=root_pos,
            root_quat=data.root_link_quat_w.clone(),
            root_lin_vel=data.root_link_lin_vel_w.clone(),
            root_ang_vel=data.root_link_ang_vel_b,
            joint_pos=data.joint_pos[:, self.joints],
            joint_vel=data.joint_vel[:, self.joints],
            joint_torque=data.applied_torque[:, self.joints],
            foot_pos=foot_pos,
            foot_vel=data.body_link_lin_vel_w[:, self._feet] + spin,
            foot_force=forces[:, self._foot_sensors],
            body_contact=(forces[:, self._trunk_sensors].norm(dim=-1) > _TRUNK_TOUCH).any(-1),
            scan=self._scan(tile, root_pos, origin),
            foot_ground=foot_ground,
            sole_drop=sole_drop,
            dynamics=self.dynamics.clone(),
        )

    def _scan(self, tile: Tensor, root_pos: Tensor, origin: Tensor) -> Tensor:
        if self._scan_from_maps:
            yaw = yaw_of(self.robot.data.root_link_quat_w.nan_to_num())
            return self._ground.scan(tile, root_pos.nan_to_num(), (yaw.cos(), yaw.sin()))
        scan = self._scanner.data.ray_hits_w[:, self._rays, 2] - origin[:, 2:]
        return torch.where(torch.isfinite(scan), scan, PIT_FLOOR)  # a ray beyond the terrain's edge hits nothing
