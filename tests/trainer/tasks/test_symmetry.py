"""Left and right exchanged: an involution, and what the simulator does on the other side of a mirror."""

from __future__ import annotations

from dataclasses import fields, replace

import mujoco
import numpy as np
import pytest
import torch
from tensordict import TensorDict

from trainer.engines.mjcf.model import build_model
from trainer.engines.mujoco.engine import MujocoEngine
from trainer.engines.mujoco.env import MujocoEnv
from trainer.tasks import TASKS, LocomotionTask, make_task
from trainer.tasks.randomization import ObservationNoise
from trainer.tasks.robots import G1, ROBOTS, WALKER, Mirror
from trainer.tasks.rotation import yaw_of
from trainer.tasks.state import Episode, RobotState
from trainer.tasks.symmetry import _EPISODE, _STATE, _TERMS, TaskSymmetry
from trainer.tasks.terrains import make_terrain

MIRROR = np.diag([1.0, -1.0, 1.0])
# The G1's MJCF is CAD: its torso's centre of mass lies 0.34 mm, its waist's 0.23 mm left of the middle, and a shoulder
# 0.01 mm further out than the other. That moved no position by more than 0.1 mm or mrad, and no velocity by more than
# 1e-3 of the fastest, in five control steps; a wrong sign or pair moves them by 1e-2 and more. The walker is symmetric
# to rounding.
ASYMMETRY = {"g1": 5e-4, "walker": 1e-9}


def mirrored_tile(tile):
    boxes = tile.boxes.copy()
    boxes[:, 1] *= -1
    low, high = tile.heading
    x, y, z = tile.spawn
    return replace(tile, boxes=boxes, spawn=(x, -y, z), heading=(-high, -low))


def random_like(kind, task, count=5):
    """A state or episode of random numbers, of the shapes that the task's have."""
    env = MujocoEnv(task, count, num_threads=1)
    of = env.state if kind is RobotState else env.episode

    def drawn(value):
        if value.dtype == torch.bool:
            return torch.rand(value.shape) < 0.5
        return torch.randn(value.shape) if value.is_floating_point() else torch.randint(9, value.shape)

    return kind(**{field.name: drawn(getattr(of, field.name)) for field in fields(kind)})


@pytest.mark.parametrize("name", TASKS)
class TestEveryTask:
    def test_twice_is_the_identity(self, name):
        task = make_task(name)
        symmetry = TaskSymmetry(task)
        observations = MujocoEnv(task, 3, num_threads=1).get_observations()
        noise = TensorDict({k: torch.randn_like(v) for k, v in observations.items()}, batch_size=[3])
        once = symmetry.observations(noise)
        for group, value in symmetry.observations(once).items():
            assert torch.equal(value, noise[group]), group
            assert not torch.equal(once[group], noise[group]), group
        actions = torch.randn(4, task.num_actions)
        assert torch.equal(symmetry.actions(symmetry.actions(actions)), actions)
        for kind, mirror in ((RobotState, symmetry.state), (Episode, symmetry.episode)):
            drawn = random_like(kind, task)
            for field in fields(kind):
                twice = getattr(mirror(mirror(drawn)), field.name)
                assert torch.equal(twice, getattr(drawn, field.name)), field.name

    def test_every_column_of_every_group_is_covered_once(self, name):
        task = make_task(name)
        symmetry = TaskSymmetry(task)
        observations = MujocoEnv(task, 2, num_threads=1).get_observations()
        assert set(symmetry.groups) == set(observations.keys())
        for group, mirror in symmetry.groups.items():
            sources = [column for column, _ in mirror.columns]
            assert sorted(sources) == list(range(observations[group].shape[-1])), group
            assert {sign for _, sign in mirror.columns} <= {-1.0, 1.0}

    def test_observations_and_rewards_of_the_image(self, name):
        """Observing the image of a random state is the image of what is observed; rewards are equal."""
        task = LocomotionTask(replace(TASKS[name], noise=ObservationNoise(0.0, 0.0, 0.0, 0.0, 0.0)))
        symmetry, generator = TaskSymmetry(task), torch.Generator().manual_seed(0)
        state, episode = random_like(RobotState, task, 40), random_like(Episode, task, 40)
        state.root_quat = torch.nn.functional.normalize(
            torch.randn(40, 4) * torch.tensor([0.3, 0.3, 0.3, 3.0]) + torch.tensor([1.0, 0.0, 0.0, 0.0]), dim=-1
        )
        state.foot_force = 100.0 * state.foot_force
        image, image_episode = symmetry.state(state), symmetry.episode(episode)
        observed = TensorDict(task.observe(state, episode, generator), batch_size=[40])
        expected = symmetry.observations(observed)
        found = task.observe(image, image_episode, generator)
        for group, value in expected.items():
            torch.testing.assert_close(found[group], value, rtol=1e-5, atol=1e-5, msg=lambda m, g=group: f"{g}: {m}")
        torch.testing.assert_close(
            task.proprio(image, image_episode), symmetry.groups["proprio"](task.proprio(state, episode))
        )
        rates, image_rates = task.reward_rates(state, episode), task.reward_rates(image, image_episode)
        assert (rates.std(1) > 0).sum() > len(rates) / 2
        for term, ours, theirs in zip(task.config.rewards, rates, image_rates, strict=True):
            torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5, msg=lambda m, t=term: f"{t}: {m}")
        assert torch.equal(task.terminated(state), task.terminated(image))
        torch.testing.assert_close(
            symmetry.episode(replace(episode, command=task.steered(state, episode))).command,
            task.steered(image, image_episode),
            rtol=1e-4,
            atol=1e-5,
        )


