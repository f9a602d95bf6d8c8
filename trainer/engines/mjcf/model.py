"""MuJoCo models: a robot with motors and sensors on a terrain tile, with collision geometry cut to what walking needs.

The G1's geometry and inertias are those of mjlab's MJCF, read from the installed package without importing it. Cut for
speed: no self-collision, two of seven capsules a foot, meshes only where a picture is made.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from trainer.tasks.physics import PHYSICS_DT
from trainer.tasks.robots import RobotSpec
from trainer.tasks.terrains import Terrain

_FOOT_CAPSULES_KEPT = re.compile(r"(left|right)_foot[26]_collision")
_NET_FORCE = 3
"""The contact sensor's way of reducing contacts to one: their net force, in the world's frame."""
_STOP_SOLREF = (2 * PHYSICS_DT, 1.0)
"""Time constant, the shortest that the physics step allows, and damping ratio of a joint's stop."""
_STOP_SOLIMP = (0.99, 0.99, 0.001, 0.5, 2.0)
"""Stops are of metal. MuJoCo's default gives way by 0.1 rad under a G1 that stands on the stop of an ankle."""
_SPARSE_FROM = 20
"""Degrees of freedom from which on the solver's matrices are sparse: a limb does not move another. A step of a G1 takes
a tenth less, one of the walker a tenth more; the numbers are the same to rounding. MuJoCo itself goes over at 60."""
_GROUND_RGBA = (0.45, 0.48, 0.52, 1.0)


def mjcf_path(robot: RobotSpec) -> Path:
    """Where the robot's MJCF is.

    Raises:
        FileNotFoundError: There is none, or the package that carries it is not installed.
    """
    if robot.mjcf:
        if not Path(robot.mjcf).is_file():
            raise FileNotFoundError(f"robot {robot.name}: no MJCF file {robot.mjcf}")
        return Path(robot.mjcf)
    if robot.name == "walker":
        return Path(__file__).with_name("walker.xml")
    if robot.name != "g1":
        raise FileNotFoundError(f"robot {robot.name}: its RobotSpec has no mjcf")
    package = importlib.util.find_spec("mjlab")  # finds without importing: mjlab would bring Warp and a viewer
    if package is None or package.origin is None:
        raise FileNotFoundError(
            "the G1's MJCF comes with mjlab, which is not installed; run: pip install 'p3kernels[train]'"
        )
    return Path(package.origin).parent / "asset_zoo" / "robots" / "unitree_g1" / "xmls" / "g1.xml"


def build_model(
    robot: RobotSpec, terrain: Terrain | None, num_boxes: int = 0, *, visual: bool = False
) -> mujoco.MjModel:
    """Compiles a robot on a terrain.

    Args:
        robot: Which one.
        terrain: The tile; None for an endless plane at height 0.
        num_boxes: Boxes are padded to this number, so that models of different tiles have equal sizes.
        visual: Keep the meshes, add light and texture.
    """
    spec = robot_spec(robot, visual=visual)
    _add_terrain(spec, terrain, num_boxes)
    if visual:
        _add_scenery(spec)
    spec.option.timestep = PHYSICS_DT
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # A diverged state must be seen by us, not replaced by the model's initial one.
    spec.option.disableflags |= mujoco.mjtDisableBit.mjDSBL_AUTORESET
    # One robot is one island: to look for more is a twentieth of a step. Older versions of MuJoCo look only when asked.
    spec.option.disableflags |= getattr(mujoco.mjtDisableBit, "mjDSBL_ISLAND", 0)
    model = spec.compile()
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_SPARSE if model.nv >= _SPARSE_FROM else mujoco.mjtJacobian.mjJAC_DENSE
    return model


def robot_spec(robot: RobotSpec, *, visual: bool = False) -> mujoco.MjSpec:
    """The robot alone, with its motors and the sensors that `StateReader` finds; with `visual`, also its meshes."""
    spec = mujoco.MjSpec.from_file(str(mjcf_path(robot)))
    _cut_geometry(spec, robot, visual)
    _add_motors(spec, robot)
    _add_sensors(spec, robot)
    return spec


def _cut_geometry(spec: mujoco.MjSpec, robot: RobotSpec, visual: bool) -> None:
    for geom in list(spec.geoms):
        if geom.type == mujoco.mjtGeom.mjGEOM_MESH:
            if not visual:
                spec.delete(geom)
            continue
        is_foot = geom.parent.name in robot.feet
        if re.fullmatch(r"(left|right)_foot\d_collision", geom.name) and not _FOOT_CAPSULES_KEPT.fullmatch(geom.name):
            spec.delete(geom)
            continue
        geom.contype, geom.conaffinity = 0, 1  # the terrain alone collides with the robot
        geom.condim = 3 if is_foot else 1
        geom.priority = 1 if is_foot else 0  # a foot's friction decides, whatever the terrain's
    if not visual:
        for mesh in list(spec.meshes):
            spec.delete(mesh)
    for sensor in list(spec.sensors):
        spec.delete(sensor)


def _add_terrain(spec: mujoco.MjSpec, terrain: Terrain | None, num_boxes: int) -> None:
    world = spec.worldbody
    if terrain is None:
        world.add_geom(
            name="ground", type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 1], contype=1, conaffinity=0, rgba=_GROUND_RGBA
        )
        return
    solid = terrain.solid
    for index in range(max(num_boxes, len(solid))):
        # Padding lies far below. It collides like the rest: what does not is left out of the bounding-volume tree,
        # whose size would then differ from tile to tile.
        below = np.array([0, 0, -100.0 - index, 0.1, 0.1, 0.1])
        box = solid[index] if index < len(solid) else below
        world.add_geom(
            name=f"box{index}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            pos=box[:3],
            size=box[3:],
            contype=1,
            conaffinity=0,
            rgba=_GROUND_RGBA,
        )


