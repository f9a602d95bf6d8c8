"""The contract: plain data, permutations by name, and errors that name what differs."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import pytest
import torch
from helpers.trainer.permuted import permuted_contract
from helpers.trainer.small_runs import small

from trainer.runs.checkpoint import load_checkpoint
from trainer.tasks import TASKS, make_task
from trainer.tasks.contract import Contract, match, match_contracts
from trainer.tasks.scan import scan_points

NAMES = list(TASKS)


@pytest.mark.parametrize("name", NAMES)
def test_json_round_trip_is_exact(name):
    contract = make_task(name).contract
    assert Contract.from_json(contract.to_json()) == contract
    assert Contract.from_dict(json.loads(json.dumps(contract.to_dict()))) == contract


@pytest.mark.parametrize("name", NAMES)
def test_a_task_matches_itself_without_moving_anything(name):
    task = make_task(name)
    matching = match(task.contract, task)
    assert matching.same
    assert len(matching.proprio) == task.proprio_size
    assert len(matching.history) == task.config.history * task.proprio_size


def test_the_contract_says_what_the_task_does():
    task = make_task("g1-flat")
    contract = task.contract
    assert {term.name: term.size for term in contract.proprio} == task.proprio_layout
    assert torch.equal(torch.tensor(contract.default_pos), task.default_pos)
    assert torch.equal(torch.tensor(contract.action_scale), task.action_scale)
    assert torch.allclose(torch.tensor(contract.scan.points()), scan_points(), atol=1e-6)
    noise = torch.cat([torch.full((term.size,), term.noise) for term in contract.proprio])
    assert torch.equal(noise, task._noise_unit * 2**15)
    assert contract.control_hz == 50.0


@pytest.mark.parametrize("layout", ["frame_major", "term_major"])
@pytest.mark.parametrize("order", ["oldest_first", "newest_first"])
def test_permutations_find_every_column_by_its_name(order, layout):
    task = make_task("g1-flat")
    ours = task.contract
    theirs = permuted_contract(ours, seed=3, order=order, layout=layout)
    matching = match(theirs, task)
    names = _labels(ours)
    assert [names["proprio"][i] for i in matching.proprio] == _labels(theirs)["proprio"]
    assert [names["history"][i] for i in matching.history] == _labels(theirs)["history"]
    assert [names["scan"][i] for i in matching.scan] == _labels(theirs)["scan"]
    assert [theirs.joint_names[i] for i in matching.action] == list(ours.joint_names)
    assert not matching.same
    # And back: the two matchings undo each other.
    back = match_contracts(ours, theirs)
    for there, here in zip(dataclasses.astuple(matching), dataclasses.astuple(back), strict=True):
        assert [there[i] for i in here] == list(range(len(here)))


def _labels(contract):
    """A name for each column, written down independently of the matching's arithmetic."""
    terms = [[f"{t.name}/{t.joints[i] if t.joints else i}" for i in range(t.size)] for t in contract.proprio]
    ages = list(range(contract.history.length))
    if contract.history.order == "oldest_first":
        ages.reverse()
    if contract.history.layout == "frame_major":
        history = [f"{label}@{age}" for age in ages for term in terms for label in term]
    else:
        history = [f"{label}@{age}" for term in terms for age in ages for label in term]
    points = [f"{x:.2f},{y:.2f}" for x, y in contract.scan.points()]
    return {"proprio": [label for term in terms for label in term], "history": history, "scan": points}


def test_a_shorter_history_is_the_newest_frames():
    task = make_task("walker-parkour")
    contract = dataclasses.replace(task.contract, history=dataclasses.replace(task.contract.history, length=2))
    size = task.proprio_size
    assert match(contract, task).history == tuple(range(3 * size, 5 * size))


def _changed(contract, field, index, value):
    values = list(getattr(contract, field))
    values[index] = value
    return dataclasses.replace(contract, **{field: tuple(values)})


def _renamed(contract, old, new):
    def names(found):
        return tuple(new if name == old else name for name in found)

    terms = tuple(dataclasses.replace(term, joints=names(term.joints)) for term in contract.proprio)
    return dataclasses.replace(contract, joint_names=names(contract.joint_names), proprio=terms)


