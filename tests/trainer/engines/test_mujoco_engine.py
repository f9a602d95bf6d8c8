"""The native MuJoCo engine: what it reports is what the simulator has, and one robot's trouble is its own."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from trainer.engines.mjcf.model import build_model, mjcf_path, sizes_of
from trainer.engines.mujoco import engine as engine_module
from trainer.engines.mujoco.engine import MujocoEngine
from trainer.tasks.robots import G1, WALKER
from trainer.tasks.terrains import MAX_BOXES, PIT_FLOOR, TERRAINS, make_terrain

COURSES = [name for name in TERRAINS if name != "flat"]


def start(engine, tile=None, yaw=0.0, friction=0.8, mass=0.0, height=None):
    """All robots at rest in their stance at their tile's spawn."""
    count, robot = engine.num_envs, engine.robot
    tile = torch.zeros(count, dtype=torch.int64) if tile is None else tile
    root = torch.zeros(count, 3)
    if engine.tiles:
        root = torch.tensor([engine.tiles[i].spawn for i in tile.tolist()], dtype=torch.float32)
    root[:, 2] += robot.standing_height if height is None else height
    dynamics = torch.tensor([friction, mass, 0.0, 0.0, 0.0]).repeat(count, 1)
    stance = torch.tensor(robot.default_pos).repeat(count, 1)
    return engine.reset(torch.arange(count), tile, root, torch.full((count,), yaw), stance, dynamics), stance


def test_joints_are_found_by_name_not_by_position():
    engine = MujocoEngine(G1, [], 1, num_threads=0)
    _, stance = start(engine)
    target = stance.clone()
    elbow = G1.joint_names.index("right_elbow_joint")
    target[0, elbow] += 0.3
    for _ in range(15):
        state, _ = engine.step(target)
    moved = (state.joint_pos - stance)[0]
    assert moved[elbow] > 0.15
    model, data = engine.model_of(0), mujoco.MjData(engine.model_of(0))
    data.qpos[:] = engine.qpos_of(0)
    for index, name in enumerate(G1.joint_names):
        assert data.joint(name).qpos[0] == pytest.approx(state.joint_pos[0, index].item(), abs=1e-6)
        assert model.actuator(name).trnid[0] == model.joint(name).id


@pytest.mark.parametrize("robot", [G1, WALKER], ids=lambda robot: robot.name)
def test_state_is_the_simulators(robot):
    engine = MujocoEngine(robot, [], 2, num_threads=0)
    _, stance = start(engine, yaw=0.7)
    for _ in range(8):
        state, broken = engine.step(stance + 0.1)
    assert not broken.any()
    model, data = engine.model_of(1), mujoco.MjData(engine.model_of(1))
    saved = engine.state_dict()["state"][1].numpy()
    mujoco.mj_setState(model, data, saved, mujoco.mjtState.mjSTATE_FULLPHYSICS.value)
    mujoco.mj_forward(model, data)
    root = "pelvis" if robot is G1 else "torso"
    assert np.allclose(data.body(root).xpos, state.root_pos[1], atol=1e-5)
    assert np.allclose(data.body(root).xquat, state.root_quat[1], atol=1e-5)
    velocity = np.zeros(6)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body(root).id, velocity, 0)
    assert np.allclose(velocity[3:], state.root_lin_vel[1], atol=1e-4)
    mujoco.mj_objectVelocity(model, data, mujoco.mjtObj.mjOBJ_XBODY, model.body(root).id, velocity, 1)
    assert np.allclose(velocity[:3], state.root_ang_vel[1], atol=1e-4)
    assert np.abs(velocity).max() > 0.01  # something moved
    # Sensors are those of the last physics step's start: near, not equal.
    sole = data.site("sole0").xpos
    assert np.allclose(sole, state.foot_pos[1, 0], atol=0.02)


def test_feet_bear_the_robots_weight():
    engine = MujocoEngine(G1, [], 1, num_threads=0)
    _, stance = start(engine)
    for _ in range(15):
        state, _ = engine.step(stance)
    assert state.foot_force[..., 2].sum().item() == pytest.approx(33.34 * 9.81, rel=0.25)
    assert (state.foot_force[..., :2].norm(dim=-1) < 0.2 * state.foot_force[..., 2]).all()
    assert state.sole_drop.abs().max() < 0.01  # both soles are flat on the ground
    assert not state.body_contact.any()


