"""Tasks as pure functions: observation layout, commands, courses, dynamics and actions."""

from __future__ import annotations

import ast
import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from helpers.trainer.states import fresh_episode, quaternion, standing

import trainer.tasks
from trainer.engines.mjcf.model import mjcf_path
from trainer.engines.mujoco.env import MujocoEnv
from trainer.tasks import TASKS, LocomotionTask, make_task
from trainer.tasks.robots import G1, ROBOTS, Motor, RobotSpec, by_pattern
from trainer.tasks.rotation import gravity_in_body, rotate_inverse, wrap_angle, yaw_of
from trainer.tasks.scan import scan_points


@pytest.fixture
def task():
    return make_task("g1-flat")


def test_tasks_know_no_engine():
    folder = Path(trainer.tasks.__file__).parent
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any("engine" in name or "mujoco" in name for name in names), file


def test_unknown_task_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"'g1-flatt' \(did you mean 'g1-flat'\?\)"):
        make_task("g1-flatt")


def test_proprioception_is_the_papers_96_and_a_clock(task):
    state, episode = standing(task), fresh_episode(task)
    state.root_ang_vel = torch.tensor([1.0, 2.0, 3.0]).repeat(3, 1)
    state.root_quat = quaternion((1, 0, 0), 0.5).repeat(3, 1)
    episode.command = torch.tensor([0.5, -0.1, 0.3]).repeat(3, 1)
    state.joint_pos = (task.default_pos + torch.arange(29.0)).repeat(3, 1)
    state.joint_vel = -torch.arange(29.0).repeat(3, 1)
    episode.action = 100 + torch.arange(29.0).repeat(3, 1)
    row = task.proprio(state, episode)[0]
    assert task.proprio_size == len(row) == 98
    assert make_task("g1-parkour-paper").proprio_size == 96
    assert row[:3].tolist() == [1.0, 2.0, 3.0]
    # rolled to the right by 0.5 rad: gravity points to the body's right, -y
    assert row[3:6].tolist() == pytest.approx([0.0, -math.sin(0.5), -math.cos(0.5)], abs=1e-6)
    assert row[6:9].tolist() == pytest.approx([0.5, -0.1, 0.3])
    assert row[9:38].tolist() == pytest.approx(list(range(29)), abs=1e-5)
    assert row[38:67].tolist() == [-float(i) for i in range(29)]
    assert row[67:96].tolist() == [100.0 + i for i in range(29)]
    assert row[96:].tolist() == episode.clock[0].tolist()


def test_observation_groups_have_the_papers_sizes(task):
    groups = task.observe(standing(task), fresh_episode(task), torch.Generator())
    assert {name: tuple(value.shape) for name, value in groups.items()} == {
        "proprio": (3, 98),
        "history": (3, 5 * 98),
        "extero": (3, 11 * 17),
        "velocity": (3, 3),
        "critic": (3, 98 + 3 + 3 + 187 + 2 + 2 + 5),
    }


def test_noise_has_the_tables_ranges(task):
    clean = torch.zeros(4000, 98)
    noise = task.noisy(clean, torch.Generator().manual_seed(0))
    widths = noise.abs().amax(0)
    expected = torch.cat(
        [torch.full((n,), w) for n, w in ((3, 0.05), (3, 0.05), (3, 0.0), (29, 0.01), (29, 0.1), (31, 0.0))]
    )
    assert (widths <= expected).all()
    assert (widths >= 0.99 * expected).all()
    groups = task.observe(standing(task, 2000), fresh_episode(task, 2000), torch.Generator().manual_seed(0))
    assert groups["extero"].abs().max().item() == pytest.approx(0.01, rel=1e-2)
    critic_scan = groups["critic"][:, task.critic_scan]
    assert critic_scan.abs().max() < 1e-6  # the critic's is not noisy


def test_the_clock_runs_while_there_is_somewhere_to_go(task):
    """0.8 s a stride: a quarter of it after ten control steps; a command to stand stops it."""
    episode = fresh_episode(task)
    episode.step = torch.tensor([0, 10, 10])
    episode.command = torch.tensor([[0.5, 0.0, 0.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.05]])
    assert task.clock(episode).flatten().tolist() == pytest.approx([0, 1, 1, 0, 0, 0], abs=1e-6)


@pytest.mark.parametrize("robot", ROBOTS.values(), ids=ROBOTS)
def test_a_robots_ranges_are_its_models(robot):
    joints = {joint.get("name"): joint.get("range") for joint in ElementTree.parse(mjcf_path(robot)).iter("joint")}
    for name, declared in zip(robot.joint_names, robot.joint_range, strict=True):
        assert [float(end) for end in joints[name].split()] == pytest.approx(declared, abs=1e-5), name


