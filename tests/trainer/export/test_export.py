"""`p3 export`: every method, the same numbers as torch, metadata that others read, and no file where they differ."""

from __future__ import annotations

import dataclasses
import json
import math

import mpmath
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from helpers.trainer.permuted import permuted_checkpoint, permuted_contract
from helpers.trainer.small_runs import stepped
from tensordict import TensorDict

from p3kernels import MomentMatching, reference
from trainer import cli
from trainer.deploy import DamagedPolicy, ForeignPolicy, Policy
from trainer.export import onnx_file as export
from trainer.export.moments import elu_moments, erfcx
from trainer.runs.checkpoint import load_checkpoint, save_checkpoint
from trainer.runs.policy import load_candidate
from trainer.tasks import LocomotionTask
from trainer.tasks.contract import Contract


def make_run(run_dir, method):
    """A run of two iterations, so that the normaliser has statistics."""
    return stepped(run_dir, method=method, iterations=2, steps=2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "walker", "p3")


@pytest.fixture(scope="module")
def exported(run):
    """Exported once, with its std."""
    output = run / "policy.onnx"
    assert cli.main(["export", str(run), "--std"]) == 0
    return output


def observations(candidate, seed=0):
    """[1, ·] of every group, not of the normaliser's statistics."""
    generator = torch.Generator().manual_seed(seed)
    contract = candidate.contract
    proprio = torch.randn(contract.history.length, contract.proprio_size, generator=generator)
    scan = torch.rand(1, len(contract.scan.points()), generator=generator)
    return {"proprio": proprio[-1:], "history": proprio.reshape(1, -1), "extero": scan}


def outputs_of(path, row):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    inputs = {entry.name: row[entry.name].numpy() for entry in session.get_inputs()}
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))


def test_the_file_computes_what_the_actor_does(run, exported):
    candidate = load_candidate(run)
    for seed in range(3):
        row = observations(candidate, seed)
        found = outputs_of(exported, row)
        with torch.inference_mode():
            obs = TensorDict(row, batch_size=[1])
            expected = candidate.actor.act_at_mean(obs)
            context, latent = candidate.actor.encode(obs)
            policy = MomentMatching().policy(
                candidate.actor.mlp, context, latent.mean, latent.std, candidate.actor.action_std
            )
        assert np.abs(found["actions"] - expected.numpy()).max() <= 1e-5
        targets = LocomotionTask(candidate.task).targets(expected, row["proprio"][:, -2:]).numpy()
        assert np.abs(found["joint_targets"] - targets).max() <= 1e-5
        exploration = np.array([float(v) for v in Policy(exported).metadata["exploration_std"].split(",")])
        total = np.sqrt(found["action_std"] ** 2 + exploration**2)
        assert np.abs(total - policy.stddev.numpy()).max() <= 1e-5
        assert (found["action_std"] > 1e-6).all()


def test_actions_are_clipped_as_the_environment_does(run, exported):
    row = observations(load_candidate(run))
    wild = {name: 1e5 * value for name, value in row.items()}
    found = outputs_of(exported, wild)
    assert np.abs(found["actions"]).max() == 10.0


@pytest.mark.parametrize("method", ["ae", "spr", "simple-actor-critic"])
def test_every_kind_of_actor(tmp_path, capsys, method):
    run_dir = make_run(tmp_path / method, method)
    output = tmp_path / "policy.onnx"
    assert cli.main(["export", str(run_dir / "model_2.pt"), "--output", str(output)]) == 0
    assert "max error against torch" in capsys.readouterr().out
    candidate = load_candidate(run_dir)
    row = observations(candidate)
    with torch.inference_mode():
        expected = candidate.actor.act_at_mean(TensorDict(row, batch_size=[1]))
    assert np.abs(outputs_of(output, row)["actions"] - expected.numpy()).max() <= 1e-5
    assert not Policy(output).has_std
    assert cli.main(["export", str(run_dir), "--output", str(output), "--std"]) == 2
    assert f"--std: the latent of {method} has no distribution" in capsys.readouterr().err


def test_metadata_in_the_fields_conventions(run, exported):
    model = onnx.load(exported)
    onnx.checker.check_model(model)
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [18]
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    contract = load_candidate(run).contract
    assert metadata["joint_names"].split(",") == list(contract.joint_names)
    for key, field in (
        ("joint_stiffness", "stiffness"),
        ("joint_damping", "damping"),
        ("default_joint_pos", "default_pos"),
        ("action_scale", "action_scale"),
    ):
        assert tuple(float(value) for value in metadata[key].split(",")) == getattr(contract, field)  # every digit
    assert metadata["observation_names"] == "gravity,command,joint_pos,action,clock,extero"
    assert metadata["observation_terms_history_length"] == "5,5,5,5,5,0"
    assert metadata["observation_terms_clip"].split(",")[-1] == "-1.0;1.0"
    assert float(metadata["control_hz"]) == 50.0
    assert Contract.from_json(metadata["p3_contract"]) == contract
    beside = json.loads(exported.with_suffix(".json").read_text())
    assert Contract.from_dict(beside["contract"]) == contract
    assert beside["onnx"]["inputs"] == {"proprio": [1, 20], "history": [1, 100], "extero": [1, 187]}
    assert beside["onnx"]["max_error"] <= 1e-5
    text = exported.read_bytes()
    assert b"/trainer/" not in text  # the exporter's notes of where the code was


