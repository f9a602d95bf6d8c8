"""The controller without its network: modes, limits, refusals, operator."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from helpers.trainer.small_runs import exported_policy

from trainer.deploy import Policy
from trainer.deploy.g1 import MOTORS, POSITION_LIMITS, TORQUE_LIMITS, check_contract
from trainer.deploy.machine import Machine, Mode
from trainer.deploy.operator import Operator
from trainer.deploy.pilot import Pilot
from trainer.deploy.reading import Reading, reading_of
from trainer.deploy.safety import Limits, TargetLimiter, violation
from trainer.deploy.unitree import Remote, intact, new_state
from trainer.engines.mjcf.model import mjcf_path
from trainer.tasks.contract import Contract
from trainer.tasks.robots import G1

DEFAULT = np.array(G1.default_pos, np.float32)
STIFFNESS = np.array([motor.stiffness for motor in G1.motors], np.float32)
DAMPING = np.array([motor.damping for motor in G1.motors], np.float32)
EFFORT = np.array([motor.effort for motor in G1.motors], np.float32)


def reading(tick=0, **changes) -> Reading:
    state = new_state()
    state["tick"], state["mode_machine"], state["quaternion"] = tick, 5, (1, 0, 0, 0)
    state["motor_state"]["q"][:29] = DEFAULT
    return dataclasses.replace(reading_of(state), **changes)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return Policy(exported_policy(tmp_path_factory.mktemp("policy") / "run", scale=20.0), MOTORS)


@pytest.fixture
def pilot(policy):
    said = []
    pilot = Pilot(policy, Limits(), said.append, stand_seconds=0.1)
    pilot.said = said
    pilot.meet(reading())
    return pilot


def scan(pilot):
    return np.zeros(len(pilot.policy.contract.scan.points()), np.float32)


def walking(pilot):
    """Brings the pilot into the policy's mode."""
    pilot.wish("stand", reading())
    for _ in range(6):
        pilot.step(reading(), (0.0, 0.0, 0.0), scan(pilot))
    pilot.wish("policy", reading())
    assert pilot.mode is Mode.POLICY
    return pilot


def test_the_motors_are_the_tasks_joints_with_the_models_limits():
    assert G1.joint_names == MOTORS
    assert np.array_equal(TORQUE_LIMITS, EFFORT)
    ranges = {
        joint.get("name"): np.array(joint.get("range").split(), np.float32)
        for joint in ElementTree.parse(mjcf_path(G1)).iter("joint")
        if joint.get("name") in MOTORS
    }
    assert len(ranges) == 29
    for motor, name in enumerate(MOTORS):
        assert np.allclose(POSITION_LIMITS[motor], ranges[name], atol=1e-5), name


def test_modes_go_round_in_the_operators_order():
    said = []
    machine = Machine(said.append)
    assert not machine.policy(None)  # not from damping
    assert not machine.stand("the robot lies on its back")
    assert machine.mode is Mode.DAMPING
    assert machine.stand(None)
    assert not machine.policy("it is still standing up")
    assert machine.policy(None)
    assert not machine.stand(None)  # only damping from here
    assert machine.mode is Mode.POLICY
    assert machine.damping()
    assert machine.mode is Mode.DAMPING
    assert [line for line in said if "->" in line] == [
        "damping -> stand: asked for",
        "stand -> policy: asked for",
        "policy -> damping: asked for",
    ]
    assert len(said) == 7  # every transition and every refusal


def test_a_fault_stays_until_the_operator_clears_it():
    machine = Machine(lambda _: None)
    machine.stand(None)
    assert machine.fail("a joint is gone")
    assert not machine.fail("another one")
    assert machine.fault == "a joint is gone"
    assert not machine.stand(None)
    machine.damping()
    assert machine.stand(None)
    assert machine.faults == 1


def with_joint(values, joint, value):
    values = values.copy()
    values[MOTORS.index(joint)] = value
    return values


ZERO = np.zeros(29, np.float32)
BAD_READINGS = {
    "position": ({"position": with_joint(DEFAULT, "right_knee_joint", 3.0)}, "right_knee_joint at 3.000 rad"),
    "below": ({"position": with_joint(DEFAULT, "left_ankle_roll_joint", -0.4)}, "left_ankle_roll_joint at -0.400"),
    "velocity": ({"velocity": with_joint(ZERO, "left_knee_joint", -31.0)}, "left_knee_joint turns with 31.0 rad/s"),
    "torque": ({"torque": with_joint(ZERO, "waist_yaw_joint", 140.0)}, "waist_yaw_joint bears 140.0 N m"),
    "tilt": ({"quat": np.array([0.8, 0.0, 0.6, 0.0], np.float32)}, "tilted by 1.29 rad"),
    "nan joint": ({"position": with_joint(DEFAULT, "left_elbow_joint", np.nan)}, "position of left_elbow_joint is not"),
    "nan imu": ({"ang_vel": np.array([0, np.inf, 0], np.float32)}, "angular velocity is not finite"),
    "no quaternion": ({"quat": np.zeros(4, np.float32)}, "no unit quaternion"),
    "mode_machine": ({"mode_machine": 4}, "mode_machine changed from 5 to 4"),
}


