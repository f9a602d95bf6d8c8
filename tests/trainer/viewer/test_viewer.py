"""The page of `p3 play --viewer browser`, without a browser: shapes, scene, panel, plots and loop on a real server."""

from __future__ import annotations

import math
import time

import mujoco
import numpy as np
import pytest
import torch
import trimesh
import viser
from helpers.trainer.small_runs import small

import p3kernels
from trainer.engines.mjcf.model import build_model
from trainer.tasks import make_task
from trainer.tasks.scan import scan_points
from trainer.tasks.terrains import PIT_FLOOR
from trainer.viewer.browser import BrowserViewer
from trainer.viewer.clock import Clock
from trainer.viewer.picture import Picture
from trainer.viewer.plots import ALL_ACTIONS
from trainer.viewer.scene import scan_colours
from trainer.viewer.session import Session
from trainer.viewer.shapes import box_edges, box_mesh, robot_shapes, thinned


@pytest.fixture(scope="module")
def actors(tmp_path_factory):
    """Untrained: walking is not the viewer's business."""
    folder = tmp_path_factory.mktemp("viewer")
    return {name: small(folder / name, name).algorithm.actor.eval() for name in ("p3", "simple-actor-critic", "ae")}


def walker(actor, **options):
    return Session(actor, make_task("walker-parkour"), **{"difficulty": 0.0, "seed": 3, **options})


@pytest.fixture(scope="module")
def server():
    server = viser.ViserServer(host="127.0.0.1", port=8640, verbose=False)
    yield server
    server.stop()


@pytest.fixture
def viewer(server, actors):
    server.gui.reset()
    server.scene.reset()
    viewer = BrowserViewer(server, walker(actors["p3"]), "test")
    viewer.clock = still(viewer.session)
    return viewer


def still(session):
    """A clock for which no step is late and none has to be waited for, however fast the machine is."""
    return Clock(session.dt, now=lambda: 0.0, wait=lambda _: None)


def advance(viewer, turns):
    for _ in range(turns):
        viewer.advance()


def test_a_box_is_closed_and_points_outwards():
    vertices, faces = box_mesh(np.array([[0.0, 0.0, 0.0, 1.0, 2.0, 3.0], [10.0, 0.0, 0.0, 0.5, 0.5, 0.5]]))
    mesh = trimesh.Trimesh(vertices, faces)
    assert mesh.is_watertight
    assert mesh.volume == pytest.approx(49.0)
    lengths = np.linalg.norm(np.diff(box_edges(np.array([[0.0, 0, 0, 1, 2, 3]])), axis=1)[:, 0], axis=-1)
    assert sorted(lengths) == pytest.approx([2.0] * 4 + [4.0] * 4 + [6.0] * 4)


def test_thinning_keeps_the_shape():
    ball = trimesh.creation.icosphere(subdivisions=5, radius=0.1)
    thin = trimesh.Trimesh(*thinned(np.asarray(ball.vertices), np.asarray(ball.faces), 0.01), process=False)
    assert len(thin.faces) < len(ball.faces) / 5
    assert np.abs(np.linalg.norm(thin.vertices, axis=1) - 0.1).max() < 0.002
    same = thinned(np.asarray(ball.vertices), np.asarray(ball.faces), 1e-6)
    assert len(same[1]) == len(ball.faces)


@pytest.mark.parametrize(("task", "height"), [("g1-flat", (1.1, 1.45)), ("walker-parkour", (0.9, 1.5))])
def test_a_robot_of_shapes_stands_as_the_model_does(task, height):
    config = make_task(task).config
    model = build_model(config.robot, None, visual=True)
    data = mujoco.MjData(model)
    if not config.robot.planar:
        data.qpos[3] = 1.0
    mujoco.mj_kinematics(model, data)
    shapes = robot_shapes(model)
    assert {s.body for s in shapes} == {
        int(model.geom_bodyid[g]) for g in range(model.ngeom) if model.geom_group[g] < 3 and model.geom_bodyid[g]
    }
    placed = np.concatenate([s.vertices @ data.xmat[s.body].reshape(3, 3).T + data.xpos[s.body] for s in shapes])
    low, high = placed.min(0), placed.max(0)
    assert height[0] < high[2] - low[2] < height[1]
    for shape in shapes:
        assert shape.faces.max() < len(shape.vertices)
        assert all(0 <= value <= 255 for value in shape.colour)


def test_scan_colours_tell_up_from_down():
    colours = scan_colours(np.array([0.0, 0.4, -0.4, PIT_FLOOR]), ground=0.0).astype(int)
    level, high, low, pit = colours
    assert level[1] == max(level)
    assert high[0] == max(high)
    assert low[2] == max(low)
    assert np.ptp(pit) < 30