def test_a_fallen_trunk_is_noticed():
    engine = MujocoEngine(G1, [], 1, num_threads=0)
    assert not start(engine)[0].body_contact.any()
    sitting = torch.zeros(1, 29)
    for side in ("left", "right"):
        sitting[0, G1.joint_names.index(f"{side}_hip_pitch_joint")] = -1.55
    zero, root = torch.zeros(1, dtype=torch.int64), torch.tensor([[0.0, 0.0, 0.16]])
    engine.reset(zero, zero, root, torch.zeros(1), sitting, torch.tensor([[0.8, 0, 0, 0, 0]]))
    touched = [bool(engine.step(sitting)[0].body_contact) for _ in range(20)]
    assert any(touched)


@pytest.mark.parametrize("difficulty", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", COURSES)
def test_the_robot_can_stand_where_it_spawns(name, difficulty):
    terrain = make_terrain(name, difficulty, np.random.default_rng(0))
    engine = MujocoEngine(G1, [terrain], 1, num_threads=0)
    _, stance = start(engine, yaw=float(np.mean(terrain.heading)), height=G1.standing_height + 0.02)
    for _ in range(20):  # without a policy it tips over after about a second
        state, broken = engine.step(stance)
    assert not broken.any()
    assert not state.body_contact.any()
    assert (state.foot_force[..., 2] > 20).all()
    assert state.root_pos[0, 2].item() - terrain.spawn[2] == pytest.approx(G1.standing_height, abs=0.08)
    assert torch.allclose(state.foot_ground, torch.full((1, 2), terrain.spawn[2]), atol=1e-4)


@pytest.mark.parametrize("name", COURSES)
def test_scan_agrees_with_rays(name):
    terrain = make_terrain(name, 0.7, np.random.default_rng(1))
    engine = MujocoEngine(G1, [terrain], 1, num_threads=0)
    generator = np.random.default_rng(2)
    spread = np.array(terrain.size) / 2 - 0.3
    points = generator.uniform(-spread, spread, size=(400, 2))
    looked_up = engine.ground.height(torch.zeros(1, dtype=torch.int64), torch.from_numpy(points).float()[None])[0]
    model = build_model(G1, terrain)
    data = mujoco.MjData(model)
    data.qpos[2] = 50.0  # out of the rays' way
    mujoco.mj_forward(model, data)
    hit = np.zeros(1, np.int32)
    wrong = 0
    for point, height in zip(points, looked_up.tolist(), strict=True):
        distance = mujoco.mj_ray(model, data, np.array([*point, 10.0]), np.array([0.0, 0, -1]), None, 1, -1, hit)
        expected = PIT_FLOOR if distance < 0 else 10.0 - distance
        wrong += abs(expected - height) > 1e-3
    assert wrong <= 0.12 * len(points)  # cells of 5 cm: only points within half a cell of an edge may differ
    assert len(set(np.round(looked_up.tolist(), 3))) > 1


def test_scan_turns_with_the_heading():
    terrain = make_terrain("gaps", 1.0, np.random.default_rng(0))
    engine = MujocoEngine(G1, [terrain], 1, num_threads=0)
    where = torch.tensor([[-3.32, 0.0, G1.standing_height]])  # the first gap begins at -3
    stance, dynamics = torch.tensor([G1.default_pos]), torch.tensor([[0.8, 0, 0, 0, 0]])
    zero = torch.zeros(1, dtype=torch.int64)
    grids = []
    for yaw in (0.0, np.pi / 2, np.pi):
        state = engine.reset(zero, zero, where, torch.tensor([yaw], dtype=torch.float32), stance, dynamics)
        grids.append(state.scan.view(11, 17) < -0.5)
    ahead, left, behind = grids
    assert ahead[:, 12:16].all()
    assert not ahead[:, :11].any()
    assert left[:2].all()  # to the right of a robot that looks left
    assert not left[3:].any()
    assert behind[:, 1:5].all()
    assert not behind[:, 6:].any()


def test_outside_the_tile_is_the_pit():
    terrain = make_terrain("stairs", 0.5, np.random.default_rng(0))
    engine = MujocoEngine(G1, [terrain], 1, num_threads=0)
    far = torch.tensor([[[100.0, 0.0], [0.0, -100.0], [-100.0, 100.0]]])
    assert engine.ground.height(torch.zeros(1, dtype=torch.int64), far).tolist() == [[PIT_FLOOR] * 3]


def test_all_tiles_have_one_size():
    tiles = [make_terrain(name, d, np.random.default_rng(0)) for name in COURSES for d in (0.0, 1.0)]
    models = [build_model(G1, tile, MAX_BOXES) for tile in tiles]
    assert all(sizes_of(model) == sizes_of(models[0]) for model in models)
    assert sizes_of(build_model(G1, tiles[0], 3)) != sizes_of(models[0])


def test_unequal_sizes_are_refused(monkeypatch):
    tiles = [make_terrain(name, 0.5, np.random.default_rng(0)) for name in ("stairs", "gaps")]
    original = engine_module.build_model
    monkeypatch.setattr(engine_module, "build_model", lambda robot, tile, *_: original(robot, tile))
    engine, zero = MujocoEngine(G1, tiles, 1), torch.zeros(1, dtype=torch.int64)
    stance, dynamics = torch.tensor([G1.default_pos]), torch.tensor([[0.8, 0.0, 0.0, 0.0, 0.0]])
    with pytest.raises(RuntimeError, match="tile gaps: model sizes differ"):
        engine.reset(zero, zero + 1, torch.tensor([[0.0, 0.0, 0.8]]), torch.zeros(1), stance, dynamics)


def test_randomised_dynamics_are_the_models():
    engine = MujocoEngine(G1, [], 2, num_threads=0)
    plain = build_model(G1, None)
    torso = plain.body("torso_link").id
    stance = torch.tensor(G1.default_pos).repeat(2, 1)
    dynamics = torch.tensor([[0.4, 2.0, 0.03, -0.02, 0.01], [0.9, -1.0, 0.0, 0.0, 0.0]])
    root = torch.tensor([[0.0, 0.0, 0.8]] * 2)
    engine.reset(torch.arange(2), torch.zeros(2, dtype=torch.int64), root, torch.zeros(2), stance, dynamics)
    first, second = engine.model_of(0), engine.model_of(1)
    assert first.body_mass[torso] == pytest.approx(plain.body_mass[torso] + 2.0)
    assert first.body_ipos[torso] == pytest.approx(plain.body_ipos[torso] + [0.03, -0.02, 0.01])
    assert second.body_mass.sum() == pytest.approx(plain.body_mass.sum() - 1.0)
    assert first.body_subtreemass[0] == pytest.approx(plain.body_subtreemass[0])  # the world's is not a robot's
    assert first.body_subtreemass[1] == pytest.approx(plain.body_subtreemass[1] + 2.0)
    feet = [i for i in range(plain.ngeom) if "_foot" in (plain.geom(i).name or "")]
    assert len(feet) == 4
    assert first.geom_friction[feet, 0] == pytest.approx(0.4)
    # Again on the same environment: from the original, not on top of the last.
    engine.reset(torch.arange(2), torch.zeros(2, dtype=torch.int64), root, torch.zeros(2), stance, dynamics)
    assert engine.model_of(0).body_mass[torso] == pytest.approx(plain.body_mass[torso] + 2.0)


def test_push_changes_the_velocity():
    engine = MujocoEngine(G1, [], 2, num_threads=0)
    _, stance = start(engine)
    engine.push(torch.tensor([1]), torch.tensor([[0.5, -0.4]]))
    state, _ = engine.step(stance)
    assert state.root_lin_vel[1, 0] - state.root_lin_vel[0, 0] > 0.2
    assert state.root_lin_vel[1, 1] - state.root_lin_vel[0, 1] < -0.1


def test_a_diverged_simulation_is_flagged_and_stays_alone():
    engine, twin = (MujocoEngine(WALKER, [], 3, num_threads=0) for _ in range(2))
    _, stance = start(engine)
    start(twin)
    engine.push(torch.tensor([1]), torch.tensor([[float("nan"), 0.0]]))
    state, broken = engine.step(stance)
    expected, _ = twin.step(stance)
    assert broken.tolist() == [False, True, False]
    for name, value in vars(state).items():
        assert value.isfinite().all(), name
        assert torch.equal(value[[0, 2]], vars(expected)[name][[0, 2]])


def test_continuation_from_a_saved_state_is_exact():
    tiles = [make_terrain(name, 0.5, np.random.default_rng(0)) for name in ("stairs", "gaps")]
    engine, other = (MujocoEngine(G1, tiles, 4, num_threads=2) for _ in range(2))
    _, stance = start(engine, tile=torch.tensor([0, 1, 0, 1]), friction=0.5, mass=1.5)
    for _ in range(5):
        engine.step(stance)
    other.load_state_dict(engine.state_dict())
    for _ in range(5):
        ours, _ = engine.step(stance)
        theirs, _ = other.step(stance)
    for name, value in vars(ours).items():
        assert torch.equal(value, vars(theirs)[name]), name


def test_threads_do_not_change_the_numbers():
    states = []
    for threads in (0, 1, 3):
        engine = MujocoEngine(WALKER, [], 7, num_threads=threads)
        _, stance = start(engine)
        for _ in range(10):
            state, _ = engine.step(stance + torch.linspace(-0.2, 0.2, 7)[:, None])
        states.append(state)
    assert torch.equal(states[0].joint_pos, states[1].joint_pos)
    assert torch.equal(states[0].joint_pos, states[2].joint_pos)


def test_errors_name_the_cause(monkeypatch):
    with pytest.raises(ValueError, match="num_envs: expected at least 1, got 0"):
        MujocoEngine(WALKER, [], 0)
    with pytest.raises(ValueError, match=r"control_dt: expected a multiple of the physics step of 0.005 s, got 0.012"):
        MujocoEngine(WALKER, [], 1, control_dt=0.012)
    assert MujocoEngine(WALKER, [], 1, control_dt=0.04).decimation == 8
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"comes with mjlab, which is not installed; run: pip install"):
        mjcf_path(G1)