def _add_motors(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    joints = {joint.name: joint for joint in spec.joints}
    for name, motor in zip(robot.joint_names, robot.motors, strict=True):
        joints[name].armature = motor.armature
        joints[name].solref_limit, joints[name].solimp_limit = _STOP_SOLREF, _STOP_SOLIMP
        actuator = spec.add_actuator(name=name, target=name, trntype=mujoco.mjtTrn.mjTRN_JOINT)
        actuator.set_to_position(kp=motor.stiffness, kv=motor.damping)
        actuator.forcelimited = True
        actuator.forcerange = [-motor.effort, motor.effort]


def _add_sensors(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Foot positions, foot velocities, foot forces, trunk touches, joint torques: `reading.py` finds them."""
    site, joint = mujoco.mjtObj.mjOBJ_SITE, mujoco.mjtObj.mjOBJ_ACTUATOR
    kinds = mujoco.mjtSensor
    feet = range(len(robot.feet))
    for index, foot in enumerate(robot.feet):
        body = spec.body(foot)
        body.add_site(name=f"sole{index}", pos=robot.sole, size=[0.01, 0.01, 0.01])
        for point, place in enumerate(robot.sole_points):
            body.add_site(name=f"sole{index}_{point}", pos=place, size=[0.005, 0.005, 0.005], rgba=[0, 0, 0, 0])
    # One kind after the other, so that each can be read as one block.
    for index in feet:
        spec.add_sensor(name=f"foot_pos{index}", type=kinds.mjSENS_FRAMEPOS, objtype=site, objname=f"sole{index}")
    for index in feet:
        spec.add_sensor(name=f"foot_vel{index}", type=kinds.mjSENS_FRAMELINVEL, objtype=site, objname=f"sole{index}")
    for site_name in sole_sites(robot):
        spec.add_sensor(name=f"pos_{site_name}", type=kinds.mjSENS_FRAMEPOS, objtype=site, objname=site_name)
    for index, foot in enumerate(robot.feet):
        spec.add_sensor(
            name=f"foot_force{index}",
            type=kinds.mjSENS_CONTACT,
            objtype=mujoco.mjtObj.mjOBJ_BODY,
            objname=foot,
            # The sum of all contacts' forces as one vector in the world's frame.
            intprm=[1 << mujoco.mjtConDataField.mjCONDATA_FORCE.value, _NET_FORCE, 1],
        )
    for index, name in enumerate(robot.no_contact):
        body = spec.body(name)
        body.add_site(name=f"trunk{index}", type=mujoco.mjtGeom.mjGEOM_SPHERE, size=[1.0, 0, 0], rgba=[0, 0, 0, 0])
        spec.add_sensor(name=f"trunk_touch{index}", type=kinds.mjSENS_TOUCH, objtype=site, objname=f"trunk{index}")
    for name in robot.joint_names:
        spec.add_sensor(name=f"torque_{name}", type=kinds.mjSENS_ACTUATORFRC, objtype=joint, objname=name)


def sole_sites(robot: RobotSpec) -> list[str]:
    """Names of the sites at the robot's sole points, foot by foot."""
    return [f"sole{foot}_{point}" for foot in range(len(robot.feet)) for point in range(len(robot.sole_points))]


def _add_scenery(spec: mujoco.MjSpec) -> None:
    spec.worldbody.add_light(
        pos=[0, 0, 6], dir=[0.2, 0.2, -1], type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL, diffuse=[0.7, 0.7, 0.7]
    )
    kinds, patterns = mujoco.mjtTexture, mujoco.mjtBuiltin
    grid = {"type": kinds.mjTEXTURE_2D, "builtin": patterns.mjBUILTIN_CHECKER, "width": 256, "height": 256}
    sky = {"type": kinds.mjTEXTURE_SKYBOX, "builtin": patterns.mjBUILTIN_GRADIENT, "width": 128, "height": 768}
    spec.add_texture(name="grid", rgb1=[0.32, 0.35, 0.40], rgb2=[0.40, 0.43, 0.48], **grid)
    spec.add_texture(name="sky", rgb1=[0.55, 0.65, 0.78], rgb2=[0.85, 0.88, 0.92], **sky)
    material = spec.add_material(name="grid", texrepeat=[1, 1], texuniform=True)
    material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = "grid"
    for geom in spec.worldbody.geoms:
        geom.material = "grid"
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    spec.visual.global_.offwidth, spec.visual.global_.offheight = 1280, 960


def as_slice(columns: Sequence[int]) -> slice | np.ndarray:
    """The columns as a slice where they are consecutive: reading it makes no copy."""
    first = int(columns[0])
    if list(columns) == list(range(first, first + len(columns))):
        return slice(first, first + len(columns))
    return np.array(columns)


def sizes_of(model: mujoco.MjModel) -> dict[str, int]:
    """Every integer size of a model. `mujoco.rollout` does not compare them, and unequal ones run out of bounds."""
    return {
        name: value
        for name in dir(model)
        if re.fullmatch(r"n[a-zA-Z_]+", name) and isinstance(value := getattr(model, name), int) and name != "nbuffer"
    }
