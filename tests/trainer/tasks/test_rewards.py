"""Rewards and terminations as pure functions of a state, by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from helpers.trainer.states import fresh_episode, quaternion, standing

from trainer.tasks import TASKS, LocomotionTask, make_task
from trainer.tasks.rewards import TERMS
from trainer.tasks.robots import G1


@pytest.fixture
def task():
    return make_task("g1-flat")


@pytest.mark.parametrize("name", list(TASKS))
def test_diving_forward_does_not_pay(name):
    """A fall costs, and progress comes in over more time than the 1.4 s that a robot lives which only falls."""
    assert TASKS[name].fall_penalty > 0
    assert TASKS[name].progress_ramp > 1.4


def test_gait_and_lift_go_by_the_clock(task):
    """Three quarters of a stride on, the left foot is in the middle of its swing, the right one on the ground."""
    state, episode = standing(task), fresh_episode(task)
    episode.clock = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 0.0]])  # left swings, right swings, standing
    state.foot_force[:, :, 2] = 100.0
    rates = dict(zip(task.config.rewards, task.reward_rates(state, episode), strict=True))
    assert rates["gait"].tolist() == pytest.approx([0.5, 0.5, 1.0])
    assert rates["lift"].tolist() == pytest.approx([0.1, 0.1, 0.0], abs=1e-6)
    state.foot_force = torch.tensor([[0.0, 100.0], [0.0, 100.0], [0.0, 100.0]])[..., None] * torch.tensor([0, 0, 1.0])
    state.foot_pos = state.foot_pos + torch.tensor([[0.04], [0.0]]) * torch.tensor([0, 0, 1.0])
    rates = dict(zip(task.config.rewards, task.reward_rates(state, episode), strict=True))
    assert rates["gait"].tolist() == pytest.approx([1.0, 0.0, 0.5])
    assert rates["lift"].tolist() == pytest.approx([0.06, 0.1, 0.0], abs=1e-6)
    state.foot_pos = state.foot_pos + torch.tensor([0, 0, 0.3])  # the left foot 9 cm, the right one 5 cm too high
    state.foot_ground = torch.tensor([[0.0, 0.0], [0.0, -1.0], [0.0, 0.0]])  # the second's right foot over a pit
    rates = dict(zip(task.config.rewards, task.reward_rates(state, episode), strict=True))
    assert rates["lift"].tolist() == pytest.approx([0.09, 0.05, 0.0], abs=1e-6)


def test_joints_have_nine_tenths_of_their_range_to_themselves(task):
    """The right ankle rolls by ±0.2618: 0.05 beyond the end is 0.05 and a tenth of 0.2618 too far."""
    state, ankle = standing(task), G1.joint_names.index("right_ankle_roll_joint")
    state.joint_pos[0, ankle] = 0.2618 + 0.05
    state.joint_pos[1, ankle] = -0.23
    rates = dict(zip(task.config.rewards, task.reward_rates(state, fresh_episode(task)), strict=True))
    assert rates["joint_limits"].tolist() == pytest.approx([0.05 + 0.02618, 0.0, 0.0], abs=1e-6)
    with pytest.raises(ValueError, match="joint_limits: g1 declares no joint_range"):
        replace(TASKS["g1-flat"], robot=replace(G1, joint_range=()))
    with pytest.raises(ValueError, match="joint_range is not symmetric at left_hip_roll_joint"):
        replace(G1, joint_range=((-0.5, 0.7),) * 29)


def test_rewards_by_hand(task):
    state, episode, context = standing(task), fresh_episode(task), task.reward_context
    episode.command = torch.tensor([[0.5, 0.0, 0.0]]).repeat(3, 1)
    state.root_lin_vel = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.3], [0.5, 0.5, 0.0]])

    def value(name):
        return TERMS[name](replace(state), episode, context).tolist()  # a copy has derived nothing yet

    assert value("track_velocity") == pytest.approx([1.0, math.exp(-1), math.exp(-1)])
    assert value("progress") == [0.0] * 3  # comes in over two seconds
    episode.step[:] = 50
    assert value("progress") == pytest.approx([0.5, 0.0, 0.5])
    episode.step[:] = 500
    assert value("progress") == pytest.approx([1.0, 0.0, 1.0])
    state.root_lin_vel[:, 0] = torch.tensor([0.75, 1.25, -9.0])  # half as fast again, far too fast, the wrong way
    assert value("progress") == pytest.approx([0.5, -0.5, -1.0])
    state.root_lin_vel[:, 0] = torch.tensor([0.5, 0.0, 0.5])
    assert value("vertical_velocity") == pytest.approx([0.0, 0.09, 0.0])
    assert value("alive") == [1.0] * 3
    assert value("upright") == pytest.approx([1.0] * 3)
    state.root_ang_vel = torch.tensor([[0.0, 0.0, 0.5], [0.3, 0.4, 0.0], [0.0, 0.0, 0.0]])
    assert value("track_yaw_rate") == pytest.approx([math.exp(-1), 1.0, 1.0])
    assert value("tilt_rate") == pytest.approx([0.0, 0.25, 0.0])
    state.root_pos[1, 2] -= 0.1
    assert value("height") == pytest.approx([0.0, 0.01, 0.0], abs=1e-6)
    state.joint_torque[0, :2] = torch.tensor([44.0, -10.0])
    state.joint_vel[0, :2] = torch.tensor([2.0, 3.0])
    assert value("energy") == pytest.approx([118.0, 0, 0])
    assert value("torque")[0] == pytest.approx((44 / 88) ** 2 + (10 / 139) ** 2)
    assert value("acceleration")[0] == pytest.approx((2 / 0.02) ** 2 + (3 / 0.02) ** 2)
    episode.action[2, :2] = 1.0
    assert value("action_rate") == pytest.approx([0, 0, 2.0])
    state.joint_pos[1, G1.joint_names.index("waist_yaw_joint")] += 0.5
    assert value("posture") == pytest.approx([0, 0.25, 0], abs=1e-6)
    episode.contact_time = torch.tensor([[0.3, 0.0], [0.3, 0.3], [0.0, 0.9]])
    episode.air_time = torch.tensor([[0.0, 0.2], [0.0, 0.0], [0.8, 0.0]])
    assert value("air_time") == pytest.approx([0.2, 0.0, 0.4])
    state.foot_vel[0, 0] = torch.tensor([0.3, 0.4, 9.0])
    assert value("slip") == pytest.approx([0.5, 0, 0])
    assert value("clearance") == pytest.approx([0.08 * 0.5, 0, 0])
    state.foot_force[0] = torch.tensor([[0.0, 90.0, 40.0], [-90.0, 0.0, 46.0]])  # 90 N against 80 and 92
    state.foot_force[1] = torch.tensor([[0.0, 0.0, 1700.0], [4.0, 0.0, 0.0]])  # a load, and less than a contact
    assert value("stumble") == pytest.approx([1.0, 0, 0])
    state.foot_force[:2] = torch.tensor([0.0, 0.0, 160.0])
    assert value("stance_width") == pytest.approx([0, 0, 0])
    state.foot_pos[2, :, 1] = torch.tensor([0.03, -0.03])
    assert value("stance_width") == pytest.approx([0, 0, 0.1])
    state.sole_drop[1, 0, :2] = torch.tensor([0.05, 1.0])
    state.sole_drop[1, 1] = 0.03
    state.sole_drop[2, :] = 1.0
    assert value("foot_edge") == pytest.approx([0, 2 / 6, 2])
    state.foot_force[2, 1] = 0.0  # in the air
    assert value("foot_edge") == pytest.approx([0, 2 / 6, 1])


def test_every_task_weighs_its_terms():
    for config in TASKS.values():
        task = LocomotionTask(config)
        state, episode = standing(task), fresh_episode(task)
        terms = task.weighted(task.reward_rates(state, episode))
        assert terms.shape == (len(config.rewards), 3)
        for row, (name, weight) in zip(terms, config.rewards.items(), strict=True):
            assert row.tolist() == pytest.approx((weight * TERMS[name](state, episode, task.reward_context)).tolist())


def test_standing_does_not_move_with_the_air_time_reward(task):
    state, episode = standing(task), fresh_episode(task)
    episode.contact_time = torch.tensor([[0.3, 0.0]]).repeat(3, 1)
    episode.air_time = torch.tensor([[0.0, 0.3]]).repeat(3, 1)
    assert TERMS["air_time"](state, episode, task.reward_context).tolist() == [0.0] * 3


def test_terminations(task):
    state = standing(task, 5)
    state.root_quat[1] = quaternion((0, 1, 0), 1.0)
    state.root_pos[2, 2] = 0.4
    state.body_contact[3] = True
    state.root_quat[4] = quaternion((1, 0, 0), math.pi)  # upside down: no horizontal gravity at all
    assert task.terminated(state).tolist() == [False, True, True, True, True]
    raised = standing(task, 1)
    raised.root_pos[:, 2] += 1.5
    raised.foot_pos[..., 2] += 1.5
    raised.foot_ground += 1.5
    assert not task.terminated(raised).any()  # height counts from the ground, not from zero


def on_ground(task, *, soles, ground, loaded, root):
    """One robot: heights of its soles, of the ground below them and of its root, and which feet bear load."""
    state = standing(task, 1)
    state.foot_pos[0, :, 2], state.foot_ground[0] = torch.tensor(soles), torch.tensor(ground)
    state.foot_force[0, :, 2] = 160.0 * torch.tensor(loaded)
    state.root_pos[0, 2] = root
    return state


@pytest.mark.parametrize(
    ("soles", "ground", "loaded", "below"),
    [
        ([0.0, 0.3], [0.0, 0.22], [True, False], 0.0),  # a foot swings over the next tread
        ([0.0, 0.22], [0.0, 0.22], [True, True], 0.0),  # two treads: the lower one
        ([0.1, 0.22], [0.0, 0.22], [False, True], 0.22),  # the rear foot has left
        ([0.3, 0.2], [0.0, -1.0], [False, False], -1.0),  # in the air: the lower foot's, a pit
        ([0.0, 0.0], [0.0, -1.0], [False, True], 0.0),  # on an edge or on a filled pit: the sole's height
        ([0.05, 0.0], [0.0, 0.0], [True, True], 0.0),  # on its toes
    ],
)
def test_height_is_measured_from_the_ground_under_loaded_feet(soles, ground, loaded, below):
    task = make_task("g1-parkour")
    least = below + task.config.min_height * G1.standing_height
    for root, falls in ((least + 0.01, False), (least - 0.01, True)):
        state = on_ground(task, soles=soles, ground=ground, loaded=loaded, root=root)
        assert state.ground_below().tolist() == pytest.approx([below])
        assert task.terminated(state).tolist() == [falls]
    state = on_ground(task, soles=soles, ground=ground, loaded=loaded, root=below + G1.standing_height + 0.1)
    error = TERMS["height"](state, fresh_episode(task, 1), task.reward_context).item()
    assert error == pytest.approx(0.01 if any(loaded) else 0.0, abs=1e-6)


def test_a_foot_in_a_pit_ends_the_episode():
    task = make_task("g1-parkour")
    for depth, falls in ((0.35, False), (0.45, True)):
        soles = [0.0, -depth]
        state = on_ground(task, soles=soles, ground=[0.0, -1.0], loaded=[True, False], root=0.6)
        assert task.terminated(state).tolist() == [falls]


@pytest.mark.parametrize(("name", "degrees"), [("g1-flat", 36.9), ("g1-parkour", 64.2), ("walker-parkour", 64.2)])
def test_terrain_allows_more_tilt(name, degrees):
    task = make_task(name)
    state = standing(task, 2)
    for row, angle in enumerate((degrees - 1, degrees + 1)):
        state.root_quat[row] = quaternion((0, 1, 0), math.radians(angle))
    assert task.terminated(state).tolist() == [False, True]
