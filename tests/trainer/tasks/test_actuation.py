"""Motors beyond the paper's table: delay, torque and gains; nothing of them where they are off."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.trainer.small_runs import assert_same, small

from trainer.algorithms.presets import check_engine
from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import scaled_dynamics
from trainer.runs.checkpoint import load_checkpoint
from trainer.tasks import TASKS, LocomotionTask
from trainer.tasks.actuation import ActionDelay, sample_motors
from trainer.tasks.randomization import Dynamics
from trainer.tasks.settings import assigned

WALKER = TASKS["walker-parkour"]
ALL_ON = ("dynamics.action_delay=0,0.04", "dynamics.motor_strength=0.8,1.1", "dynamics.stiffness=0.9,1.1")
ALL_ON += ("dynamics.damping=0.5,2",)


def with_dynamics(stride=WALKER.stride, **changes):
    return LocomotionTask(
        replace(WALKER, terrains=(), stride=stride, dynamics=replace(WALKER.dynamics, **changes)),
    )


def test_off_means_nothing_is_drawn_and_nothing_kept():
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    assert sample_motors(Dynamics(), 4, 6, generator) is None
    assert ActionDelay.of(Dynamics(), 4, 0.02, torch.zeros(6)) is None
    assert torch.equal(generator.get_state(), before)
    env = MujocoEnv(with_dynamics(), 2, num_threads=0)
    assert "motors" not in env.state_dict()["engine"]
    assert "delay" not in env.state_dict()


def test_a_delay_holds_targets_back_by_whole_physics_steps():
    delay = ActionDelay.of(Dynamics(action_delay=(0.0, 0.04)), 4, 0.02, torch.tensor([9.0]))
    delay.delay = torch.tensor([0.0, 0.005, 0.02, 0.035])
    seen = []
    for step in range(4):
        delay.remember(torch.full((4, 1), float(step)))
        seen.append(delay.schedule(4)[..., 0])
    none, quarter, whole, most = torch.cat(seen, 1).tolist()
    assert none == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert quarter == [9] + [0] * 4 + [1] * 4 + [2] * 4 + [3] * 3
    assert whole == [9] * 4 + [0] * 4 + [1] * 4 + [2] * 4
    assert most == [9] * 7 + [0] * 4 + [1] * 4 + [2]
    generator = torch.Generator().manual_seed(0)
    delay.begin(torch.tensor([1, 2]), generator)
    assert (delay.past[1:3] == 9).all()
    assert (delay.past[[0, 3], -1] == 3).all()
    assert ((delay.delay >= 0) & (delay.delay <= 0.04)).all()


def test_a_delay_of_one_control_step_is_the_action_before():
    """A robot with delayed actions moves as one that gets the earlier actions at once; without a stride, which is part
    of the targets at the clock of each action."""
    late, early = (
        MujocoEnv(with_dynamics(stride={}, action_delay=(d, d)), 3, seed=5, num_threads=0, auto_reset=False)
        for d in (0.02, 0.0)
    )
    early.load_state_dict({k: v for k, v in late.state_dict().items() if k != "delay"})
    torch.manual_seed(0)
    actions = [torch.randn(3, 6) for _ in range(5)]
    for action, before in zip(actions, [torch.zeros(3, 6), *actions], strict=False):
        late.step(action)
        early.step(before)
        assert torch.equal(late.state.joint_pos, early.state.joint_pos)
        assert torch.equal(late.episode.action, action)  # the policy sees what it asked for


def test_factors_scale_torque_gains_and_limits():
    env = MujocoEnv(with_dynamics(), 2, num_threads=0)
    strength, stiffness, damping = 0.5, 1.2, 2.0
    factors = torch.ones(2, 3, 6)
    factors[1] *= torch.tensor([strength, stiffness, damping])[:, None]
    start = env.running.draw_start(torch.arange(2))
    env.engine.reset(torch.arange(2), **{**vars(start), "motors": factors})
    (plain, changed), control = (env.engine.model_of(index) for index in range(2)), slice(0, 6)
    motors = WALKER.robot.motors
    for model, s, p, d in ((plain, 1, 1, 1), (changed, strength, stiffness, damping)):
        expected = torch.tensor([[m.stiffness * s * p, m.damping * s * d, m.effort * s] for m in motors]).double()
        torch.testing.assert_close(torch.tensor(model.actuator_gainprm[control, 0]), expected[:, 0])
        torch.testing.assert_close(torch.tensor(-model.actuator_biasprm[control, 1]), expected[:, 0])
        torch.testing.assert_close(torch.tensor(-model.actuator_biasprm[control, 2]), expected[:, 1])
        torch.testing.assert_close(torch.tensor(model.actuator_forcerange[control, 1]), expected[:, 2])
    state = env.running.state
    env.engine.step(state.joint_pos + 10.0)  # far beyond the limits
    torque = env.engine.step(state.joint_pos + 10.0)[0].joint_torque
    torch.testing.assert_close(torque[1], strength * torque[0], rtol=0.05, atol=0.5)


def test_ranges_are_kept_a_joint_each():
    drawn = sample_motors(
        Dynamics(motor_strength=(0.8, 1.1), damping=(0.5, 2.0)), 500, 6, torch.Generator().manual_seed(0)
    )
    assert drawn.shape == (500, 3, 6)
    for row, (low, high) in enumerate([(0.8, 1.1), (1.0, 1.0), (0.5, 2.0)]):
        assert drawn[:, row].min() >= low
        assert drawn[:, row].max() <= high + 1e-6
        torch.testing.assert_close(drawn[:, row].mean(), torch.tensor((low + high) / 2), rtol=0.03, atol=0.0)
    assert (drawn[:, 0, 0] != drawn[:, 0, 1]).any()


def test_a_run_with_all_of_it_resumes_bit_for_bit(tmp_path):
    small(tmp_path / "whole", "mm", 4, set=ALL_ON, save_interval=2).learn(quiet=True)
    small(tmp_path / "parts", "mm", 2, set=ALL_ON, save_interval=2).learn(quiet=True)
    second = small(tmp_path / "parts", "mm", 4, set=ALL_ON, save_interval=2)
    second.restore()
    second.learn(quiet=True)
    ours, theirs = (load_checkpoint(tmp_path / name / "model_4.pt") for name in ("whole", "parts"))
    assert_same(ours, theirs)
    assert ours["environment"]["engine"]["motors"].shape == (6, 3, 6)
    assert ours["environment"]["delay"]["past"].shape == (6, 3, 6)
    critic = ours["algorithm"]["critic_state_dict"]["mlp.0.weight"]
    without = small(tmp_path / "without", "mm", 1).algorithm.critic.state_dict()["mlp.0.weight"]
    assert critic.shape == without.shape  # the critic is not told: checkpoints fit with and without


def test_an_evaluation_scales_them():
    ranges = Dynamics(action_delay=(0.0, 0.04), motor_strength=(0.8, 1.2), stiffness=(0.9, 1.1), damping=(0.5, 3.0))
    none, half, full = (scaled_dynamics(ranges, strength) for strength in (0.0, 0.5, 1.0))
    assert (none.action_delay, none.motor_strength, none.damping) == ((0.0, 0.0), (1.0, 1.0), (1.0, 1.0))
    assert (half.action_delay, half.damping) == ((0.0, 0.02), (0.75, 2.0))
    assert full.motor_strength == pytest.approx((0.8, 1.2))


def test_isaac_lab_says_what_it_cannot():
    task = TASKS["g1-flat"]
    check_engine("isaaclab", "cpu", assigned(task, ["dynamics.action_delay=0,0.02"]))
    with pytest.raises(ValueError, match=r"in isaaclab motors are as they are; dynamics\.motor_strength"):
        check_engine("isaaclab", "cpu", assigned(task, ["dynamics.stiffness=0.9,1.1"]))


def test_mjlab_has_them_too():
    mjlab = pytest.importorskip("mjlab")
    assert mjlab
    from trainer.engines.mjlab.env import MjlabEnv

    ranges = Dynamics(action_delay=(0.005, 0.03), motor_strength=(0.7, 0.9), stiffness=(0.9, 1.1), damping=(0.5, 2.0))
    task = replace(TASKS["g1-flat"], dynamics=ranges)
    env = MjlabEnv(LocomotionTask(task), 2, seed=3)
    native = MujocoEnv(LocomotionTask(task), 2, seed=3, num_threads=0)
    motors = env._walk.managed.motors
    assert motors.shape == (2, 3, 29)
    native.engine.reset(torch.arange(2), **{**vars(native.running.draw_start(torch.arange(2))), "motors": motors})
    model = env.simulation.sim.model
    order = env._walk.robots._motors
    for index in range(2):
        expected = native.engine.model_of(index)
        control = native.engine._reader.control
        for name, column in (("actuator_gainprm", 0), ("actuator_biasprm", 1), ("actuator_biasprm", 2)):
            here = getattr(model, name)[index, order, column].clone().cpu().double()
            torch.testing.assert_close(
                here, torch.tensor(getattr(expected, name)[control, column]), rtol=1e-5, atol=1e-4
            )
        limits = model.actuator_forcerange[index, order].clone().cpu().double()
        torch.testing.assert_close(limits, torch.tensor(expected.actuator_forcerange[control]), rtol=1e-5, atol=1e-4)
    env.running.delay.delay[:] = torch.tensor([0.005, 0.02])
    applied = []
    set_targets = env._walk.robots.set_targets
    env._walk.robots.set_targets = lambda targets: (applied.append(targets.clone()), set_targets(targets))
    action = torch.full((2, 29), 0.1)
    rest, wanted = env.task.default_pos, env.task.targets(action, env.episode.clock)[0]
    env.step(action)
    in_time = applied[-4:]  # of the four physics steps
    assert [torch.equal(targets[0], wanted) for targets in in_time] == [False, True, True, True]
    assert all(torch.equal(targets[1], rest) for targets in in_time)
    saved = env.state_dict()
    env.step(action)
    after = env.state.joint_pos.clone()
    env.load_state_dict(saved)
    env.step(action)
    assert torch.equal(env.state.joint_pos, after)
    env.close()
