"""The G1 of Isaac Lab's asset library with the motors and the stance of ours.

`G1_29DOF_CFG` is made for manipulation: other gains, hands, no contact sensors. The hands stay on the asset and keep
their pose by their own drives; the policy neither sees nor moves them, and everything else is by joint name.
"""

from __future__ import annotations

import copy

from isaaclab.actuators import ImplicitActuatorCfg
from isaaclab.assets import ArticulationCfg
from isaaclab.sim import UsdFileCfg
from isaaclab_assets.robots.unitree import G1_29DOF_CFG

from trainer.tasks.robots import RobotSpec


def g1_cfg(robot: RobotSpec) -> ArticulationCfg:
    """The articulation of `robot`, which is the G1."""
    asset = copy.deepcopy(G1_29DOF_CFG)
    asset.prim_path = "{ENV_REGEX_NS}/Robot"
    assert isinstance(asset.spawn, UsdFileCfg)
    asset.spawn.activate_contact_sensors = True
    asset.init_state = ArticulationCfg.InitialStateCfg(
        pos=(0.0, 0.0, robot.standing_height + 0.02),
        joint_pos=dict(zip(robot.joint_names, robot.default_pos, strict=True)),
        joint_vel={".*": 0.0},
    )
    asset.actuators = {"motors": _motors(robot), "hands": asset.actuators["hands"]}
    return asset


def _motors(robot: RobotSpec) -> ImplicitActuatorCfg:
    """PhysX's own implicit PD drives, as MuJoCo's position actuators are: explicit ones would need smaller steps."""

    def by_joint(field: str) -> dict[str, float]:
        return {name: getattr(motor, field) for name, motor in zip(robot.joint_names, robot.motors, strict=True)}

    return ImplicitActuatorCfg(
        joint_names_expr=list(robot.joint_names),
        stiffness=by_joint("stiffness"),
        damping=by_joint("damping"),
        armature=by_joint("armature"),
        effort_limit_sim=by_joint("effort"),
    )
