"""The examples run as they stand: the ops, rsl_rl's own runner, and a robot of another package."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch

from trainer import cli
from trainer.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
RSL_RL = ("5.0.1", "5.4.2", "5.5.1")
"""The first, the pinned and the newest version that the example was run with."""


def script(path: Path, *arguments: str) -> None:
    """As from the shell, in this process."""
    before = sys.argv, sys.path[:]
    sys.argv, sys.path[:] = [str(path), *arguments], [str(path.parent), *sys.path]
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before


def test_propagate(capsys):
    """Both ways have the mean, and covariance matching the variance, of 200,000 samples."""
    script(EXAMPLES / "ops/propagate.py")
    rows = re.findall(r"^  (moment|covariance|200,000) ?\w*(?: )+([-\d. ]+)$", capsys.readouterr().out, re.MULTILINE)
    numbers = {name: torch.tensor([float(value) for value in values.split()]) for name, values in rows}
    samples = numbers["200,000"]
    torch.testing.assert_close(numbers["moment"][:2], samples[:2], rtol=0, atol=0.02)
    torch.testing.assert_close(numbers["covariance"], samples, rtol=0.1, atol=0.02)


def test_latent_policy(capsys):
    """Estimators that see the whole latent fit two ways better than a Gaussian alone can."""
    module = runpy.run_path(str(EXAMPLES / "ops/latent_policy.py"))
    module["main"](steps=100)
    found = {
        name.strip(): float(value)
        for name, value in re.findall(r"^  (.{22})\s*(-?[\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    }
    assert set(found) == set(module["ESTIMATORS"])
    assert all(-3.0 < value < 0.5 for value in found.values())
    assert found["Monte Carlo, N = 15"] > found["one sample (a VAE's)"]


@pytest.mark.parametrize(("config", "iterations"), [("p3", 12), ("blind", 2)])
def test_rsl_rl(config, iterations, tmp_path, capsys):
    """Trained, saved, loaded and exported by rsl_rl's own runner, with and without a scan and a velocity.

    Twelve iterations are enough to see that it learns.
    """
    path = EXAMPLES / f"rsl_rl/{config}.yaml"
    length = ("--iterations", str(iterations), "--log-dir", str(tmp_path))
    script(EXAMPLES / "rsl_rl/train.py", "--config", str(path), *length)
    said = capsys.readouterr().out
    assert "saved, loaded and exported" in said
    before, after = map(float, re.search(r"step (-?[\d.]+) -> (-?[\d.]+)", said).groups())
    assert iterations < 12 or after > before + 0.1
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    sizes = {"proprio": 5, "history": 25, "extero": 27}
    inputs = {each.name: torch.randn(1, sizes[each.name]) for each in session.get_inputs()}
    assert list(inputs) == (["proprio", "history", "extero"] if config == "p3" else ["proprio", "history"])
    (action,) = session.run(None, {name: value.numpy() for name, value in inputs.items()})
    deployed = torch.jit.load(tmp_path / "policy.pt")
    torch.testing.assert_close(torch.from_numpy(action), deployed(*inputs.values()), rtol=1e-4, atol=1e-5)


@pytest.mark.sweep
@pytest.mark.parametrize("version", RSL_RL)
@pytest.mark.parametrize("config", ["p3", "blind"])
def test_other_versions_of_rsl_rl(version, config, tmp_path_factory, tmp_path):
    folder = tmp_path_factory.getbasetemp() / f"rsl_rl-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        fetched = subprocess.run([*pip, f"rsl-rl-lib=={version}"], capture_output=True, text=True, check=False)
        if fetched.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            pytest.skip(f"rsl-rl-lib {version} cannot be had here: {fetched.stderr.splitlines()[-1]}")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    program = "import rsl_rl, sys, runpy; print(rsl_rl.__file__); sys.argv[:] = sys.argv[1:];"
    program += " sys.path.insert(0, str(__import__('pathlib').Path(sys.argv[0]).parent));"
    program += " runpy.run_path(sys.argv[0], run_name='__main__')"
    arguments = ["--config", str(EXAMPLES / f"rsl_rl/{config}.yaml"), "--iterations", "3", "--log-dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-c", program, str(EXAMPLES / "rsl_rl/train.py"), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert str(folder) in done.stdout.splitlines()[0]
    assert "saved, loaded and exported" in done.stdout


def test_own_robot(tmp_path, monkeypatch, capsys):
    """Installed as pip would: trained, judged and exported by the name of its entry point."""
    site = tmp_path / "site"
    shutil.copytree(EXAMPLES / "own_robot/my_dog", site / "my_dog")
    (name, value) = re.search(
        r'"p3\.tasks"\]\n([\w-]+) = "(.*)"', (EXAMPLES / "own_robot/pyproject.toml").read_text()
    ).groups()
    metadata = site / "my_dog-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-dog\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(f"[p3.tasks]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(TASKS, "_loaded", {})
    run = str(tmp_path / "run")
    size = ["--num-envs", "8", "--processes", "1", "--num-threads", "1"]
    try:
        assert cli.main(["train", "--task", name, "--method", "mm", "--iterations", "1", *size, "--run-dir", run]) == 0
        assert cli.main(["eval", run, "--episodes", "2", "--seconds", "0.4", "--num-threads", "1"]) == 0
        assert cli.main(["export", run]) == 0
    finally:
        for module in [module for module in sys.modules if module.startswith("my_dog")]:
            del sys.modules[module]
    assert "dog-trot" in capsys.readouterr().out
    assert (tmp_path / "run/policy.onnx").exists()