def test_a_clock_and_its_period_go_together():
    with pytest.raises(ValueError, match="a gait_period and the proprioception 'clock' go together"):
        replace(TASKS["g1-flat"], gait_period=0.0, stride={}, rewards={})
    with pytest.raises(ValueError, match="stride needs a clock"):
        replace(TASKS["g1-flat"], gait_period=0.0, rewards={})
    with pytest.raises(ValueError, match="gait needs a clock"):
        replace(TASKS["g1-flat"], gait_period=0.0, stride={})
    with pytest.raises(ValueError, match="off_line needs a line: keep_heading=true"):
        replace(TASKS["g1-parkour"], keep_heading=False)
    with pytest.raises(ValueError, match="left_hipp: no name matches this pattern"):
        LocomotionTask(replace(TASKS["g1-flat"], stride={"left_hipp": 0.3}))
    with pytest.raises(ValueError, match="a gait_period and the proprioception 'clock' go together"):
        replace(TASKS["walker-parkour"], proprio=("gravity", "joint_pos"))


def test_a_robot_beside_its_line_is_steered_back():
    """Towards a point one metre ahead on the line: 45° for one that stands a metre beside it, whichever way it goes."""
    task = make_task("g1-parkour")
    for heading in (0.0, 2.0):
        state, episode = standing(task), fresh_episode(task)
        left = torch.tensor([-math.sin(heading), math.cos(heading)])
        episode.heading[:], episode.line[:] = heading, torch.tensor([3.0, -1.0])
        state.root_pos[:, :2] = episode.line + torch.tensor([[0.0], [1.0], [-1.0]]) * left
        state.root_quat = quaternion((0, 0, 1), heading).repeat(3, 1)
        yaw_rate = task.steered(state, episode)[:, 2]
        assert yaw_rate.tolist() == pytest.approx([0.0, -0.8 * math.pi / 4, 0.8 * math.pi / 4], abs=1e-5)


def test_the_line_of_a_course_is_its_middle():
    """However a robot is turned and placed at the start; from the middle of a pyramid it goes as it looks."""
    task = LocomotionTask(replace(TASKS["g1-parkour"], terrains=("gaps", "pyramid_stairs")))
    env = MujocoEnv(task, 12, num_threads=1)
    course = env.running.curriculum.terrain_type == 0
    assert env.state.yaw[course].abs().max() > 0.01
    assert env.episode.heading[course].abs().max() < 1e-6
    assert env.episode.line[course].tolist() == [[-4.0, 0.0]] * 6
    torch.testing.assert_close(env.episode.heading[~course], env.state.yaw[~course], atol=1e-5, rtol=0)
    torch.testing.assert_close(env.episode.line[~course], env.episode.spawn[~course])


def test_scan_is_zero_on_the_ground_and_positive_over_a_hole(task):
    state = standing(task)
    state.scan[:, 5] = -0.3
    state.scan[:, 6] = -5.0
    scan = task.scan(state)
    assert scan[0, :7].tolist() == pytest.approx([0, 0, 0, 0, 0, 0.3, 1.0], abs=1e-6)


def test_scan_points_are_rows_of_y_and_columns_of_x():
    points = scan_points().view(11, 17, 2)
    assert torch.allclose(points[:, :, 0], torch.linspace(-0.8, 0.8, 17).expand(11, 17))
    assert torch.allclose(points[:, :, 1], torch.linspace(-0.5, 0.5, 11)[:, None].expand(11, 17))


def test_rotations_against_known_turns():
    quarter = quaternion((0, 0, 1), math.pi / 2)[None]
    assert torch.allclose(
        rotate_inverse(quarter, torch.tensor([[0.0, 1.0, 0.0]])), torch.tensor([[1.0, 0, 0]]), atol=1e-6
    )
    assert yaw_of(quarter).item() == pytest.approx(math.pi / 2)
    generator = torch.Generator().manual_seed(0)
    quats = torch.nn.functional.normalize(torch.randn(50, 4, generator=generator), dim=-1)
    down = torch.tensor([0.0, 0.0, -1.0]).expand(50, 3)
    assert torch.allclose(gravity_in_body(quats), rotate_inverse(quats, down), atol=1e-5)
    assert wrap_angle(torch.tensor(3 * math.pi / 2)).item() == pytest.approx(-math.pi / 2, abs=1e-6)


def test_velocity_is_in_the_body_frame(task):
    state = standing(task)
    state.root_quat = quaternion((0, 0, 1), math.pi / 2).repeat(3, 1)
    state.root_lin_vel = torch.tensor([0.0, 0.7, 0.0]).repeat(3, 1)  # north, and the robot faces north
    assert torch.allclose(task.velocity(state), torch.tensor([0.7, 0.0, 0.0]).expand(3, 3), atol=1e-6)


def test_what_follows_from_a_state_follows_its_changes(task):
    state = standing(task)
    assert state.foot_contact.all()
    assert state.tilt.tolist() == [0.0, 0.0, 0.0]
    lying = standing(task, 1)
    lying.root_quat = torch.tensor([[0.5**0.5, 0.0, 0.5**0.5, 0.0]])
    lying.foot_force = torch.zeros(1, 2, 3)
    state.assign(torch.tensor([1]), vars(lying))
    assert state.tilt.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=1e-6)
    assert state.foot_contact.all(-1).tolist() == [True, False, True]
    state.root_quat = standing(task).root_quat
    assert state.tilt.tolist() == [0.0, 0.0, 0.0]