def test_the_scene_is_where_the_robot_is(viewer):
    advance(viewer, 5)
    env = viewer.session.env
    data = mujoco.MjData(model := env.engine.model_of(0))
    data.qpos[:] = env.engine.qpos_of(0)
    mujoco.mj_kinematics(model, data)
    assert len(viewer.scene.bodies) == 7
    for body, frame in viewer.scene.bodies.items():
        number = model.body(frame.name.rsplit("/", 1)[1]).id
        assert number == body
        assert frame.position == pytest.approx(data.xpos[body], abs=1e-6)
    assert viewer.scene.world.position[:2] == pytest.approx(-env.state.root_pos[0, :2].numpy())


def test_the_scan_is_drawn_on_the_terrain(viewer):
    advance(viewer, 5)
    state, scan = viewer.session.env.state, viewer.scene.scan
    assert scan.points.shape == (187, 3)
    assert scan.points[:, :2] == pytest.approx(scan_points().numpy())
    assert scan.points[:, 2] == pytest.approx(state.scan[0].numpy() + 0.012, abs=1e-5)
    assert scan.position == pytest.approx([*state.root_pos[0, :2].tolist(), 0.0])


def test_the_scan_turns_with_the_robot(viewer):
    yaw = 0.7
    viewer.session.env.state.root_quat[0] = torch.tensor([math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2)])
    viewer.scene.draw()
    w, x, y, z = viewer.scene.scan.wxyz
    assert (x, y) == (0.0, 0.0)
    assert 2 * math.atan2(z, w) == pytest.approx(yaw)


def test_the_scan_can_be_hidden(viewer):
    viewer.panel.scan.value = False
    viewer.advance()
    assert not viewer.scene.scan.visible


def test_terrain_and_difficulty_begin_a_new_episode_on_another_mesh(viewer):
    advance(viewer, 3)
    before = viewer.scene.terrain.vertices
    viewer.panel.terrain.value = "gaps"
    viewer.panel.difficulty.value = 0.85
    advance_until(viewer, lambda: viewer.session.terrain == "gaps" and viewer.session.difficulty == 0.85)
    assert viewer.session.tally.seconds < 0.5
    vertices, _ = box_mesh(viewer.session.env.engine.tiles[int(viewer.session.env.engine.tile_of[0])].boxes)
    assert viewer.scene.terrain.vertices == pytest.approx(vertices)
    assert before.shape != vertices.shape or not np.allclose(before, vertices)


