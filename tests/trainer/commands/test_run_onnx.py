"""`p3 run-onnx` and `trainer.deploy`: the torch rollout step by step, without torch, from the file alone."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.trainer.small_runs import exported_policy

from trainer import cli
from trainer.commands.run_onnx import RunConfig, Simulation, act, load
from trainer.deploy import Policy, gravity_of
from trainer.deploy.latency import Stopwatch
from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import trial_task
from trainer.runs.policy import acting_in, load_candidate
from trainer.tasks import TASKS
from trainer.tasks.robots import WALKER
from trainer.tasks.rotation import gravity_in_body

STEPS = 50


def exported_run(directory, task, method="p3"):
    """A run of one iteration with its exported policy; larger actions make a comparison step by step say something."""
    return exported_policy(directory, task, method, scale=10.0, steps=1).parent


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    return exported_run(tmp_path_factory.mktemp("runs") / "walker", "walker-parkour")


@pytest.fixture(scope="module")
def g1(tmp_path_factory):
    return exported_run(tmp_path_factory.mktemp("runs") / "g1", "g1-flat", "simple-actor-critic")


@pytest.mark.parametrize(("robot", "terrain"), [("walker", "plane"), ("walker", "stairs"), ("g1", "plane")])
def test_the_torch_rollout_step_by_step(request, robot, terrain):
    run_dir = request.getfixturevalue(robot)
    candidate = load_candidate(run_dir)
    # As run-onnx simulates: no noise, no pushes, the middle friction.
    task = trial_task(TASKS[candidate.config.task], terrain, 0.0, 10.0, pushes=False)
    env = MujocoEnv(task, 1, seed=2, num_threads=1, difficulty=None if terrain == "plane" else 0, auto_reset=False)
    torch_act = acting_in(candidate, task, "mean")
    policy, simulation = load(RunConfig(run_dir / "policy.onnx", terrain=terrain, difficulty=0.0))
    simulation.data.qpos[:] = env.engine.qpos_of(0)
    command = env.episode.command[0].tolist()
    moved = 0.0
    for step in range(STEPS):
        with torch.inference_mode():
            action = torch_act(env.get_observations())
        ours = act(policy, simulation, command)
        targets = task.targets(action.clamp(-10.0, 10.0), env.episode.clock)[0].numpy()
        # float32 on both sides; contacts make more of the rounding as the steps go by.
        tolerance = 1e-5 if step < 5 else 1e-4
        assert np.abs(ours.targets - targets).max() <= tolerance, step
        env.step(action)
        simulation.step(ours.targets)
        assert np.abs(simulation.data.qpos - env.engine.qpos_of(0)).max() <= tolerance, step
        moved = max(moved, float(np.abs(targets - task.default_pos.numpy()).max()))
    assert moved > 0.05  # it was no comparison of nothing with nothing
    if policy.has_std:
        assert (ours.std > 0).all()


def test_the_same_targets_give_the_same_physics(walker):
    """Bit by bit: the simulation and the training's engine are one and the same robot."""
    task = trial_task(TASKS["walker-parkour"], "plane", 0.0, 10.0, pushes=False)
    env = MujocoEnv(task, 1, seed=2, num_threads=1, auto_reset=False)
    friction = float(env.engine.dynamics[0, 0])  # 0.65 in float32
    simulation = Simulation(WALKER, None, Policy(walker / "policy.onnx").contract, friction)
    simulation.data.qpos[:] = env.engine.qpos_of(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        action = torch.randn(1, 6, generator=generator)
        targets = task.targets(action, env.episode.clock)[0].numpy()
        env.step(action)
        simulation.step(targets)
        assert np.array_equal(simulation.data.qpos, env.engine.qpos_of(0))


def test_the_scan_is_the_engines(walker):
    task = trial_task(TASKS["walker-parkour"], "stairs", 0.0, 10.0, pushes=False)
    env = MujocoEnv(task, 1, seed=2, num_threads=1, difficulty=0.0, auto_reset=False)
    policy, simulation = load(RunConfig(walker / "policy.onnx", terrain="stairs"))
    for x in np.linspace(-4.0, 4.0, 17):
        env.engine._state[0, 1] = simulation.data.qpos[0] = x
        env.state = env.engine._read(slice(None))
        expected = task.scan(env.state)[0].numpy()
        simulation.data.qpos[1] = env.engine.qpos_of(0)[1]
        found = policy.scan_of(simulation.root[0][2], simulation.terrain_heights())
        assert np.allclose(found, expected, atol=1e-6)
    assert expected.min() < 0.2  # stairs, not a plane


PROGRAM = """
import json, sys
import trainer.deploy
loaded = {"deploy": sorted({"torch", "rsl_rl", "tensordict", "mujoco", "p3kernels"} & sys.modules.keys())}
from trainer import cli
code = cli.main(["run-onnx", sys.argv[1], "--seconds", "0.3", "--no-realtime"])
loaded["run"] = sorted({"torch", "rsl_rl", "tensordict", "p3kernels"} & sys.modules.keys())
print(json.dumps({"loaded": loaded, "code": code}))
"""


def test_neither_torch_nor_rsl_rl_is_imported(walker):
    arguments = [sys.executable, "-c", PROGRAM, str(walker / "policy.onnx")]
    found = subprocess.run(arguments, capture_output=True, text=True, check=True)
    *lines, last = found.stdout.splitlines()
    assert json.loads(last) == {"loaded": {"deploy": [], "run": []}, "code": 0}
    assert "walker-parkour, p3, walker with 6 joints, 50 Hz, on plane" in lines[0]
    assert any(line.startswith("policy: mean") for line in lines)


def test_from_the_command_line(walker, capsys):
    policy = str(walker / "policy.onnx")
    assert cli.main(["run-onnx", policy, "--seconds", "0.2", "--command", "0.5", "0", "0"]) == 0
    output = capsys.readouterr().out
    assert "of 10 late" in output
    assert "std of the targets from the latent" in output
    assert cli.main(["run-onnx", policy, "--seconds", "0.2", "--no-realtime", "--terrain", "gaps"]) == 0
    assert "on gaps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--terrain", "lava"], "--terrain: expected one of plane"),
        (["--terrain", "gaps", "--difficulty", "2"], "--difficulty: expected 0 to 1"),
        (["--seconds", "0"], "--seconds: expected a positive number"),
    ],
)
def test_wrong_settings_are_one_line_that_names_them(walker, capsys, arguments, message):
    assert cli.main(["run-onnx", str(walker / "policy.onnx"), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_damaged_and_foreign_files(walker, tmp_path, capsys):
    whole = (walker / "policy.onnx").read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    path = tmp_path / "policy.onnx"
    for data, message in (
        (whole[:-100], "cut off or damaged"),
        (bytes(flipped), "its content does not have the checksum it was written with"),
        (b"", "empty"),
        ((walker / "model_1.pt").read_bytes(), "not a policy of p3 export"),
    ):
        path.write_bytes(data)
        assert cli.main(["run-onnx", str(path)]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert cli.main(["run-onnx", str(tmp_path / "none.onnx")]) == 2
    assert "no policy" in capsys.readouterr().err


def readings(**changes):
    rng = np.random.default_rng(1)
    found = {
        "quat": [1.0, 0.0, 0.0, 0.0],
        "command": [0.5, 0.0, 0.0],
        "joint_pos": rng.normal(size=6),
        "scan": np.zeros(187),
    }
    return {name: value for name, value in {**found, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scan": None}, "readings: scan is missing"),
        ({"quat": None}, "readings: gravity is missing"),
        ({"joint_pos": np.zeros(5)}, r"readings: expected joint_pos of shape \[6\], got \[5\]"),
        ({"joint_pos": {"left_hip": 0.0}}, "readings: joint_pos of joint 'left_knee' is missing"),
        ({"command": [0.5, float("nan"), 0.0]}, "readings: command is not finite"),
    ],
)
def test_a_wrong_reading_is_named(walker, changes, message):
    with pytest.raises(ValueError, match=message):
        Policy(walker / "policy.onnx").act(readings(**changes))


def test_any_joint_order_and_mappings(walker):
    path = walker / "policy.onnx"
    ours = Policy(path)
    order = ours.contract.joint_names[::-1]
    theirs = Policy(path, order)
    pos = readings()["joint_pos"]
    first = ours.act(readings())
    second = theirs.act(readings(joint_pos=pos[::-1]))
    third = Policy(path).act(readings(joint_pos=dict(zip(ours.joint_order, pos, strict=True))))
    assert np.array_equal(first.targets, second.targets[::-1])
    assert np.array_equal(first.std, second.std[::-1])
    assert np.array_equal(first.targets, third.targets)
    with pytest.raises(ValueError, match="joint_order: the policy has no joint 'tail'"):
        Policy(path, ["tail", *order[1:]])
    with pytest.raises(ValueError, match="joint_order: the robot has no joint 'left_hip'"):
        Policy(path, order[:-1])
    with pytest.raises(ValueError, match="joint_order: a joint is named twice"):
        Policy(path, [*order, order[0]])


def test_reset_forgets(walker):
    policy = Policy(walker / "policy.onnx")
    first = policy.act(readings()).targets
    second = policy.act(readings()).targets
    assert not np.array_equal(first, second)  # the last action is among what it sees
    policy.reset()
    assert np.array_equal(policy.act(readings()).targets, first)
    assert policy.latency().steps == 3


def test_gravity_and_latency():
    quat = torch.nn.functional.normalize(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), dim=-1)
    for row, expected in zip(quat, gravity_in_body(quat), strict=True):
        assert np.allclose(gravity_of(row.numpy()), expected.numpy(), atol=1e-6)
    watch = Stopwatch()
    assert watch.summary().steps == 0
    for milliseconds in range(1, 101):
        watch.add(1e-3 * milliseconds)
    summary = watch.summary()
    assert (summary.steps, summary.mean, summary.median) == (100, pytest.approx(50.5), pytest.approx(50.5))
    assert (summary.p99, summary.max) == (pytest.approx(99.01), pytest.approx(100.0))