def image_of(model, names):
    """The element of `names` that is on the other side."""

    def other(name):
        return name.replace("left_", "#").replace("right_", "left_").replace("#", "right_")

    return [names.index(other(name)) for name in names]


@pytest.mark.parametrize("robot", ROBOTS.values(), ids=ROBOTS)
class TestMjcf:
    """The declaration against the MJCF that is simulated."""

    def test_joint_limits_and_frictions(self, robot):
        model = build_model(robot, None)
        joints = [model.joint(name) for name in robot.joint_names]
        for name, image, sign in zip(robot.joint_names, robot.mirror.joints, robot.mirror.signs, strict=True):
            ours, theirs = model.joint(name), joints[image]
            limits = sign * theirs.range if sign > 0 else -theirs.range[::-1]
            np.testing.assert_allclose(ours.range, limits, atol=1e-6, err_msg=name)
            for constant in ("damping", "frictionloss", "armature", "stiffness"):
                np.testing.assert_array_equal(getattr(ours, constant), getattr(theirs, constant), err_msg=name)

    def test_a_mirrored_pose_is_the_mirrored_body(self, robot):
        """Places, centres of mass, inertias and collision geometry of all bodies, for random poses: a sign or a pair
        that is wrong is off by centimetres."""
        model = build_model(robot, None)
        bodies = [model.body(index).name for index in range(model.nbody)]
        other = image_of(model, bodies)
        data, image = mujoco.MjData(model), mujoco.MjData(model)
        rng = np.random.default_rng(0)
        # The CAD's asymmetries named above, doubled: both sides are off.
        place = 1e-8 if robot.planar else 1e-3
        for _ in range(10):
            joints = rng.uniform(-0.5, 0.5, robot.num_joints)
            pose(robot, model, data, joints)
            pose(robot, model, image, np.array(robot.mirror.signs) * joints[list(robot.mirror.joints)])
            np.testing.assert_allclose(image.xpos, data.xpos[other] @ MIRROR, atol=place)
            np.testing.assert_allclose(image.xipos, data.xipos[other] @ MIRROR, atol=place)
            np.testing.assert_allclose(model.body_mass, model.body_mass[other])
            turned = image.ximat.reshape(-1, 3, 3), data.ximat.reshape(-1, 3, 3)[other]
            ours = turned[0] @ (model.body_inertia[:, :, None] * turned[0].transpose(0, 2, 1))
            theirs = turned[1] @ (model.body_inertia[other][:, :, None] * turned[1].transpose(0, 2, 1))
            scale = model.body_inertia.max(-1, keepdims=True)[:, :, None].clip(1e-9)
            # The torso's principal axes are 0.15° off; those of the waist's small links more, and they weigh nothing.
            heavy = model.body_mass > 0.3
            np.testing.assert_allclose(
                (ours / scale)[heavy], (MIRROR @ theirs @ MIRROR / scale)[heavy], atol=1e-8 if robot.planar else 0.01
            )
        names = [model.geom(index).name for index in range(model.ngeom)]
        feet = [index for index, name in enumerate(names) if "_foot" in name]
        assert feet
        places = {tuple(np.round(data.geom_xpos[index] @ MIRROR, 3)) for index in feet}
        assert places == {tuple(np.round(image.geom_xpos[index], 3)) for index in feet}