@pytest.mark.parametrize("name", BAD_READINGS)
def test_a_bad_reading_damps_at_once(pilot, name):
    changes, words = BAD_READINGS[name]
    walking(pilot)
    assert not pilot.watch(reading())
    assert pilot.watch(reading(**changes))
    assert pilot.mode is Mode.DAMPING
    assert words in pilot.said[-1]
    command = pilot.step(reading(**changes), (0.0, 0.0, 0.0), scan(pilot)).command
    assert (command["motor_cmd"]["kp"] == 0).all()
    assert (command["motor_cmd"]["kd"][:29] == 3.0).all()


def test_readings_just_inside_are_none_of_them_bad():
    inside = with_joint(DEFAULT, "right_knee_joint", 2.8798 + 0.09)
    fast = with_joint(ZERO, "left_knee_joint", 29.0)
    assert violation(reading(position=inside, velocity=fast), Limits()) is None


def test_standing_up_is_slow_and_begins_where_the_robot_is(pilot):
    hanging = reading(position=np.zeros(29, np.float32))
    pilot.wish("stand", hanging)
    targets = [pilot.step(hanging, (0, 0, 0), scan(pilot)).command["motor_cmd"]["q"][:29].copy() for _ in range(8)]
    assert np.abs(targets[0]).max() < 1e-6
    assert np.allclose(targets[-1], DEFAULT, atol=1e-6)
    assert np.abs(np.diff(targets, axis=0)).max() < 0.669 * 0.4  # no step is a large part of the way


def test_the_policy_waits_for_the_pose(pilot):
    pilot.wish("stand", reading())
    pilot.wish("policy", reading())
    assert "still standing up" in pilot.said[-1]
    for _ in range(6):
        pilot.step(reading(), (0, 0, 0), scan(pilot))
    pilot.wish("policy", reading(position=with_joint(DEFAULT, "left_knee_joint", 1.2)))
    assert "left_knee_joint is 0.53 rad from the default pose" in pilot.said[-1]
    pilot.wish("policy", reading(), "no map")
    assert pilot.said[-1] == "no policy: no map"
    pilot.wish("policy", reading())
    assert pilot.mode is Mode.POLICY


def test_the_policys_command_has_the_contracts_gains(pilot):
    decision = walking(pilot).step(reading(), (0.5, 0.0, 0.0), scan(pilot))
    motors = decision.command["motor_cmd"]
    assert intact(decision.command)
    assert np.allclose(motors["kp"][:29], STIFFNESS)
    assert np.allclose(motors["kd"][:29], DAMPING)
    assert (motors["mode"][:29] == 1).all()
    assert not motors[29:].tobytes().strip(b"\0")  # slots without a motor stay empty
    assert decision.command["mode_machine"] == 5
    assert decision.command["mode_pr"] == 0
    assert np.abs(decision.targets - DEFAULT).max() > 1e-3
    assert (decision.std > 0).all()


def test_an_error_of_the_policy_damps(pilot):
    walking(pilot)
    decision = pilot.step(reading(), (np.nan, 0.0, 0.0), scan(pilot))
    assert decision.mode is Mode.DAMPING
    assert "command is not finite" in pilot.said[-1]


def test_targets_are_cut_to_rate_torque_and_range():
    limiter = TargetLimiter(Limits(target_rate=5.0), 0.02, STIFFNESS, DAMPING, EFFORT)
    wild = DEFAULT + 3.0
    cut = limiter(wild, DEFAULT, reading())
    assert np.allclose(cut, np.minimum(DEFAULT + 0.1, DEFAULT + EFFORT / STIFFNESS), atol=1e-6)
    assert limiter.cut > 0
    strong = TargetLimiter(Limits(target_rate=1e4), 0.02, STIFFNESS, DAMPING, EFFORT)
    fast = with_joint(ZERO, "left_knee_joint", 4.0)
    sent = strong(wild, DEFAULT, reading(velocity=fast))
    torque = STIFFNESS * (sent - DEFAULT) - DAMPING * fast
    assert (torque <= EFFORT * (1 + 1e-4)).all()
    assert torque[MOTORS.index("left_knee_joint")] == pytest.approx(139.0, rel=1e-3)  # no less than it can bear
    with pytest.raises(ValueError, match="waist_yaw_joint is not finite"):
        strong(with_joint(DEFAULT, "waist_yaw_joint", np.nan), DEFAULT, reading())