def test_what_differs_from_torch_is_not_written(run, tmp_path, capsys, monkeypatch):
    def nudged(policy):
        with torch.no_grad():
            policy.deployed.mlp[-1].bias[0] += 5e-5
            model = graph(policy)
            policy.deployed.mlp[-1].bias[0] -= 5e-5
        return model

    graph = export._graph
    monkeypatch.setattr(export, "_graph", nudged)
    output = tmp_path / "policy.onnx"
    assert cli.main(["export", str(run), "--output", str(output)]) == 2
    assert "was not written: onnxruntime differs from torch by 5." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_permuted_orders_are_exported_as_they_are(run, exported, tmp_path):
    ours = load_candidate(run)
    theirs = dataclasses.replace(permuted_contract(ours.contract, 4, layout="frame_major"), scan=ours.contract.scan)
    (tmp_path / "config.json").write_bytes((run / "config.json").read_bytes())
    save_checkpoint(tmp_path / "model_2.pt", permuted_checkpoint(load_checkpoint(ours.path), theirs))
    assert cli.main(["export", str(tmp_path)]) == 0
    robot = ours.contract.joint_names
    policies = [Policy(exported, robot), Policy(tmp_path / "policy.onnx", robot)]
    rng = np.random.default_rng(0)
    for _ in range(7):  # the history fills, and the last action comes back
        readings = {
            "quat": np.array([1.0, 0.0, 0.1, 0.0]) / math.sqrt(1.01),
            "command": [0.5, 0.0, 0.0],
            "joint_pos": rng.normal(size=6),
            "scan": rng.uniform(-0.1, 0.1, 187),
        }
        first, second = (policy.act(readings) for policy in policies)
        assert np.abs(first.targets - second.targets).max() <= 1e-5
    assert np.abs(first.action - second.action).max() > 1e-3  # in each policy's own order


@pytest.mark.parametrize("where", [0.1, 0.5, 0.9])
def test_damaged_files(exported, tmp_path, where):
    whole = exported.read_bytes()
    path = tmp_path / "policy.onnx"
    path.write_bytes(whole[: int(where * len(whole))])
    with pytest.raises(DamagedPolicy, match=r"policy\.onnx: cut off or damaged"):
        Policy(path)
    flipped = bytearray(whole)
    flipped[int(where * len(whole))] ^= 4
    path.write_bytes(flipped)
    with pytest.raises(DamagedPolicy, match=r"policy\.onnx: damaged: its content does not have the checksum"):
        Policy(path)


def test_foreign_files(exported, tmp_path):
    path = tmp_path / "policy.onnx"
    with pytest.raises(FileNotFoundError, match="no policy"):
        Policy(path)
    with pytest.raises(ForeignPolicy, match="a directory"):
        Policy(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DamagedPolicy, match="empty"):
        Policy(path)
    path.write_bytes(b"hello, I am a text")
    with pytest.raises(ForeignPolicy, match="not a policy of p3 export"):
        Policy(path)
    model = onnx.load(exported)
    del model.metadata_props[:]  # a model of someone else
    model.producer_name = "pytorch"
    onnx.save(model, path)
    with pytest.raises(ForeignPolicy, match="carries no p3_contract"):
        Policy(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "policy.pt"], "--output: expected a name ending in .onnx"),
        (["--output", "/nowhere/policy.onnx"], "--output: no directory /nowhere"),
    ],
)
def test_wrong_settings_are_one_line_that_names_them(run, capsys, arguments, message):
    assert cli.main(["export", str(run), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_damaged_checkpoint_is_not_exported(run, tmp_path, capsys):
    path = tmp_path / "model_1.pt"
    path.write_bytes((run / "model_2.pt").read_bytes()[:1000])
    assert cli.main(["export", str(path)]) == 2
    assert "cut off" in capsys.readouterr().err


def test_erfcx_of_the_graph():
    for b in (0.0, 1e-9, 0.3, 1.0, 4.0, 30.0, 1e3):
        with mpmath.workdps(40):
            exact = mpmath.exp(mpmath.mpf(b) ** 2) * mpmath.erfc(b)
        assert float(erfcx(torch.tensor([b], dtype=torch.float64))) == pytest.approx(float(exact), rel=1e-13)


def test_elu_moments_of_the_graph():
    """Against the reference, which is held to 50 digits; in the range that the module's docstring names."""
    generator = torch.Generator().manual_seed(0)
    mean = 40 * torch.rand(20_000, dtype=torch.float64, generator=generator) - 20
    std = 10 ** (5 * torch.rand(20_000, dtype=torch.float64, generator=generator) - 4)
    found_mean, found_var = elu_moments(mean, std.square())
    exact_mean, exact_var = reference.elu_moments(mean, std.square(), 1.0)
    assert ((found_mean - exact_mean).abs() / (1 + std)).max() <= 1e-12
    assert (found_var.sqrt() - exact_var.sqrt()).abs().max() <= 2e-8
    zero_mean, zero_var = elu_moments(torch.tensor([-1.0, 2.0]).double(), torch.zeros(2).double())
    assert torch.allclose(zero_mean, torch.tensor([math.expm1(-1.0), 2.0]).double())
    assert zero_var.max() <= 1e-14