def pose(robot, model, data, joints):
    data.qpos[:] = 0.0
    if not robot.planar:
        data.qpos[3] = 1.0
    for name, angle in zip(robot.joint_names, joints, strict=True):
        data.qpos[model.joint(name).qposadr[0]] = angle
    mujoco.mj_forward(model, data)


def on_both_sides(robot, tiles, pairs, seed=0, *, height=0.0):
    """An engine whose environments 2i and 2i + 1 are images of each other, in motion; and a symmetry of its states."""
    name = "g1-flat" if robot is G1 else "walker-parkour"
    symmetry = TaskSymmetry(make_task(name))
    engine = MujocoEngine(robot, tiles, 2 * pairs, num_threads=1)
    generator = torch.Generator().manual_seed(seed)
    tile = torch.tensor([0, 1] * pairs) if tiles else torch.zeros(2 * pairs, dtype=torch.int64)
    root = torch.tensor(tiles[0].spawn if tiles else (0.0, 0.0, 0.0)).expand(pairs, 3).clone()
    root[:, :2] += 0.4 * (torch.rand(pairs, 2, generator=generator) - 0.5)
    root[:, 2] += robot.standing_height + height
    root[:, 1] *= 0.0 if robot.planar else 1.0
    yaw = 0.8 * (torch.rand(pairs, generator=generator) - 0.5)
    joints = torch.tensor(robot.default_pos) + 0.3 * (torch.rand(pairs, robot.num_joints, generator=generator) - 0.5)
    dynamics = torch.rand(pairs, 5, generator=generator) * torch.tensor([0.5, 2.0, 0.05, 0.05, 0.01])
    dynamics[:, 0] += 0.4
    flip = torch.tensor([1.0, -1.0, 1.0])
    engine.reset(
        torch.arange(2 * pairs),
        tile,
        torch.stack([root, root * flip], 1).flatten(0, 1),
        torch.stack([yaw, -yaw], 1).flatten(),
        torch.stack([joints, symmetry.actions(joints)], 1).flatten(0, 1),
        torch.stack([dynamics, dynamics * torch.tensor([1.0, 1.0, 1.0, -1.0, 1.0])], 1).flatten(0, 1),
    )
    saved = engine.state_dict()
    velocity = saved["state"][:, -engine._nv :]
    velocity[:] = 0.0
    moving = 0.5 * torch.randn(pairs, engine._nv, generator=generator, dtype=velocity.dtype)
    if robot.planar:
        velocity[0::2] = velocity[1::2] = moving
        velocity[1::2, 3:] = symmetry.actions(moving[:, 3:])
    else:
        velocity[0::2], velocity[1::2, 6:] = moving, symmetry.actions(moving[:, 6:])
        velocity[1::2, :6] = moving[:, :6] * torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    engine.load_state_dict(saved)
    return engine, symmetry, generator


def assert_images(robot, symmetry, state, places, speeds):
    """Every second robot is the image of the one before; velocities and forces to `speeds` of the largest."""
    ours, theirs = state.select(torch.arange(0, len(state.scan), 2)), state.select(torch.arange(1, len(state.scan), 2))
    image = symmetry.state(ours)
    for field in fields(RobotState):
        expected, found = getattr(image, field.name).double(), getattr(theirs, field.name).double()
        if field.name.endswith(("_pos", "_quat", "contact", "dynamics")):
            torch.testing.assert_close(found, expected, rtol=0, atol=places, msg=lambda m, f=field.name: f"{f}: {m}")
        elif field.name in ("scan", "foot_ground"):
            # A point within rounding of an edge may be on either side of it.
            assert ((found - expected).abs() > places).double().mean() < 0.01, field.name
        else:
            scale = max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(
                found / scale, expected / scale, rtol=0, atol=speeds, msg=lambda m, f=field.name: f"{f}: {m}"
            )