def test_a_robot_of_another_kind_is_refused(policy):
    pilot = Pilot(policy, Limits(), lambda _: None)
    with pytest.raises(ValueError, match="mode_machine 4; the policy's gains are for 5"):
        pilot.meet(reading(mode_machine=4))


def changed(contract: Contract, **changes) -> Contract:
    return dataclasses.replace(contract, **changes)


def test_a_policy_of_another_robot_or_time_is_refused(policy):
    contract = policy.contract
    check_contract(contract)
    with pytest.raises(ValueError, match="robot 'walker'"):
        check_contract(changed(contract, robot="walker"))
    names = ("left_tail_joint", *contract.joint_names[1:])
    terms = tuple(dataclasses.replace(t, joints=names if t.joints else ()) for t in contract.proprio)
    with pytest.raises(ValueError, match="no joint 'left_hip_pitch_joint'"):
        check_contract(changed(contract, joint_names=names, proprio=terms))
    fewer = {
        field: getattr(contract, field)[:-1]
        for field in (
            *("joint_names", "default_pos", "stiffness", "damping", "effort", "action_scale"),
            *("stride", "stride_middle"),
        )
    }
    terms = tuple(
        dataclasses.replace(t, joints=t.joints[:-1], size=t.size - 1) if t.joints else t for t in contract.proprio
    )
    with pytest.raises(ValueError, match="drives 28 joints; this G1 has 29"):
        check_contract(changed(contract, proprio=terms, **fewer))
    old = tuple(dataclasses.replace(t, convention="degrees") if t.name == "joint_pos" else t for t in contract.proprio)
    with pytest.raises(ValueError, match=r"'joint_pos' is 'degrees' to it.*stale contract"):
        check_contract(changed(contract, proprio=old))
    with pytest.raises(ValueError, match="stiffness 5000"):
        check_contract(changed(contract, stiffness=(5000.0, *contract.stiffness[1:])))
    with pytest.raises(ValueError, match="effort 500 N m; the motor bears 88"):
        check_contract(changed(contract, effort=(500.0, *contract.effort[1:])))
    with pytest.raises(ValueError, match="control_hz 30"):
        check_contract(changed(contract, control_hz=30.0))
    with pytest.raises(ValueError, match="version 2"):
        changed(contract, version=2)


def test_the_operator(policy):
    operator = Operator(policy.contract, (0.5, 0.0, 0.0))
    assert operator.remote(Remote(frozenset(("L2",)))) == []
    assert operator.remote(Remote(frozenset(("L2", "up")))) == ["stand"]
    assert operator.remote(Remote(frozenset(("L2", "up")))) == []  # held, not pressed again
    assert operator.remote(Remote(frozenset(("R1", "X")))) == ["policy"]
    assert operator.remote(Remote(frozenset(("L2", "B")))) == ["damping"]
    assert operator.command == [0.5, 0.0, 0.0]  # untouched sticks leave it
    operator.remote(Remote(frozenset(), left_y=1.0, left_x=1.0, right_x=-1.0))
    (_, fast), (right, _), (_, left_turn) = policy.contract.command
    assert operator.command == pytest.approx([fast, right, left_turn])
    operator.remote(Remote(frozenset()))
    assert operator.command == [0.0, 0.0, 0.0]  # let go
    assert operator.keys("w1 2x") == ["stand", "damping", "policy", "quit"]
    assert operator.command[0] == policy.contract.command[0][0]  # the slowest walk that was trained
    with pytest.raises(ValueError, match="forward 3: the policy was trained for"):
        Operator(policy.contract, (3.0, 0.0, 0.0))


def test_the_controllers_modules_import_neither_torch_nor_mujoco():
    modules = [
        "commands.deploy",
        "commands.replay",
        *(f"deploy.{name}" for name in ("guardian", "mapping", "elevation")),
    ]
    code = "\n".join(f"import trainer.{name}" for name in modules)
    code += "\nimport sys; print(sorted({'torch', 'mujoco', 'rsl_rl', 'mjlab'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_simulated_robot_imports_no_torch():
    code = "import trainer.commands.robot_sim, trainer.robot_sim.lidar, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