def _term(contract, which, **changes):
    terms = (dataclasses.replace(t, **changes) if t.name == which else t for t in contract.proprio)
    return dataclasses.replace(contract, proprio=tuple(terms))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: _renamed(c, "left_knee_joint", "left_tail_joint"), "joint 'left_tail_joint': the policy needs it"),
        (lambda c: _changed(c, "default_pos", 3, 0.5), "joint 'left_knee_joint': default_pos 0.5 of the policy, 0.669"),
        (lambda c: _changed(c, "stiffness", 3, 1.0), "joint 'left_knee_joint': stiffness 1 of the policy"),
        (lambda c: _changed(c, "action_scale", 3, 1.0), "joint 'left_knee_joint': action_scale 1 of the policy"),
        (lambda c: dataclasses.replace(c, proprio=c.proprio[1:]), "observation term 'ang_vel': here it is"),
        (lambda c: _term(c, "gravity", name="up"), "observation term 'up': the policy needs it"),
        (lambda c: _term(c, "joint_vel", scale=0.05), "observation term 'joint_vel': scale 0.05 of the policy, 1.0"),
        (
            lambda c: _term(c, "ang_vel", convention="world frame"),
            "term 'ang_vel': convention 'world frame",
        ),
        (lambda c: _term(c, "joint_pos", joints=()), "observation term 'joint_pos': only one of the two is by joint"),
        (lambda c: dataclasses.replace(c, control_hz=100.0), "control_hz: 100 of the policy, 50 here"),
        (lambda c: dataclasses.replace(c, robot="h1"), "robot: the policy is for 'h1', this is 'g1'"),
        (
            lambda c: dataclasses.replace(c, history=dataclasses.replace(c.history, length=9)),
            "history: 9 frames of the policy, only 5 here",
        ),
        (
            lambda c: dataclasses.replace(c, scan=dataclasses.replace(c.scan, x=(*c.scan.x[:-1], 0.9))),
            "scan: the policy needs the point x = 0.9",
        ),
        (
            lambda c: dataclasses.replace(c, scan=dataclasses.replace(c.scan, value="terrain height - root height")),
            "scan: value 'terrain height - root height' of the policy",
        ),
        (
            lambda c: dataclasses.replace(c, scan=dataclasses.replace(c.scan, clip=(-2.0, 2.0))),
            r"scan: clip \(-2.0, 2.0\) of the policy",
        ),
    ],
)
def test_what_differs_is_named(change, message):
    task = make_task("g1-flat")
    with pytest.raises(ValueError, match=message):
        match(change(task.contract), task)


def test_a_joint_that_the_policy_does_not_know_is_named():
    contract = make_task("walker-parkour").contract
    keep = [i for i, name in enumerate(contract.joint_names) if name != "right_ankle"]

    def kept(values):
        return tuple(values[i] for i in keep)

    fields = ("joint_names", "default_pos", "stiffness", "damping", "effort", "action_scale", "stride", "stride_middle")
    terms = (dataclasses.replace(t, joints=kept(t.joints), size=5) if t.joints else t for t in contract.proprio)
    small_robot = dataclasses.replace(
        contract, proprio=tuple(terms), **{field: kept(getattr(contract, field)) for field in fields}
    )
    with pytest.raises(ValueError, match="joint 'right_ankle': here it is, but the policy does not know it"):
        match_contracts(small_robot, contract)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("joint_names"), "contract: joint_names is missing"),
        (lambda d: d.update(colour="red"), "contract: unknown field 'colour'"),
        (lambda d: d.update(version=99), "of version 99"),
        (lambda d: d.update(default_pos=[0.0]), "default_pos has 1 entries for 29 joints"),
        (lambda d: d.update(default_pos="flat"), "default_pos: expected a list"),
        (lambda d: d["stiffness"].__setitem__(0, "soft"), "stiffness: expected a finite number, got 'soft'"),
        (lambda d: d["stiffness"].__setitem__(0, float("nan")), "stiffness: expected a finite number, got nan"),
        (lambda d: d["history"].update(length=2.5), "history: length: expected a finite number, got 2.5"),
        (lambda d: d["history"].update(order="newest"), "history.order: expected oldest_first or newest_first"),
        (lambda d: d["proprio"][0].pop("name"), r"proprio\[0\]: name is missing"),
        (lambda d: d["proprio"].append(d["proprio"][0]), "observation term 'ang_vel' is named twice"),
        (lambda d: d["proprio"][3]["joints"].__setitem__(0, "tail"), "joints of observation term 'joint_pos'"),
        (lambda d: d["joint_names"].__setitem__(1, d["joint_names"][0]), "is named twice"),
        (lambda d: d["scan"].update(clip=[0.0]), "scan: clip: expected 2 values, got 1"),
        (lambda d: d.update(scan=None), "scan: expected a table of values, got NoneType"),
    ],
)
def test_a_damaged_contract_names_its_field(change, message):
    values = json.loads(make_task("g1-flat").contract.to_json())
    change(values)
    with pytest.raises(ValueError, match=message):
        Contract.from_dict(values)


def test_text_that_is_no_contract():
    with pytest.raises(ValueError, match="contract: not JSON"):
        Contract.from_json("{")
    with pytest.raises(ValueError, match="contract: expected a table of values, got list"):
        Contract.from_json("[]")


def test_every_checkpoint_has_its_contract(tmp_path):
    runner = small(tmp_path, iterations=1)
    path = runner.save()
    assert Contract.from_dict(load_checkpoint(path)["contract"]) == make_task("walker-parkour").contract


def test_the_module_needs_the_standard_library_alone():
    program = "import sys, trainer.tasks.contract; print(sorted({'torch', 'numpy', 'mujoco'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
