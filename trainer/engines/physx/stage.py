"""The scene as USD: robots made from the native engine's MuJoCo model, on a plane or on a mesh.

One model for all engines: bodies, inertias, joints, limits and collision shapes are those that native MuJoCo simulates
(`trainer/engines/mjcf/model.py`). Motors are left to Isaac Lab, which writes its own gains into PhysX's drives.
Settings of PhysX are those of Isaac Lab's configuration: of the scene from `SimulationCfg`, of the robot from its
`UsdFileCfg`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from pxr import Gf, Sdf, Usd, UsdGeom, UsdPhysics, UsdShade, Vt

WORLD, GROUND, ENVS, ROBOT = "/World", "/World/ground", "/World/envs", "Robot"
_X = np.array([1.0, 0.0, 0.0])
_KINDS = Sdf.ValueTypeNames
_SCENE = {
    "Bool": ("enable_stabilization", "enable_enhanced_determinism", "enable_external_forces_every_iteration"),
    "Float": ("friction_offset_threshold", "friction_correlation_distance"),
    "UInt": (
        "min_position_iteration_count",
        "max_position_iteration_count",
        "min_velocity_iteration_count",
        "max_velocity_iteration_count",
    ),
}
"""Settings of the scene by the type of PhysX's attribute, which has Isaac Lab's name in camelCase."""
_ARTICULATION = {
    "Bool": ("enabled_self_collisions",),
    "Int": ("solver_position_iteration_count", "solver_velocity_iteration_count"),
}
"""Settings of a robot, in the same way."""
_BODY = {
    "Bool": ("disable_gravity", "retain_accelerations"),
    "Float": (
        "linear_damping",
        "angular_damping",
        "max_linear_velocity",
        "max_angular_velocity",
        "max_depenetration_velocity",
    ),
}
"""Settings of a robot's bodies, in the same way."""


@dataclass(frozen=True)
class Mesh:
    """Triangles of the ground."""

    vertices: np.ndarray
    """[V, 3]."""
    faces: np.ndarray
    """[T, 3]."""


def write_stage(
    path: Path, model: mujoco.MjModel, origins: np.ndarray, mesh: Mesh | None, sim_cfg: Any, robot_cfg: Any
) -> None:
    """Writes a scene.

    Args:
        path: A `.usda` or `.usdc` file.
        model: Model of one robot alone: its bodies, hinges, spheres and capsules.
        origins: [E, 3]: where the robots stand at first; tensors move them before they matter.
        mesh: The ground; None for a plane at height 0.
        sim_cfg: Isaac Lab's `SimulationCfg`.
        robot_cfg: Isaac Lab's `ArticulationCfg` with a `UsdFileCfg`, whose file is not read.

    Raises:
        ValueError: The model has a joint or a shape that this does not write.
    """
    layer = Sdf.Layer.CreateAnonymous()
    stage = Usd.Stage.Open(layer)
    UsdGeom.SetStageUpAxis(stage, UsdGeom.Tokens.z)
    UsdGeom.SetStageMetersPerUnit(stage, 1.0)
    stage.SetDefaultPrim(UsdGeom.Xform.Define(stage, WORLD).GetPrim())
    _write_scene(stage, sim_cfg)
    _write_ground(stage, mesh, sim_cfg.physics_material)
    first = f"{ENVS}/env_0"
    UsdGeom.Xform.Define(stage, ENVS)
    UsdGeom.Xform.Define(stage, first)
    _write_robot(stage, f"{first}/{ROBOT}", model, robot_cfg.spawn)
    for env in range(1, len(origins)):
        Sdf.CopySpec(layer, Sdf.Path(first), layer, Sdf.Path(f"{ENVS}/env_{env}"))
    for env, origin in enumerate(origins):
        # Of the environment, so that every robot is written the same.
        UsdGeom.XformCommonAPI(stage.GetPrimAtPath(f"{ENVS}/env_{env}")).SetTranslate(Gf.Vec3d(*map(float, origin)))
    _keep_robots_apart(stage)
    layer.Export(str(path))


def _set(prim: Usd.Prim, name: str, kind: Any, value: Any) -> None:
    """An attribute of PhysX's own schemas, which usd-core does not carry; None leaves it to PhysX."""
    if value is not None:
        prim.CreateAttribute(name, kind).Set(value)


def _set_all(prim: Usd.Prim, schema: str, names: dict[str, tuple[str, ...]], cfg: Any) -> None:
    """Applies a schema of PhysX and sets the attributes that have the name of a setting."""
    prim.AddAppliedSchema(f"{schema[0].upper()}{schema[1:]}API")
    for kind, some in names.items():
        for name in some:
            first, *others = name.split("_")
            attribute = first + "".join(map(str.capitalize, others))
            _set(prim, f"{schema}:{attribute}", getattr(_KINDS, kind), getattr(cfg, name))


