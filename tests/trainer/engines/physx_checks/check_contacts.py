"""Forces, pushes, friction and restitution: what the robots feel is what mechanics says they must."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from robots import GRAVITY, PHYSICS_DT, lift, momentum, physics_step, plain_env, settle, total_force

from trainer.tasks.robots import G1

Measured = Callable[..., None]


def _feet(env: Any) -> list[int]:
    names = env.simulation.scene.view.shared_metatype.link_names
    return [names.index(foot) for foot in G1.feet]


def test_the_weight_is_on_the_feet(measured: Measured) -> None:
    """Standing for half a second, the feet bear the robot's weight within 2 %, and nothing else bears any."""
    env = plain_env(8)
    view = env.simulation.scene.view
    settle(env, 12)
    weight = GRAVITY * view.get_masses().sum(-1)
    before, feet, others, steps = momentum(view)[:, 2], 0.0, 0.0, 100
    for _ in range(steps):
        physics_step(env)
        forces = env.simulation.scene["contact_forces"].data.net_forces_w
        on_feet = forces[:, _feet(env), 2].sum(-1)
        feet, others = feet + on_feet / steps, max(others, (forces[..., 2].sum(-1) - on_feet).abs().max().item())
    # Newton's second law: a robot that sinks or rises bears a little less or more than its weight.
    inertial = (momentum(view)[:, 2] - before) / (steps * PHYSICS_DT)
    error = ((feet - inertial) / weight - 1.0).abs().max().item()
    assert others == 0.0
    assert error < 0.02
    measured(largest_error_of_the_weight=error, robots=8, weight_N=float(weight[0]))


def test_the_sensor_has_normal_forces_alone(measured: Measured) -> None:
    """On a plane the contact sensor's forces are vertical: friction is not in them, as in MuJoCo's touch sensor."""
    env = plain_env(4)
    settle(env, 12)
    largest = 0.0
    robot = env.simulation.reader.robot
    velocity = robot.data.root_com_vel_w.clone()
    velocity[:, 0] += 0.5
    robot.write_root_com_velocity_to_sim(velocity)
    for _ in range(20):
        before = momentum(env.simulation.scene.view)
        physics_step(env)
        largest = max(largest, total_force(env)[:, :2].abs().max().item())
    braking = (momentum(env.simulation.scene.view) - before)[:, :2].norm(dim=-1).max().item() / PHYSICS_DT
    assert largest < 1e-2
    assert braking > 1.0  # friction there is
    measured(largest_horizontal_force_N=largest, friction_at_the_end_N=braking)


def test_a_push_changes_the_velocity_by_what_was_drawn(measured: Measured) -> None:
    """A push that is due adds its velocity to the root; the robots whose push is not due keep theirs."""
    env = plain_env(4)
    settle(env, 5)
    lift(env, 2.0)
    view, running = env.simulation.scene.view, env.simulation.managed.running
    pushed = torch.tensor([0, 2])
    running.draw_pushes = lambda: (pushed, torch.tensor([[0.4, -0.3], [-0.2, 0.5]]))
    before = view.get_root_velocities()
    env.simulation.action_manager.process_action(torch.zeros(4, 29))
    change = view.get_root_velocities() - before
    expected = torch.zeros(4, 6)
    expected[pushed, :2] = torch.tensor([[0.4, -0.3], [-0.2, 0.5]])
    torch.testing.assert_close(change, expected, atol=1e-5, rtol=0)
    measured(largest_error_mps=float((change - expected).abs().max()))


def test_friction_and_restitution_matter(measured: Measured) -> None:
    """Lying robots slide as far as Coulomb's friction lets them; dropped ones bounce with their restitution."""
    env = plain_env(4)
    view, robot = env.simulation.scene.view, env.simulation.reader.robot
    everyone, frictions = torch.arange(4), [0.05, 0.15, 0.4, 0.8]
    settle(env, 120)  # down
    # All as the first one lies, in its place: they do not touch one another.
    robot.write_root_link_pose_to_sim(robot.data.root_link_pose_w[:1].repeat(4, 1))
    joint_pos = robot.data.joint_pos[:1].repeat(4, 1)
    robot.write_joint_state_to_sim(joint_pos, torch.zeros_like(joint_pos))
    materials = view.get_material_properties()
    materials[:, :, 0] = materials[:, :, 1] = torch.tensor(frictions)[:, None]
    view.set_material_properties(materials, everyone)
    torch.testing.assert_close(view.get_material_properties(), materials)
    robot.write_root_com_velocity_to_sim(torch.tensor([[2.0, 0.0, 0.0, 0.0, 0.0, 0.0]]).repeat(4, 1))
    begin = robot.data.root_link_pos_w[:, 0].clone()
    settle(env, 75)
    slid = robot.data.root_link_pos_w[:, 0] - begin
    braked = 2.0**2 / (2 * GRAVITY * torch.tensor(frictions[1:]))  # Coulomb's friction, until it lies still
    torch.testing.assert_close(slid[1:], braked, rtol=0.15, atol=0)
    assert slid[0] > 2.0
    materials[:, :, :2] = 0.6
    materials[:, :, 2] = torch.tensor([0.0, 0.3, 0.6, 0.9])[:, None]
    view.set_material_properties(materials, everyone)
    lift(env, 1.0)
    fastest = torch.full((4,), -torch.inf)
    for _ in range(160):
        physics_step(env)
        fastest = torch.maximum(fastest, momentum(view)[:, 2] / view.get_masses().sum(-1))
    assert (fastest[1:] > fastest[:-1]).all()
    measured(slid_m=slid.tolist(), fastest_upwards_mps=fastest.tolist(), friction=frictions)


def test_robots_do_not_touch_one_another(measured: Measured) -> None:
    """Two robots in one place fall freely through each other, and no contact is told."""
    env = plain_env(2)
    robot = env.simulation.reader.robot
    pose = robot.data.root_link_pose_w.clone()
    pose[:] = pose[0]
    pose[:, 2] += 2.0
    pose[1, :2] += 0.05
    robot.write_root_link_pose_to_sim(pose)
    robot.write_root_link_velocity_to_sim(torch.zeros(2, 6))
    view = env.simulation.scene.view
    before, steps, largest = momentum(view), 40, 0.0
    for _ in range(steps):
        physics_step(env)
        largest = max(largest, env.simulation.scene["contact_forces"].data.net_forces_w.abs().max().item())
    fall = (momentum(view) - before) / view.get_masses().sum(-1)[:, None] / (steps * PHYSICS_DT)
    expected = torch.tensor([0.0, 0.0, -GRAVITY]).expand(2, 3)
    assert largest == 0.0
    torch.testing.assert_close(fall, expected, atol=0.02, rtol=0)
    measured(largest_force_N=largest, largest_error_of_the_fall=float((fall - expected).abs().max()))
