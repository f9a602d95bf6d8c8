"""Every configuration class and every manager term against Isaac Lab's own rules."""

from __future__ import annotations

import inspect

import gymnasium
import pytest
import torch
from fake_physx import BODIES, HANDS, JOINTS, make_env
from isaaclab.managers import ManagerTermBase, ManagerTermBaseCfg
from isaaclab.sensors import patterns
from isaaclab_tasks.utils.parse_cfg import load_cfg_from_registry

from trainer.engines.isaaclab.reading import scan_order
from trainer.tasks import TASKS
from trainer.tasks.locomotion import OBSERVATION_GROUPS as GROUPS
from trainer.tasks.scan import scan_points

TASK_IDS = {"P3-Parkour-G1-v0": "g1-parkour", "P3-Flat-G1-v0": "g1-flat"}
# What a manager passes before the parameters (isaaclab/managers/*_manager.py, `min_argc`).
LEADING = {"observations": 1, "rewards": 1, "terminations": 1, "events": 2, "curriculum": 2}


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_registered_by_names_alone(task_id: str) -> None:
    spec = gymnasium.spec(task_id)
    assert isinstance(spec.entry_point, str)
    assert all(isinstance(value, str) for value in spec.kwargs.values())


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_configurations_are_complete(task_id: str) -> None:
    load_cfg_from_registry(task_id, "env_cfg_entry_point").validate()
    load_cfg_from_registry(task_id, "rsl_rl_cfg_entry_point").validate()


def _terms(cfg: object, manager: str) -> list[tuple[str, ManagerTermBaseCfg]]:
    value = getattr(cfg, manager)
    items = list((value if isinstance(value, dict) else vars(value)).items()) if value is not None else []
    if manager == "observations":
        items = [(f"{group}.{name}", term) for group, terms in items for name, term in vars(terms).items()]
    return [(name, term) for name, term in items if isinstance(term, ManagerTermBaseCfg)]


@pytest.mark.parametrize("task_id", TASK_IDS)
@pytest.mark.parametrize("manager", LEADING)
def test_parameters_fit_the_functions(task_id: str, manager: str) -> None:
    cfg = load_cfg_from_registry(task_id, "env_cfg_entry_point")
    terms = _terms(cfg, manager)
    assert terms or (manager == "curriculum" and not TASKS[TASK_IDS[task_id]].terrains)
    for name, term in terms:
        function = term.func
        leading = LEADING[manager]
        if inspect.isclass(function):
            assert issubclass(function, ManagerTermBase), name
            function, leading = function.__call__, leading + 1
        inspect.signature(function).bind(*range(leading), **term.params)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_rewards_have_the_task_s_weights(task_id: str) -> None:
    config = TASKS[TASK_IDS[task_id]]
    weights = {
        name: term.weight for name, term in load_cfg_from_registry(task_id, "env_cfg_entry_point").rewards.items()
    }
    assert weights == {**config.rewards, "fall": -config.fall_penalty}


def test_agent_is_ours_on_the_task_s_groups() -> None:
    agent = load_cfg_from_registry("P3-Parkour-G1-v0", "rsl_rl_cfg_entry_point")
    assert agent.algorithm["class_name"] == "trainer.algorithms:P3PPO"
    assert agent.actor["class_name"] == "trainer.models:P3Actor"
    assert agent.num_steps_per_env == 24
    assert agent.max_iterations == 8000
    assert {group for groups in agent.obs_groups.values() for group in groups} <= set(GROUPS)


@pytest.mark.parametrize("ordering", ["xy", "yx"])
def test_scan_is_in_the_task_s_order(ordering: str) -> None:
    cfg = patterns.GridPatternCfg(resolution=0.1, size=(1.6, 1.0), ordering=ordering)
    rays = cfg.func(cfg, "cpu")[0][:, :2]
    assert rays.shape == (187, 2)
    order = scan_order(rays)
    assert (order == torch.arange(187)).all() == (ordering == "xy")
    torch.testing.assert_close(rays[order], scan_points())


def test_a_scan_that_lacks_points_is_refused() -> None:
    with pytest.raises(ValueError, match=r"height_scanner: no ray starts at x = 0\.8, y = -0\.5"):
        scan_order(scan_points()[:16])


def test_motors_stance_and_hands_by_name() -> None:
    """Isaac Lab's own articulation, initialised with our settings, has told the simulator our gains."""
    env = make_env("P3-Flat-G1-v0", 2)
    contract, view = env.managed.task.contract, env.scene.view.tensors
    assert len(contract.joint_names) == 29
    robot = env.reader.robot
    assert [JOINTS[index] for index in env.reader.joints] == list(contract.joint_names)
    by_name = {
        "dof_stiffnesses": contract.stiffness,
        "dof_dampings": contract.damping,
        "dof_max_forces": contract.effort,
        "dof_armatures": tuple(motor.armature for motor in env.managed.task.config.robot.motors),
    }
    for tensor, expected in by_name.items():
        torch.testing.assert_close(view[tensor][1, env.reader.joints], torch.tensor(expected), msg=tensor)
    torch.testing.assert_close(robot.data.default_joint_pos[0, env.reader.joints], torch.tensor(contract.default_pos))
    hands = [JOINTS.index(name) for name in HANDS]
    assert (view["dof_stiffnesses"][:, hands] == 20).all()
    assert (robot.data.default_joint_pos[:, hands] == 0).all()
    assert env.cfg.scene.robot.spawn.activate_contact_sensors


def test_randomisation_is_the_paper_s_and_reaches_the_critic() -> None:
    env = make_env("P3-Flat-G1-v0", 512)
    view, ranges = env.scene.view.tensors, env.managed.task.config.dynamics
    material = view["material_properties"]
    assert (material == material[:, :1]).all()  # one material a robot
    assert (material[..., 0] == material[..., 1]).all()
    trunk = BODIES.index("torso_link")
    added = view["masses"][:, trunk] - env.reader.robot.data.default_mass[:, trunk]
    drawn = {"friction": material[:, 0, 0], "restitution": material[:, 0, 2], "added_mass": added}
    drawn |= {"com_xy": env.reader.dynamics[:, 2:4], "com_z": env.reader.dynamics[:, 4]}
    for name, values in drawn.items():
        low, high = getattr(ranges, name)
        assert low <= values.min() < low + 0.1 * (high - low), name
        assert high - 0.1 * (high - low) < values.max() <= high + 1e-6, name
    others = [index for index in range(len(BODIES)) if index != trunk]
    assert (view["masses"][:, others] == env.reader.robot.data.default_mass[:, others]).all()
    torch.testing.assert_close(env.reader.dynamics[:, 0], material[:, 0, 0])
    torch.testing.assert_close(env.reader.dynamics[:, 1], added)
    observations, _ = env.reset()
    torch.testing.assert_close(observations["critic"][:, -5:], env.reader.dynamics)
