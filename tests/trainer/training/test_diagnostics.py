"""What a run says about its policy and process: against closed forms, and without a trace in what is trained."""

from __future__ import annotations

import copy
import itertools
import math
import mmap
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers.trainer import synthetic
from torch import nn

from p3kernels import MomentMatching, MonteCarlo
from p3kernels.diagnostics import data_efficiency
from trainer.training.diagnostics import latent_scalars, policy_scalars, resident_mib

ROWS, CONTEXT, LATENT, ACTIONS = 3000, 2, 3, 4
LATENT_KEYS = {
    "d_eff/trained",
    "d_eff/n1",
    "d_eff/n15",
    "policy/latent_share",
    "policy/latent_action_std",
    "policy/latent_action_std_mm",
}


@dataclass
class Latent:
    mean: torch.Tensor
    std: torch.Tensor


class StubActor:
    """An actor whose encoder gives what it is told, whatever the observation."""

    def __init__(self, *, rows: int = ROWS, latent: int = LATENT, hidden: int = 0, std: float = 0.7):
        sizes = [CONTEXT + latent, hidden, ACTIONS] if hidden else [CONTEXT + latent, ACTIONS]
        layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
        self.mlp = nn.Sequential(layers[0], nn.ELU(), layers[1]) if hidden else nn.Sequential(*layers)
        self.context = torch.randn(rows, CONTEXT)
        self.latent = Latent(torch.randn(rows, latent), std * (0.5 + torch.rand(rows, latent)))
        self.action_std = nn.Parameter(torch.tensor([0.1, 0.2, 0.3, 0.4]))
        self.estimator: MomentMatching | MonteCarlo = MomentMatching()

    def encode(self, obs: None) -> tuple[torch.Tensor, Latent]:
        return self.context, self.latent


def test_policy_scalars_are_means():
    actor = StubActor(rows=100)
    actor.latent.mean = torch.randn(100, LATENT) * torch.tensor([1.0, 0.05, 0.2])  # variances 1, 0.0025 and 0.04
    scalars = policy_scalars(actor, None)
    assert set(scalars) == {"policy/action_std", "policy/latent_std", "policy/active_latents"}
    assert scalars["policy/action_std"] == pytest.approx(0.25)
    assert scalars["policy/latent_std"] == pytest.approx(actor.latent.std.mean().item())
    assert scalars["policy/active_latents"] == 2
    assert {type(value) for value in scalars.values()} == {float}


def test_policy_scalars_leave_out_what_has_no_meaning():
    assert set(policy_scalars(StubActor(latent=0), None)) == {"policy/action_std"}
    assert set(policy_scalars(StubActor(std=0), None)) == {"policy/action_std", "policy/active_latents"}
    assert set(policy_scalars(StubActor(rows=1), None)) == {"policy/action_std", "policy/latent_std"}


def test_the_latents_share_of_the_action_of_a_linear_actor():
    """Var = Σ_j w_j² s_j², which moment matching has exactly and 32 samples to √(2/31) a row and action."""
    actor = StubActor()
    weight = actor.mlp[0].weight[:, CONTEXT:]
    exact = (actor.latent.std.square() @ weight.square().T).mean().sqrt().item()
    scalars = latent_scalars(actor, None, clip=0.2, seed=1)
    assert scalars["policy/latent_action_std_mm"] == pytest.approx(exact, rel=1e-5)  # float32
    share = ((actor.latent.std.square() @ weight.square().T) / actor.action_std.square()).sum(-1).mean().item()
    assert scalars["policy/latent_share"] == pytest.approx(share, rel=6 * math.sqrt(2 / 31 / ROWS))
    error = math.sqrt(2 / 31 / ROWS) / 2  # of the std; the actions of a row may all go together
    assert scalars["policy/latent_action_std"] == pytest.approx(exact, rel=6 * error)


def test_the_sampled_variance_sees_what_moment_matching_leaves_out():
    """Two hidden units that are the same function of the latent: their sum has twice the std, not √2 times."""
    actor = StubActor(hidden=2, latent=1)
    with torch.no_grad():
        actor.mlp[0].weight.copy_(torch.tensor([[0.0, 0.0, 1.0]]).expand(2, -1))
        actor.mlp[0].bias.fill_(50.0)  # where ELU is the identity
        actor.mlp[2].weight.fill_(1.0)
    scalars = latent_scalars(actor, None, clip=0.2, seed=1)
    spread = actor.latent.std.square().mean().sqrt().item()
    assert scalars["policy/latent_action_std_mm"] == pytest.approx(math.sqrt(2) * spread, rel=1e-4)
    assert scalars["policy/latent_action_std"] == pytest.approx(2 * spread, rel=6 * math.sqrt(2 / 31 / ROWS) / 2)


