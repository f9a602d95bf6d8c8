"""The scene that PhysX is given, read back as USD, against the MuJoCo model it was made from."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest
from isaaclab.sim import SimulationCfg
from pxr import Gf, Usd, UsdGeom, UsdPhysics

from trainer.engines.isaaclab.env_cfg import FlatEnvCfg
from trainer.engines.mjcf.model import robot_spec
from trainer.engines.physx.stage import Mesh, write_stage
from trainer.tasks.robots import G1

ORIGINS = np.array([[0.0, 0.0, 0.0], [2.5, 1.0, 0.5]])
TRIANGLE = Mesh(np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.25]]), np.array([[0, 1, 2]]))


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return robot_spec(G1).compile()


def _written(folder: Path, model: mujoco.MjModel, mesh: Mesh | None = None) -> Any:
    cfg = FlatEnvCfg()
    write_stage(folder / "scene.usda", model, ORIGINS, mesh, cfg.sim, cfg.scene.robot)
    return Usd.Stage.Open(str(folder / "scene.usda"))


def test_bodies_and_shapes_are_the_model_s(model: mujoco.MjModel, tmp_path: Path) -> None:
    stage = _written(tmp_path, model)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    for env, origin in enumerate(ORIGINS):
        for body in range(1, model.nbody):
            prim = stage.GetPrimAtPath(f"/World/envs/env_{env}/Robot/{model.body(body).name}")
            mass = UsdPhysics.MassAPI(prim)
            assert mass.GetMassAttr().Get() == pytest.approx(model.body_mass[body])
            np.testing.assert_allclose(mass.GetCenterOfMassAttr().Get(), model.body_ipos[body], atol=1e-6)
            np.testing.assert_allclose(mass.GetDiagonalInertiaAttr().Get(), model.body_inertia[body], rtol=1e-6)
            world = UsdGeom.XformCache().GetLocalToWorldTransform(prim)
            expected = data.xpos[body] - data.xpos[1] + origin
            np.testing.assert_allclose(world.ExtractTranslation(), expected, atol=1e-6)
    shapes = [prim for prim in stage.Traverse() if prim.HasAPI(UsdPhysics.CollisionAPI)]
    assert len(shapes) == 1 + 2 * model.ngeom
    foot = UsdGeom.Capsule(stage.GetPrimAtPath("/World/envs/env_1/Robot/left_ankle_roll_link/left_foot2_collision"))
    size = model.geom("left_foot2_collision").size
    assert (foot.GetRadiusAttr().Get(), foot.GetHeightAttr().Get()) == pytest.approx((size[0], 2 * size[1]))


def test_joints_are_the_model_s(model: mujoco.MjModel, tmp_path: Path) -> None:
    """Frames of both bodies meet in the joint, its x axis is the hinge's, ranges are in degrees, and it has a drive."""
    stage, data = _written(tmp_path, model), mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    names = []
    for body in range(2, model.nbody):
        hinge = model.joint(int(model.body_jntadr[body]))
        joint = UsdPhysics.RevoluteJoint(stage.GetPrimAtPath(f"/World/envs/env_0/Robot/joints/{hinge.name}"))
        assert joint.GetBody1Rel().GetTargets()[0].name == model.body(body).name
        assert joint.GetBody0Rel().GetTargets()[0].name == model.body(int(model.body_parentid[body])).name
        frames = []
        for owner, pos, rot in (
            (int(model.body_parentid[body]), joint.GetLocalPos0Attr().Get(), joint.GetLocalRot0Attr().Get()),
            (body, joint.GetLocalPos1Attr().Get(), joint.GetLocalRot1Attr().Get()),
        ):
            turn = data.xmat[owner].reshape(3, 3)
            axis = turn @ np.array(Gf.Rotation(rot).TransformDir(Gf.Vec3d(1, 0, 0)))
            frames.append((data.xpos[owner] + turn @ np.array(pos), axis))
        np.testing.assert_allclose(*(frame[0] for frame in frames), atol=1e-6)
        np.testing.assert_allclose(*(frame[1] for frame in frames), atol=1e-6)
        np.testing.assert_allclose(frames[1][1], data.xaxis[hinge.id], atol=1e-6)
        limits = (joint.GetLowerLimitAttr().Get(), joint.GetUpperLimitAttr().Get())
        assert limits == pytest.approx([math.degrees(value) for value in hinge.range], abs=1e-4)
        assert joint.GetPrim().HasAPI(UsdPhysics.DriveAPI)
        names.append(hinge.name)
    assert sorted(names) == sorted(G1.joint_names)


def test_one_articulation_a_robot_and_robots_kept_apart(model: mujoco.MjModel, tmp_path: Path) -> None:
    stage = _written(tmp_path, model)
    roots = [str(prim.GetPath()) for prim in stage.Traverse() if prim.HasAPI(UsdPhysics.ArticulationRootAPI)]
    assert roots == ["/World/envs/env_0/Robot/pelvis", "/World/envs/env_1/Robot/pelvis"]
    group = UsdPhysics.CollisionGroup(stage.GetPrimAtPath("/World/robots"))
    assert group.GetFilteredGroupsRel().GetTargets() == [group.GetPath()]
    assert group.GetCollidersCollectionAPI().GetIncludesRel().GetTargets() == ["/World/envs"]
    pelvis = stage.GetPrimAtPath(roots[0])
    assert pelvis.GetAttribute("physxArticulation:solverPositionIterationCount").Get() == 8
    assert pelvis.GetAttribute("physxArticulation:enabledSelfCollisions").Get() is False
    scene = stage.GetPrimAtPath("/World/physicsScene")
    assert scene.GetAttribute("physxScene:bounceThreshold").Get() == SimulationCfg().physx.bounce_threshold_velocity
    assert scene.GetAttribute("physxScene:timeStepsPerSecond").Get() == 200


def test_the_ground_is_a_plane_or_the_mesh(model: mujoco.MjModel, tmp_path: Path) -> None:
    (tmp_path / "plane").mkdir()
    plane, stage = _written(tmp_path / "plane", model), _written(tmp_path, model, TRIANGLE)
    assert plane.GetPrimAtPath("/World/ground").IsA(UsdGeom.Plane)
    mesh = UsdGeom.Mesh(stage.GetPrimAtPath("/World/ground"))
    np.testing.assert_allclose(mesh.GetPointsAttr().Get(), TRIANGLE.vertices)
    assert list(mesh.GetFaceVertexIndicesAttr().Get()) == [0, 1, 2]


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    spec = robot_spec(G1)
    spec.body("torso_link").add_geom(name="crate", type=mujoco.mjtGeom.mjGEOM_BOX, size=[0.1, 0.1, 0.1])
    with pytest.raises(ValueError, match="crate: expected a sphere or a capsule, got mjGEOM_BOX"):
        _written(tmp_path, spec.compile())
    spec = robot_spec(G1)
    spec.body("torso_link").add_body(name="pack", mass=1.0, inertia=[0.01, 0.01, 0.01])
    with pytest.raises(ValueError, match="pack: expected one hinge"):
        _written(tmp_path, spec.compile())
