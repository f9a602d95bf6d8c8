"""What a user's setting or number cannot mean is said, not passed over."""

from __future__ import annotations

import math
import os

import pytest
import torch
from helpers import forked
from torch import nn

import p3kernels

ESTIMATORS = {
    "MM": p3kernels.MomentMatching(),
    "CM": p3kernels.CovarianceMatching(),
    "CM, diagonal": p3kernels.CovarianceMatching("diagonal"),
    "CM, unscented": p3kernels.CovarianceMatching(transform="unscented"),
    "MC": p3kernels.MonteCarlo(3),
    "z = mean": p3kernels.LatentMean(),
}


def arguments() -> dict[str, object]:
    actor = nn.Sequential(nn.Linear(5, 4), nn.ELU(), nn.Linear(4, 3))
    inputs = {"context": torch.randn(6, 3), "latent_mean": torch.randn(6, 2), "latent_std": torch.rand(6, 2) + 0.1}
    return {"actor": actor, **inputs, "action_std": torch.rand(3) + 0.1}


@pytest.mark.parametrize("value", [-0.5, math.nan])
@pytest.mark.parametrize("which", ["latent_std", "action_std"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_std_is_checked_before_it_is_squared(name, which, value, monkeypatch):
    named = arguments()
    named[which].view(-1)[1] = value
    ESTIMATORS[name].policy(**named)  # nobody asked
    monkeypatch.setenv("P3_CHECK_VALUES", "1")
    with pytest.raises(ValueError, match=rf"{which}: expected values >= 0, got 1 that are not, the first {value}"):
        ESTIMATORS[name].policy(**named)


@pytest.mark.parametrize("asked", ["yes", "true", "2", " 1"])
def test_p3_check_values_is_0_or_1(asked, monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", asked)
    with pytest.raises(ValueError, match=f"P3_CHECK_VALUES: expected 0 or 1, got '{asked}'"):
        p3kernels.elu_moments(torch.zeros(2), torch.ones(2))


@pytest.mark.parametrize("asked", ["", "0"])
def test_values_are_not_checked_without_being_asked(asked, monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", asked)
    assert p3kernels.elu_moments(torch.zeros(2), -torch.ones(2))[0].isnan().all()


def test_values_inside_a_transform_are_not_looked_at(monkeypatch):
    monkeypatch.setenv("P3_CHECK_VALUES", "1")
    got = torch.func.vmap(lambda v: p3kernels.elu_moments(torch.zeros(2), v)[1])(
        torch.tensor([[1.0, 2.0], [3.0, -1.0]])
    )
    assert got.isnan().sum() == 1


@pytest.mark.parametrize("name", ["CM", "CM, diagonal", "MM", "MC"])
@pytest.mark.parametrize("shape", [(1, 3), (6, 1), (3,), (2, 6, 3)])
def test_an_action_is_not_broadcast(name, shape):
    policy = ESTIMATORS[name].policy(**arguments())
    with pytest.raises(ValueError, match=r"(action|means|std|context): expected"):
        policy.log_prob(torch.zeros(shape))


def test_an_instruction_set_that_cannot_run_is_an_error():
    """With no backend named the reference would run in its place, many times slower, without a word."""
    code = "import torch, p3kernels\np3kernels.elu_moments(torch.zeros(2), torch.ones(2))"
    done = forked.python("-c", code, env={**os.environ, "P3_CPU_ISA": "neon"})
    if "P3_CPU_ISA" not in done.stderr:
        assert p3kernels.available_backends()["cpu"] != "available"  # no extension, no instruction sets
        return
    assert done.returncode == 1
    assert "ValueError: P3_CPU_ISA=neon is not one this CPU and build can run" in done.stderr