def test_a_robot_that_moved_from_tile_to_tile_has_the_model_of_its_tile():
    """Every array of it, the tree over the boxes among them: what tiles differ in is written when a robot moves."""
    tiles = [make_terrain(name, 0.6, np.random.default_rng(3)) for name in ("stairs", "gaps", "sparse_stones")]
    engine = MujocoEngine(WALKER, tiles, 3, num_threads=0)
    for shift in range(4):
        start(engine, tile=(torch.arange(3) + shift) % 3, mass=0.5 * shift)
    start(engine, tile=torch.arange(3), friction=0.8)
    assert len({id(engine.model_of(env)) for env in range(3)}) == 3  # nobody shares
    for env, tile in enumerate(tiles):
        expected, found = build_model(WALKER, tile, engine._num_boxes), engine.model_of(env)
        expected.geom_friction[engine._reader.foot_geoms, 0] = np.float32(0.8)
        arrays = [name for name in dir(expected) if isinstance(getattr(expected, name), np.ndarray)]
        assert {"bvh_aabb", "geom_pos", "body_mass"} <= set(arrays)
        for name in arrays:
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)


def test_an_ankle_pressed_on_its_stop_stays_within_a_few_hundredths_of_it():
    model = build_model(G1, None)
    model.opt.gravity[:] = 0
    data = mujoco.MjData(model)
    joint = model.joint("left_ankle_pitch_joint")
    data.qpos[3] = 1.0
    data.qfrc_applied[joint.dofadr[0]] = -60.0  # what a G1's weight does where its shank leans far over its foot
    for _ in range(200):
        mujoco.mj_step(model, data)
    position, low = data.qpos[joint.qposadr[0]], joint.range[0]
    assert low - 0.05 < position < low + 0.01


def test_the_sparse_solver_gives_the_dense_ones_numbers():
    """A G1 dropped onto the plane with its motors pulling: contacts, stops and motors, by both solvers."""
    ends = []
    for jacobian in (None, mujoco.mjtJacobian.mjJAC_DENSE):
        model = build_model(G1, None)
        assert model.opt.jacobian == mujoco.mjtJacobian.mjJAC_SPARSE
        if jacobian is not None:
            model.opt.jacobian = jacobian
        data = mujoco.MjData(model)
        data.qpos[2] = 0.78
        for step in range(60):
            data.ctrl[:] = 0.3 * np.sin(0.1 * step + np.arange(model.nu))
            mujoco.mj_step(model, data)
        assert data.ncon > 0
        ends.append(data.qpos.copy())
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-8)  # rounding, grown over 60 steps of contact
    assert build_model(WALKER, None).opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE
