"""The robot that PhysX has is the one that native MuJoCo has, with the motors that Isaac Lab was told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from robots import PHYSICS_DT, Twin, lift, physics_step, plain_env
from torch import Tensor

from trainer.engines.registry import make_env
from trainer.tasks import make_task
from trainer.tasks.robots import G1

Measured = Callable[..., None]


@pytest.fixture(scope="module")
def env() -> Any:
    return plain_env(3)


@pytest.fixture(scope="module")
def view(env: Any) -> Any:
    return env.simulation.scene.view


def by_name(view: Any, field: str) -> Tensor:
    """[J]: a field of the G1's motors, in PhysX's order."""
    values = dict(zip(G1.joint_names, (getattr(motor, field) for motor in G1.motors), strict=True))
    return torch.tensor([values[name] for name in view.shared_metatype.dof_names])


def test_joints_and_bodies_are_the_robot_s(view: Any, measured: Measured) -> None:
    """Every joint and body of the G1 is there once, by name, in an order of PhysX's own."""
    names = view.shared_metatype.dof_names
    assert sorted(names) == sorted(G1.joint_names)
    assert names != list(G1.joint_names)  # or the orders would never be compared
    twin = Twin(view)
    assert len(set(twin.bodies)) == twin.model.nbody - 1
    measured(joints=len(names), bodies=len(twin.bodies))


def test_gains_limits_and_armatures_arrive(view: Any, measured: Measured) -> None:
    """Stiffness, damping, effort limits, armatures and joint ranges in PhysX are the motors' and the model's."""
    twin = Twin(view)
    for tensor, field in (
        ("dof_stiffnesses", "stiffness"),
        ("dof_dampings", "damping"),
        ("dof_max_forces", "effort"),
        ("dof_armatures", "armature"),
    ):
        found = getattr(view, f"get_{tensor}")()
        torch.testing.assert_close(found, by_name(view, field).expand_as(found), rtol=1e-5, atol=1e-7)
    ranges = torch.stack(
        [torch.from_numpy(twin.model.joint(name).range) for name in view.shared_metatype.dof_names]
    ).float()
    torch.testing.assert_close(view.get_dof_limits()[0], ranges, rtol=0, atol=1e-5)
    measured(largest_limit_error=float((view.get_dof_limits()[0] - ranges).abs().max()))


def test_inertias_are_native_mujoco_s(env: Any, view: Any, measured: Measured) -> None:
    """Masses, the joints' mass matrix and the torques of gravity are MuJoCo's at the same pose."""
    twin = Twin(view)
    twin.pose()
    mass = torch.from_numpy(twin.model.body_mass[twin.bodies]).float()
    torch.testing.assert_close(view.get_masses()[0], mass, rtol=1e-5, atol=1e-6)
    matrix = view.get_generalized_mass_matrices()[0, 6:, 6:].double().numpy()
    gravity = view.get_gravity_compensation_forces()[0, 6:].double().numpy()
    matrix_error = np.abs(matrix - twin.mass_matrix()).max()
    gravity_error = np.abs(gravity - twin.data.qfrc_bias[twin.dofs]).max()
    assert np.abs(matrix).max() > 0.5
    assert matrix_error < 1e-4
    assert np.abs(gravity).max() > 3.0
    assert gravity_error < 1e-3
    measured(mass_matrix_error=float(matrix_error), gravity_torque_error=float(gravity_error))


def test_positions_after_a_reset_are_native_mujoco_s(env: Any, view: Any, measured: Measured) -> None:
    """Straight after poses were written, before any step, all links are where MuJoCo's kinematics has them."""
    robot = env.simulation.reader.robot
    torch.manual_seed(4)
    joint_pos = robot.data.default_joint_pos + 0.3 * torch.randn(3, robot.num_joints)
    pose = robot.data.root_link_pose_w.clone()
    pose[:, :3] += torch.tensor([0.3, -0.2, 1.0])
    robot.write_root_link_pose_to_sim(pose)
    robot.write_joint_state_to_sim(joint_pos, torch.zeros_like(joint_pos))
    twin, errors = Twin(view), []
    for index in range(3):
        twin.pose(index)
        seen = robot.data.body_link_pos_w[index].double().numpy()
        errors.append(np.abs(seen - twin.data.xpos[twin.bodies]).max())
    assert max(errors) < 1e-4
    measured(largest_position_error_m=float(max(errors)))