@pytest.mark.parametrize("robot", ROBOTS.values(), ids=ROBOTS)
class TestSimulator:
    """Mirrored actions from mirrored states, side by side in MuJoCo."""

    @pytest.mark.parametrize(("height", "steps"), [(0.5, 5), (-0.01, 1)], ids=["in the air", "on the ground"])
    def test_a_mirrored_step_is_the_image_of_the_step(self, robot, height, steps):
        tiles = []
        if robot.planar:  # the walker's task has no plane
            flat = make_terrain("flat", 0.0, np.random.default_rng(0))
            tiles = [flat, mirrored_tile(flat)]
        engine, symmetry, generator = on_both_sides(robot, tiles, 8, height=height)
        for _ in range(steps):
            actions = 0.5 * torch.randn(8, robot.num_joints, generator=generator)
            both = torch.stack([actions, symmetry.actions(actions)], 1).flatten(0, 1)
            targets = torch.tensor(robot.default_pos) + torch.tensor(robot.action_scale) * both
            state, broken = engine.step(targets)
        assert not broken.any()
        on_ground = (state.foot_force > 5.0).any()
        assert on_ground == (height < 0.0)
        tolerance = ASYMMETRY[robot.name]
        assert_images(robot, symmetry, state, tolerance, 1e-6 if robot.planar else 3e-3)

    @pytest.mark.parametrize("name", ["stairs", "single_row_stones"])
    def test_a_mirrored_terrain_gives_the_mirrored_observation_and_reward(self, robot, name):
        tile = make_terrain(name, 0.6, np.random.default_rng(3))
        tile = replace(tile, spawn=(-3.2, 0.0, 0.0))  # where the scan sees obstacles
        engine, symmetry, generator = on_both_sides(robot, [tile, mirrored_tile(tile)], 8, height=-0.01)
        actions = 0.5 * torch.randn(8, robot.num_joints, generator=generator)
        both = torch.stack([actions, symmetry.actions(actions)], 1).flatten(0, 1)
        state, _ = engine.step(torch.tensor(robot.default_pos) + torch.tensor(robot.action_scale) * both)
        assert state.scan.std() > 0.05
        assert (state.foot_force > 5.0).any()
        assert_images(robot, symmetry, state, ASYMMETRY[robot.name], 1e-6 if robot.planar else 3e-3)

        config = TASKS["g1-parkour" if robot is G1 else "walker-parkour"]
        task = LocomotionTask(replace(config, noise=ObservationNoise(0.0, 0.0, 0.0, 0.0, 0.0)))
        episode = random_like(Episode, task, 8)
        image = symmetry.episode(episode)
        sides = state.select(torch.arange(0, 16, 2)), state.select(torch.arange(1, 16, 2))
        observed = task.observe(sides[0], episode, generator), task.observe(sides[1], image, generator)
        expected = symmetry.observations(TensorDict(observed[0], batch_size=[8]))
        for group, value in expected.items():
            off = (observed[1][group] - value).abs() > (1e-5 if robot.planar else 0.05)
            assert off.float().mean() < 0.01, group
        rewards = [task.weighted(task.reward_rates(*side)).sum(0) for side in ((sides[0], episode), (sides[1], image))]
        assert rewards[0].std() > 0.1
        torch.testing.assert_close(rewards[1], rewards[0], rtol=0, atol=1e-4 if robot.planar else 0.02)

    def test_heading_turns_the_other_way(self, robot):
        task = make_task("g1-flat")
        state = random_like(RobotState, task)
        state.root_quat = torch.nn.functional.normalize(state.root_quat, dim=-1)
        image = TaskSymmetry(task).state(state)
        torch.testing.assert_close(yaw_of(image.root_quat), -yaw_of(state.root_quat))


