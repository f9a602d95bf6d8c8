"""Our model of a robot as mjlab's entity."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mjlab.actuator import XmlActuatorCfg
from mjlab.entity import EntityArticulationInfoCfg, EntityCfg

from trainer.engines.mjcf.model import robot_spec
from trainer.tasks.robots import RobotSpec

if TYPE_CHECKING:
    pass

ENTITY = "robot"


def robot_cfg(robot: RobotSpec, *, visual: bool = False) -> EntityCfg:
    """The robot of native MuJoCo: the same cut geometry, motors and sensors."""
    return EntityCfg(
        spec_fn=partial(robot_spec, robot, visual=visual),
        init_state=EntityCfg.InitialStateCfg(
            pos=(0.0, 0.0, robot.standing_height),
            joint_pos=dict(zip(robot.joint_names, robot.default_pos, strict=True)),
        ),
        articulation=EntityArticulationInfoCfg(actuators=(XmlActuatorCfg(target_names_expr=robot.joint_names),)),
    )