def test_the_papers_curriculum_is_a_task_of_its_own():
    ours, paper = TASKS["g1-parkour"], TASKS["g1-parkour-paper"]
    assert (paper.num_levels, paper.first_difficulty, paper.demote_on_fall, paper.redraw_solved) == (6, 0, True, False)
    assert set(ours.terrains) - set(paper.terrains) == {"flat"}
    assert {**paper.rewards, "gait": 2.0, "lift": -15.0} == ours.rewards
    assert (paper.gait_period, "clock" in paper.proprio) == (0, False)
    assert TASKS["walker-parkour-paper"].proprio == ("gravity", "command", "joint_pos", "action")


def test_commands_stay_in_range_and_some_stand():
    task = make_task("g1-flat")
    command, steps = task.sample_command(5000, torch.Generator().manual_seed(0))
    config = task.config
    for column, (low, high) in enumerate((config.command_x, config.command_y, config.command_yaw)):
        moving = command[(command != 0).any(-1), column]
        assert moving.min() >= low
        assert moving.max() <= high
    assert (command == 0).all(-1).float().mean().item() == pytest.approx(0.05, abs=0.01)
    assert steps.min() >= 200
    assert steps.max() <= 400


def test_course_commands_turn_back_to_the_heading():
    task = make_task("g1-parkour")
    state, episode = standing(task), fresh_episode(task)
    state.root_quat[0] = quaternion((0, 0, 1), 0.3)
    state.root_quat[1] = quaternion((0, 0, 1), -2.5)
    assert task.steered(state, episode)[:, 2].tolist() == pytest.approx([-0.24, 0.8, 0.0], abs=1e-6)
    flat = make_task("g1-flat")
    episode.command[:, 2] = 0.4
    assert flat.steered(state, episode)[:, 2].tolist() == pytest.approx([0.4] * 3)


def test_dynamics_have_the_tables_ranges():
    drawn = make_task("g1-parkour").sample_dynamics(5000, torch.Generator().manual_seed(0))
    low, high = torch.tensor([[0.3, 1.0], [-1.0, 3.0], [-0.05, 0.05], [-0.05, 0.05], [-0.01, 0.01]]).unbind(-1)
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    assert torch.allclose(drawn.amin(0), low, atol=0.01)
    assert torch.allclose(drawn.amax(0), high, atol=0.01)


def test_action_zero_is_the_stance_and_scales_are_the_motors(task):
    targets = task.targets(torch.zeros(1, 29), torch.zeros(1, 2))
    assert torch.equal(targets[0], task.default_pos)
    one = task.targets(torch.ones(1, 29), torch.zeros(1, 2))[0] - task.default_pos
    knee = G1.joint_names.index("left_knee_joint")
    assert one[knee].item() == pytest.approx(0.25 * 139 / (0.025101925 * (20 * math.pi) ** 2), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": {"nonsense": 1.0}}, "no reward term 'nonsense'"),
        ({"proprio": ("smell",)}, "no proprioception 'smell'"),
        ({"num_levels": 1}, "num_levels must be at least 2"),
        ({"terrains": ("ice",)}, "no terrain 'ice'"),
        ({"first_difficulty": 1.5}, "first_difficulty must be at least 0 and at most 1, got 1.5"),
        ({"last_difficulty": 0.1}, "at least first_difficulty = 0.2 and at most 1, got 0.1"),
        ({"demote_below": -0.1}, "demote_below must be at least 0 and at most 1, got -0.1"),
        ({"soft_until": -1}, "soft_until must be at least 0, got -1"),
        ({"pit_depth": float("nan")}, "pit_depth must be at least 0 and at most 1, got nan"),
    ],
)
def test_wrong_task_settings_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        replace(TASKS["g1-flat"], **change)


def test_joint_patterns_must_match_once():
    with pytest.raises(ValueError, match="knee: expected one matching pattern, found 2"):
        by_pattern(("knee",), {"kn.*": 1.0, ".*ee": 2.0})
    with pytest.raises(ValueError, match="hip: expected one matching pattern, found 0"):
        by_pattern(("hip", "knee"), {"knee": 1.0})


def test_robot_tables_must_have_an_entry_for_each_joint():
    with pytest.raises(ValueError, match="motors has 0 entries for 2"):
        RobotSpec("r", ("a", "b"), (), (0.0, 0.0), (1.0, 1.0), 1.0, ("f",), (0, 0, 0), "t")
    assert replace(G1, sole_points=()).sole_points == (G1.sole,)


def test_motor_gains_are_those_of_the_response_they_promise():
    motor = Motor.of_rotor(0.01, 50.0)
    omega = 2 * math.pi * 10
    assert motor.stiffness / motor.armature == pytest.approx(omega**2)
    assert motor.damping / (2 * math.sqrt(motor.stiffness * motor.armature)) == pytest.approx(2.0)