class TestDeclaration:
    def test_the_g1s_is_complete(self):
        """Every joint has a partner or is in the middle, and a sign that its axis asks for."""
        model = build_model(G1, None)
        for index, name in enumerate(G1.joint_names):
            image, sign = G1.joint_names[G1.mirror.joints[index]], G1.mirror.signs[index]
            assert image == name.replace("left_", "R").replace("right_", "left_").replace("R", "right_")
            assert (image == name) == name.startswith("waist_")
            axis = model.joint(name).axis
            assert sign == (1.0 if abs(axis[1]) > 0.5 else -1.0), name
        assert G1.mirror.feet == (1, 0)

    def test_every_field_and_term_is_known(self):
        assert set(_STATE) == {field.name for field in fields(RobotState)}
        assert set(_EPISODE) == {field.name for field in fields(Episode)}
        for name in TASKS:
            task = make_task(name)
            assert {*task.config.proprio, *task.privileged_terms} <= set(_TERMS)

    def test_a_robot_without_one_is_refused(self):
        config = replace(TASKS["g1-flat"], robot=replace(G1, mirror=None))
        with pytest.raises(ValueError, match=r"symmetry: the robot 'g1' declares none \(RobotSpec.mirror\)"):
            _ = MujocoEnv(LocomotionTask(config), 1, num_threads=1).symmetry

    def test_rewards_that_prefer_a_side_are_refused(self):
        config = replace(TASKS["g1-flat"], posture={"left_hip_yaw_joint": 1.0})
        with pytest.raises(ValueError, match="posture weights of 'g1-flat' differ between left and right"):
            TaskSymmetry(LocomotionTask(config))

    def test_an_unknown_term_is_named(self, monkeypatch):
        monkeypatch.delitem(_TERMS, "gravity")
        with pytest.raises(ValueError, match="no image of the observation term 'gravity' is declared"):
            TaskSymmetry(make_task("g1-flat"))

    def test_an_unknown_field_is_named(self, monkeypatch):
        task = make_task("walker-parkour")
        state = random_like(RobotState, task)
        monkeypatch.delitem(_STATE, "foot_ground")
        with pytest.raises(ValueError, match=r"no image of RobotState\.foot_ground is declared"):
            TaskSymmetry(task).state(state)

    def test_an_unknown_group_is_named(self):
        symmetry = TaskSymmetry(make_task("walker-parkour"))
        with pytest.raises(ValueError, match="no image of the observation group 'smell'"):
            symmetry.observations(TensorDict({"smell": torch.zeros(2, 3)}, batch_size=[2]))

    def test_a_joint_without_partner_is_named(self):
        names = ("left_hip", "right_hip", "left_knee")
        with pytest.raises(ValueError, match="left_knee has no counterpart right_knee among left_hip"):
            Mirror.of_names(names, (), {".*": 1.0})
        with pytest.raises(ValueError, match="left_hip: expected one matching pattern, found 0"):
            Mirror.of_names(names[:2], (), {"right.*": 1.0})

    def test_other_names_of_sides(self):
        names = ("FL_hip", "FR_hip", "RL_hip", "RR_hip", "spine")
        made = Mirror.of_names(names, names[:4], {".*_hip": -1.0, "spine": 1.0}, (("FL_", "FR_"), ("RL_", "RR_")))
        assert made.joints == (1, 0, 3, 2, 4)
        assert made.feet == (1, 0, 3, 2)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"mirror": replace(WALKER.mirror, joints=(1, 2, 0, 3, 4, 5))}, "mirror.joints applied twice"),
            ({"mirror": replace(WALKER.mirror, joints=(9, 2, 0, 3, 4, 5))}, "mirror.joints applied twice"),
            ({"mirror": replace(WALKER.mirror, feet=(0,))}, "mirror.feet has 1 entries for 2"),
            ({"mirror": replace(WALKER.mirror, signs=(1.0, 1.0, 1.0, -1.0, 1.0, 1.0))}, "mirror.signs of left_hip"),
            ({"default_pos": (-0.3, 0.6, -0.3, -0.2, 0.6, -0.3)}, "the stance is not symmetric at left_hip"),
            ({"action_scale": (0.5, 0.5, 0.4, 0.5, 0.6, 0.4)}, "the motors are not symmetric at left_knee"),
            ({"sole": (0.0, 0.01, 0.0)}, "a symmetric robot's has y = 0"),
        ],
    )
    def test_a_wrong_declaration_is_refused(self, change, message):
        with pytest.raises(ValueError, match=f"walker: .*{message}"):
            replace(WALKER, **change)