def _write_scene(stage: Usd.Stage, cfg: Any) -> None:
    """The attributes are those that Isaac Lab's simulation context sets."""
    scene = UsdPhysics.Scene.Define(stage, f"{WORLD}/physicsScene")
    gravity = np.array(cfg.gravity)
    magnitude = float(np.linalg.norm(gravity))
    scene.CreateGravityDirectionAttr(Gf.Vec3f(*map(float, gravity / magnitude)))
    scene.CreateGravityMagnitudeAttr(magnitude)
    prim, physx = scene.GetPrim(), cfg.physx
    for name, kind, value in (
        ("timeStepsPerSecond", _KINDS.UInt, round(1.0 / cfg.dt)),
        ("enableGPUDynamics", _KINDS.Bool, False),
        ("broadphaseType", _KINDS.Token, "MBP"),
        ("solverType", _KINDS.Token, "TGS" if physx.solver_type == 1 else "PGS"),
        ("enableCCD", _KINDS.Bool, physx.enable_ccd),
        ("bounceThreshold", _KINDS.Float, physx.bounce_threshold_velocity),
    ):
        _set(prim, f"physxScene:{name}", kind, value)
    _set_all(prim, "physxScene", _SCENE, physx)


def _write_ground(stage: Usd.Stage, mesh: Mesh | None, cfg: Any) -> None:
    material = UsdShade.Material.Define(stage, f"{WORLD}/groundMaterial")
    prim = material.GetPrim()
    physics = UsdPhysics.MaterialAPI.Apply(prim)
    physics.CreateStaticFrictionAttr(cfg.static_friction)
    physics.CreateDynamicFrictionAttr(cfg.dynamic_friction)
    physics.CreateRestitutionAttr(cfg.restitution)
    prim.AddAppliedSchema("PhysxMaterialAPI")
    _set(prim, "physxMaterial:frictionCombineMode", _KINDS.Token, cfg.friction_combine_mode)
    _set(prim, "physxMaterial:restitutionCombineMode", _KINDS.Token, cfg.restitution_combine_mode)
    if mesh is None:
        plane = UsdGeom.Plane.Define(stage, GROUND)
        plane.CreateAxisAttr(UsdGeom.Tokens.z)
        ground = plane.GetPrim()
    else:
        surface = UsdGeom.Mesh.Define(stage, GROUND)
        surface.CreatePointsAttr(Vt.Vec3fArray.FromNumpy(np.ascontiguousarray(mesh.vertices, np.float32)))
        surface.CreateFaceVertexIndicesAttr(Vt.IntArray.FromNumpy(mesh.faces.astype(np.int32).ravel()))
        surface.CreateFaceVertexCountsAttr(Vt.IntArray.FromNumpy(np.full(len(mesh.faces), 3, np.int32)))
        ground = surface.GetPrim()
        UsdPhysics.MeshCollisionAPI.Apply(ground).CreateApproximationAttr(UsdPhysics.Tokens.none)
    UsdPhysics.CollisionAPI.Apply(ground)
    binding = UsdShade.MaterialBindingAPI.Apply(ground)
    binding.Bind(material, UsdShade.Tokens.weakerThanDescendants, "physics")