@pytest.mark.parametrize("estimator", [MomentMatching(), MonteCarlo(1), MonteCarlo(5)], ids=repr)
def test_data_efficiency_of_the_estimator_and_of_two_others(estimator):
    actor = StubActor(hidden=8)
    actor.estimator = estimator
    scalars = latent_scalars(actor, None, clip=0.3, seed=4)
    assert set(scalars) == LATENT_KEYS
    assert {type(value) for value in scalars.values()} == {float}
    expected = {"trained": estimator, "n1": MonteCarlo(1), "n15": MonteCarlo(15)}
    for name, of in expected.items():
        arguments = (actor.mlp, actor.context, actor.latent.mean, actor.latent.std, actor.action_std)
        assert scalars[f"d_eff/{name}"] == data_efficiency(of, *arguments, clip=0.3, seed=4).share, name
    assert 0 < scalars["d_eff/n1"] < scalars["d_eff/n15"] < 1


@pytest.mark.parametrize("options", [{"latent": 0}, {"std": 0.0}, {"rows": 0}], ids=repr)
def test_no_latent_scalars_without_an_uncertain_latent(options):
    assert latent_scalars(StubActor(**options), None, clip=0.2, seed=1) == {}


@pytest.mark.parametrize("diverged", ["context", "latent", "weight"])
def test_no_latent_scalars_of_numbers_that_are_not(diverged):
    actor = StubActor(rows=10, hidden=8)
    assert set(latent_scalars(actor, None, clip=0.2, seed=1)) == LATENT_KEYS
    with torch.no_grad():
        if diverged == "context":
            actor.context[3, 1] = -math.inf
        elif diverged == "latent":
            actor.latent.std[3, 1] = math.nan
        else:
            actor.mlp[2].weight[3, 1] = math.nan
    assert latent_scalars(actor, None, clip=0.2, seed=1) == {}


def test_a_seed_repeats_and_torch_does_not_notice():
    actor = StubActor(rows=200, hidden=8)
    actor.estimator = MonteCarlo(3)
    before = torch.get_rng_state()
    policy_scalars(actor, None)
    first = latent_scalars(actor, None, clip=0.2, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.randn(7)
    assert latent_scalars(actor, None, clip=0.2, seed=1) == first
    assert latent_scalars(actor, None, clip=0.2, seed=2) != first


@pytest.mark.parametrize("method", ["mm", "vae"])
def test_the_trainers_actor_is_left_as_it_was(method):
    """On the real actor and its observations: weights, statistics and gradients stay, and training can go on."""
    algorithm, env = synthetic.trained(method)
    actor, observations = algorithm.actor, env.get_observations()
    before = copy.deepcopy(actor.state_dict())
    state = torch.get_rng_state()
    scalars = policy_scalars(actor, observations) | latent_scalars(actor, observations, clip=0.2, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert set(scalars) == LATENT_KEYS | {"policy/action_std", "policy/latent_std", "policy/active_latents"}
    assert all(math.isfinite(value) for value in scalars.values())
    assert (scalars["d_eff/trained"] == 1.0) == (method == "mm")
    assert synthetic.same(before, actor.state_dict())
    assert algorithm.update()


def test_resident_memory_grows_with_what_is_held():
    before = resident_mib()
    assert before > 10  # an interpreter with torch
    # Mapped anew: torch's may be memory that an earlier training of this process has kept.
    with mmap.mmap(-1, 64 * 2**20) as held:
        held.write(b"1" * 64 * 2**20)
        assert resident_mib() - before > 60


def test_without_proc_resident_memory_is_the_peak(monkeypatch):
    resource = pytest.importorskip("resource")

    def fails(_):
        raise FileNotFoundError("no /proc")

    monkeypatch.setattr(Path, "read_bytes", fails)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    monkeypatch.setattr(sys, "platform", "linux")
    assert resident_mib() == pytest.approx(peak / 2**10, rel=0.05)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert resident_mib() == pytest.approx(peak / 2**20, rel=0.05)