def test_link_velocities_are_those_of_the_links(env: Any, view: Any, measured: Measured) -> None:
    """Isaac Lab's link velocities agree with finite differences of positions; PhysX's own are of the mass centres."""
    lift(env, 3.0)
    data = env.simulation.reader.robot.data
    torch.manual_seed(0)
    targets = data.default_joint_pos + 0.3 * torch.randn(3, len(view.shared_metatype.dof_names))
    errors, raw, speeds = [], [], []
    for _ in range(12):
        before, velocity = view.get_link_transforms()[..., :3], data.body_link_lin_vel_w.clone()
        physics_step(env, targets)
        moved = (view.get_link_transforms()[..., :3] - before) / PHYSICS_DT
        errors.append((moved - 0.5 * (velocity + data.body_link_lin_vel_w)).norm(dim=-1))
        raw.append((moved - view.get_link_velocities()[..., :3]).norm(dim=-1))
        speeds.append(moved.norm(dim=-1))
    seen, of_masses, speed = (torch.stack(values[2:]).mean().item() for values in (errors, raw, speeds))
    assert speed > 0.3
    assert seen < 0.05 * speed
    assert of_masses > 1.5 * seen  # or the check could not tell them apart
    measured(mean_error=seen, mean_error_of_raw_velocity=of_masses, mean_speed=speed, unit="m/s")


def test_torque_is_the_motors_law(env: Any, view: Any, measured: Measured) -> None:
    """`applied_torque` is the PD law at the start of the physics step, as MuJoCo's sensor has it.

    PhysX's projected joint force is another quantity: what arrives at the link at the step's end, without the rotor's
    own acceleration. At rest the two are one.
    """
    data = env.simulation.reader.robot.data
    stiffness, damping, effort = (by_name(view, field) for field in ("stiffness", "damping", "effort"))
    torch.manual_seed(1)
    targets = data.default_joint_pos + 1.0 * torch.randn(3, len(effort))
    clipped, law, projected, apart = 0, 0.0, 0.0, 0.0
    for step in range(60):
        position, velocity = view.get_dof_positions(), view.get_dof_velocities()
        physics_step(env, targets if step < 5 else data.default_joint_pos)
        aim = targets if step < 5 else data.default_joint_pos
        wanted = stiffness * (aim - position) - damping * velocity
        clipped += int((wanted.abs() > effort).sum())
        law = max(law, (data.applied_torque - wanted.clamp(-effort, effort)).abs().max().item())
        difference = (view.get_dof_projected_joint_forces() - data.applied_torque).abs().max().item()
        apart, projected = max(apart, difference), difference
    assert clipped > 0
    assert law < 1e-3
    assert apart > 5.0
    assert projected < 1.0
    measured(error_of_the_law=law, projected_force_apart_in_motion=apart, at_the_end=projected, unit="N m")


def test_randomisation_reaches_physx(measured: Measured) -> None:
    """Friction, trunk mass and centre of mass are those drawn for the episode, new ones for a new one; all in range."""
    config = make_task("g1-flat").config
    env = make_env("physx", config, 8, seed=5)
    view, reader = env.simulation.scene.view, env.simulation.reader
    before = reader.dynamics.clone()
    env.simulation._reset_idx(torch.tensor([0, 3, 4, 6, 7]))
    assert (reader.dynamics != before).any(-1).tolist() == [True, False, False, True, True, False, True, True]
    assert (reader.dynamics == env.simulation.managed.dynamics).all()
    twin = Twin(view)
    materials, dynamics = view.get_material_properties(), reader.dynamics
    assert (materials == materials[:, :1]).all()  # one material a robot
    friction, restitution = materials[:, 0, 0], materials[:, 0, 2]
    trunk = view.shared_metatype.link_names.index(G1.trunk)
    added = view.get_masses()[:, trunk] - float(twin.model.body_mass[twin.bodies[trunk]])
    shift = view.get_coms()[:, trunk, :3] - torch.from_numpy(twin.model.body_ipos[twin.bodies[trunk]]).float()
    torch.testing.assert_close(dynamics[:, 0], friction)
    torch.testing.assert_close(dynamics[:, 1], added, atol=1e-5, rtol=0)
    torch.testing.assert_close(dynamics[:, 2:], shift, atol=1e-6, rtol=0)
    ranges = config.dynamics
    for values, (low, high) in (
        (friction, ranges.friction),
        (restitution, ranges.restitution),
        (added, ranges.added_mass),
        (shift[:, :2], ranges.com_xy),
        (shift[:, 2], ranges.com_z),
    ):
        assert ((values >= low - 1e-5) & (values <= high + 1e-5)).all()
        assert len(values.unique()) > 4
    others = [index for index in range(len(twin.bodies)) if index != trunk]
    mass = torch.from_numpy(twin.model.body_mass[twin.bodies]).float()
    torch.testing.assert_close(view.get_masses()[:, others], mass[others].expand(8, -1), rtol=1e-5, atol=1e-6)
    measured(robots=8, largest_added_mass_kg=float(added.max()), largest_friction=float(friction.max()))