def _write_robot(stage: Usd.Stage, root: str, model: mujoco.MjModel, spawn: Any) -> None:
    """Bodies side by side below `root`, as Isaac Lab's assets have them, the joints after them."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    UsdGeom.Xform.Define(stage, root)
    paths = {body: f"{root}/{model.body(body).name}" for body in range(1, model.nbody)}
    for body, path in paths.items():
        prim = UsdGeom.Xform.Define(stage, path).GetPrim()
        _place(prim, data.xpos[body] - data.xpos[1], data.xquat[body])
        _write_body(prim, model, body, spawn.rigid_props)
        for geom in np.flatnonzero(model.geom_bodyid == body):
            _write_shape(stage, path, model, int(geom))
    base = stage.GetPrimAtPath(paths[1])  # here, and not on its parent, it says which link is the root
    UsdPhysics.ArticulationRootAPI.Apply(base)
    _set_all(base, "physxArticulation", _ARTICULATION, spawn.articulation_props)
    UsdGeom.Scope.Define(stage, f"{root}/joints")
    for body in range(2, model.nbody):
        _write_joint(stage, f"{root}/joints", model, body, paths)


def _place(prim: Usd.Prim, position: np.ndarray, quaternion: np.ndarray) -> None:
    xform = UsdGeom.Xformable(prim)
    xform.AddTranslateOp(UsdGeom.XformOp.PrecisionDouble).Set(Gf.Vec3d(*map(float, position)))
    xform.AddOrientOp(UsdGeom.XformOp.PrecisionDouble).Set(Gf.Quatd(*map(float, quaternion)))


def _quatf(quaternion: np.ndarray) -> Gf.Quatf:
    return Gf.Quatf(*map(float, quaternion))


def _vec3f(vector: np.ndarray) -> Gf.Vec3f:
    return Gf.Vec3f(*map(float, vector))


def _write_body(prim: Usd.Prim, model: mujoco.MjModel, body: int, props: Any) -> None:
    UsdPhysics.RigidBodyAPI.Apply(prim)
    mass = UsdPhysics.MassAPI.Apply(prim)
    mass.CreateMassAttr(float(model.body_mass[body]))
    mass.CreateCenterOfMassAttr(_vec3f(model.body_ipos[body]))
    mass.CreateDiagonalInertiaAttr(_vec3f(model.body_inertia[body]))
    mass.CreatePrincipalAxesAttr(_quatf(model.body_iquat[body]))
    _set_all(prim, "physxRigidBody", _BODY, props)
    prim.AddAppliedSchema("PhysxContactReportAPI")
    _set(prim, "physxContactReport:threshold", _KINDS.Float, 0.0)


def _write_shape(stage: Usd.Stage, body: str, model: mujoco.MjModel, geom: int) -> None:
    name, size = model.geom(geom).name or f"shape_{geom}", model.geom_size[geom]
    path = f"{body}/{name}"
    kind = mujoco.mjtGeom(model.geom_type[geom])
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        sphere = UsdGeom.Sphere.Define(stage, path)
        sphere.CreateRadiusAttr(float(size[0]))
        prim = sphere.GetPrim()
    elif kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        capsule = UsdGeom.Capsule.Define(stage, path)
        capsule.CreateRadiusAttr(float(size[0]))
        capsule.CreateHeightAttr(float(2 * size[1]))  # of the cylinder between the caps, in both
        capsule.CreateAxisAttr(UsdGeom.Tokens.z)
        prim = capsule.GetPrim()
    else:
        raise ValueError(f"{name}: expected a sphere or a capsule, got {kind.name}")
    _place(prim, model.geom_pos[geom], model.geom_quat[geom])
    UsdPhysics.CollisionAPI.Apply(prim)


def _write_joint(stage: Usd.Stage, folder: str, model: mujoco.MjModel, body: int, paths: dict[int, str]) -> None:
    """The hinge between a body and its parent, with a drive: without one PhysX ignores gains without a word."""
    first, parent = int(model.body_jntadr[body]), int(model.body_parentid[body])
    if model.body_jntnum[body] != 1 or model.jnt_type[first] != mujoco.mjtJoint.mjJNT_HINGE:
        raise ValueError(f"{model.body(body).name}: expected one hinge, as every body of the robot but the first has")
    joint = UsdPhysics.RevoluteJoint.Define(stage, f"{folder}/{model.joint(first).name}")
    joint.CreateBody0Rel().SetTargets([paths[parent]])
    joint.CreateBody1Rel().SetTargets([paths[body]])
    joint.CreateAxisAttr(UsdPhysics.Tokens.x)
    turn, in_parent, anchor = _turn_x_to(model.jnt_axis[first]), np.zeros(4), np.zeros(3)
    mujoco.mju_mulQuat(in_parent, model.body_quat[body], turn)
    mujoco.mju_rotVecQuat(anchor, model.jnt_pos[first], model.body_quat[body])
    joint.CreateLocalPos0Attr(_vec3f(model.body_pos[body] + anchor))
    joint.CreateLocalRot0Attr(_quatf(in_parent))
    joint.CreateLocalPos1Attr(_vec3f(model.jnt_pos[first]))
    joint.CreateLocalRot1Attr(_quatf(turn))
    if model.jnt_limited[first]:
        low, high = model.jnt_range[first]
        joint.CreateLowerLimitAttr(math.degrees(low))
        joint.CreateUpperLimitAttr(math.degrees(high))
    prim = joint.GetPrim()
    drive = UsdPhysics.DriveAPI.Apply(prim, "angular")
    drive.CreateTypeAttr(UsdPhysics.Tokens.force)
    drive.CreateStiffnessAttr(0.0)  # until Isaac Lab writes the motors'
    drive.CreateDampingAttr(0.0)
    prim.AddAppliedSchema("PhysxJointAPI")


def _turn_x_to(axis: np.ndarray) -> np.ndarray:
    """[4]: the quaternion that turns the x axis into `axis` [3]."""
    turn = np.zeros(4)
    if axis @ _X < -1.0 + 1e-9:
        turn[3] = 1.0  # half a turn about z
        return turn
    turn[0], turn[1:] = 1.0 + axis @ _X, np.cross(_X, axis)
    return turn / np.linalg.norm(turn)


def _keep_robots_apart(stage: Usd.Stage) -> None:
    """Robots touch the ground alone: neither one another, who share a plane here, nor themselves."""
    group = UsdPhysics.CollisionGroup.Define(stage, f"{WORLD}/robots")
    group.CreateFilteredGroupsRel().SetTargets([group.GetPath()])
    group.GetCollidersCollectionAPI().CreateIncludesRel().SetTargets([ENVS])