def advance_until(viewer, condition, seconds=20.0):
    """Callbacks of controls run in viser's threads: their effect is a matter of turns, not of one turn."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the control had no effect"
        viewer.advance()


def test_pause_step_and_reset(viewer):
    advance(viewer, 4)
    assert viewer.steps == 4
    viewer.panel.pause.value = True
    advance(viewer, 3)
    assert viewer.steps == 4
    viewer.panel._on_step(None)
    advance(viewer, 3)
    assert viewer.steps == 5
    viewer.panel._on_reset(None)
    viewer.advance()
    assert viewer.session.env.episode.step.item() == 0
    viewer.panel.pause.value = False
    advance(viewer, 2)
    assert viewer.steps == 7


def test_commands_by_hand_reach_the_observation_and_go_back_to_the_task(viewer):
    panel, session = viewer.panel, viewer.session
    assert set(panel.sliders) == {0}  # a planar robot goes forward alone
    viewer.advance()
    drawn = session.command[0]
    low, high = session.task.config.command_x
    assert low <= drawn <= high
    assert panel.sliders[0].value == pytest.approx(drawn, abs=0.01)  # it follows the task
    panel.by_hand.value = True
    panel.sliders[0].value = 0.2
    viewer.advance()
    assert session.command == pytest.approx((0.2, 0.0, 0.0))
    command = list(session.task.proprio_layout).index("command")
    first = sum(list(session.task.proprio_layout.values())[:command])
    assert session.env.get_observations()["proprio"][0, first].item() == pytest.approx(0.2)
    panel.by_hand.value = False
    viewer.advance()
    assert session.command[0] >= low


def test_the_latent_mode_is_the_session_s(viewer):
    for mode in ("sample", "policy", "mean"):
        viewer.panel.latent.value = mode
        viewer.advance()
        assert viewer.session.latent == mode


def test_turning_by_hand_turns_the_heading_where_a_task_keeps_one(tmp_path):
    from trainer.algorithms.presets import resolve
    from trainer.config import ModelConfig, PpoConfig, TrainConfig
    from trainer.training.runner import Runner

    tiny = {"num_envs": 2, "iterations": 1, "num_threads": 1, "tensorboard": False, "run_dir": tmp_path}
    networks = {"ppo": PpoConfig(num_steps_per_env=4), "model": ModelConfig(hidden_dims=(8, 8))}
    actor = Runner(resolve(TrainConfig(task="g1-parkour", **tiny, **networks))).algorithm.actor
    session = Session(actor, make_task("g1-parkour"), difficulty=0.0, terrain="gaps")
    heading = session.env.episode.heading[0].item()
    session.drive((0.5, 0.0, 0.6))
    for _ in range(5):
        session.step()
    assert session.env.episode.heading[0].item() == pytest.approx(heading + 5 * 0.02 * 0.6, abs=1e-5)


def test_plots_show_what_the_policy_s_moments_are(viewer):
    advance(viewer, 4)
    viewer.plots.draw()
    spread = viewer.session.spread()
    session, actor = viewer.session, viewer.session.actor
    with torch.inference_mode():
        context, latent = actor.encode(session.env.get_observations())
        draws = latent.mean + latent.std * torch.randn(4000, latent.mean.shape[1])
        sampled = actor.mlp(torch.cat([context.expand(4000, -1), draws], -1)).std(0)
        moments = p3kernels.MomentMatching().policy(actor.mlp, context, latent.mean, latent.std, actor.action_std)
    assert spread.latent == pytest.approx(latent.std[0].tolist())
    assert spread.exploration == pytest.approx(actor.action_std.tolist())
    # 64 samples: each std is known to 9 %, and 4.5 times that is beyond chance
    assert spread.sampled == pytest.approx(sampled.tolist(), rel=0.4)
    matched = (moments.stddev[0].double().square() - actor.action_std.double().square()).sqrt()
    assert spread.matched == pytest.approx(matched.tolist(), rel=0.01)
    time, proprioception, scan = viewer.plots.latent.data
    assert time.tolist() == pytest.approx([0.02, 0.04, 0.06, 0.08])
    split = actor.encoder.proprio_latent
    assert proprioception[-1] == pytest.approx(np.mean(spread.latent[:split]), rel=0.05)
    assert scan[-1] == pytest.approx(np.mean(spread.latent[split:]), rel=0.05)
    _, exploration, with_matched, _ = viewer.plots.action.data
    assert exploration[-1] == pytest.approx(np.sqrt(np.mean(np.square(spread.exploration))))
    assert with_matched[-1] > exploration[-1]
    joint = session.task.config.robot.joint_names[2]
    assert viewer.plots.of.value == ALL_ACTIONS
    viewer.plots.of.value = joint
    viewer.plots.draw()
    assert viewer.plots.action.data[1][-1] == pytest.approx(spread.exploration[2])


@pytest.mark.parametrize("method", ["simple-actor-critic", "ae"])
def test_actors_without_an_uncertain_latent_have_a_page_too(server, actors, method):
    server.gui.reset()
    server.scene.reset()
    viewer = BrowserViewer(server, walker(actors[method]), method)
    viewer.clock = still(viewer.session)
    advance(viewer, 3)
    viewer.plots.draw()
    for chart in (viewer.plots.latent, viewer.plots.matched):
        assert not np.any(chart.data[1:])
    assert np.all(viewer.plots.action.data[1] > 0)


def test_episodes_are_counted_and_told(viewer):
    session = viewer.session
    for _ in range(400):
        session.step()
        if session.tally.episodes == 2:
            break
    assert session.tally.episodes == 2
    assert session.tally.falls == 2
    assert session.tally.last.startswith("fell after")
    viewer.panel.show(session, viewer.clock)
    assert "of them falls 2" in viewer.panel.text.content
    assert "| forward m/s |" in viewer.panel.text.content


def test_the_picture_of_mujoco_s_viewers_changes_terrain_in_place(actors):
    session = walker(actors["p3"], terrain="stairs")
    picture = Picture(session.env)
    model = picture.model
    session.restart(terrain="gaps", difficulty=1.0)
    picture.refresh()
    assert picture.model is model
    boxes = session.env.engine.tiles[int(session.env.engine.tile_of[0])].boxes
    tops = [model.geom(f"box{i}").pos[2] + model.geom(f"box{i}").size[2] for i in range(len(boxes))]
    assert tops == pytest.approx(boxes[:, 2] + boxes[:, 5])
    rest = range(len(boxes), max(len(tile.boxes) for tile in session.env.engine.tiles))
    assert all(model.geom(f"box{i}").pos[2] < -50 for i in rest)


def test_restart_refuses_what_the_task_has_not(actors):
    session = walker(actors["p3"])
    for wrong in ({"difficulty": 1.2}, {"difficulty": -0.1}, {"terrain": "ice"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            session.restart(**wrong)
