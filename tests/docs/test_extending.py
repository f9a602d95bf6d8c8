"""The examples of docs/extending.md do what the page says; the robot's is in tests/test_examples.py."""

from __future__ import annotations

import importlib
import re
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import p3kernels.estimators
from p3kernels.estimators.protocol import parse_estimator
from trainer.commands.train_run import run
from trainer.config import PpoConfig, TrainConfig
from trainer.tasks import find_task

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/extending.md").read_text()


@pytest.fixture
def examples(monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples/extending"))


def test_the_page_shows_the_files_as_they_are():
    assert runpy.run_path(str(ROOT / "tools/include_examples.py"))["included"](PAGE) == PAGE


@pytest.mark.parametrize("example", re.findall(r"^python (examples/extending/\w+\.py)", PAGE, re.MULTILINE))
def test_runs_from_the_command_line(example, examples, capsys):
    runpy.run_path(str(ROOT / example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.usefixtures("examples")
def test_op_has_the_moments_and_gradients_of_its_reference():
    op = importlib.import_module("square_moments")
    generator = torch.Generator().manual_seed(1)
    mean = torch.randn(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    var = torch.rand(3, 4, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda *inputs: op.square_moments(*inputs, backend="cpu"), (mean, var))
    for found, wanted in zip(op.square_moments(mean, var, backend="cpu"), op.reference(mean, var), strict=True):
        torch.testing.assert_close(found, wanted)
    samples = mean.detach() + var.detach().sqrt() * torch.randn(200_000, 3, 4, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(op.reference(mean, var)[1], samples.square().var(0), rtol=0.05, atol=0.0)
    with pytest.raises(ValueError, match="var: expected shape"):
        op.square_moments(mean, var[:2])


def test_estimator_is_exact_for_a_linear_actor_and_found_by_its_file(monkeypatch, tmp_path):
    shutil.copy(ROOT / "examples/extending/linearised.py", tmp_path)
    monkeypatch.setattr(p3kernels.estimators, "__path__", [*p3kernels.estimators.__path__, str(tmp_path)])
    estimator = parse_estimator("linearised")
    assert estimator.label == "linearised"
    actor = nn.Sequential(nn.Linear(5, 4))
    latent_std = torch.rand(8, 2).requires_grad_()
    policy = estimator.policy(actor, torch.randn(8, 3), torch.randn(8, 2), latent_std, torch.full((4,), 0.5))
    wanted = latent_std.square() @ actor[0].weight[:, 3:].square().T + 0.25
    torch.testing.assert_close(policy.stddev.square(), wanted)
    action = policy.sample()
    judged = policy.judge(action, policy.remember(action))
    torch.testing.assert_close(judged.kl, torch.zeros(8), rtol=0.0, atol=1e-5)
    judged.log_prob.sum().backward()
    assert actor[0].weight.grad.abs().max() > 0
    assert latent_std.grad.abs().max() > 0


@pytest.mark.usefixtures("examples")
def test_engine_continues_from_its_saved_state_and_trains(tmp_path):
    harness = importlib.import_module("harness")
    first = harness.make_env("harness", find_task("g1-flat"), 3, seed=2, device="cpu", num_threads=None)
    actions = 0.5 * torch.randn(20, 3, first.num_actions, generator=torch.Generator().manual_seed(3))
    for action in actions[:10]:
        first.step(action)
    second = harness.make_env("harness", find_task("g1-flat"), 3, seed=4, device="cpu", num_threads=None)
    second.load_state_dict(first.state_dict())
    for action in actions[10:]:
        (_, one, _, _), (_, other, _, _) = first.step(action), second.step(action)
        assert torch.equal(one, other)
    assert (first.state.joint_pos - first.task.default_pos).abs().max() > 0.1

    ppo = PpoConfig(num_learning_epochs=1, num_mini_batches=1, num_steps_per_env=4)
    run_dir = tmp_path / "run"
    config = TrainConfig(task="g1-flat", method="mm", iterations=1, num_envs=4, processes=1, ppo=ppo, run_dir=run_dir)
    assert run(config, "p3", harness.make_env) == 0
    assert (run_dir / "model_1.pt").exists()
