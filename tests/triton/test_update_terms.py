"""The parts of an update that are one launch each, against plain torch, which `torch.float64` takes here."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.trainer.synthetic import Flip, TurningEnv, construct, rollout, weights

from p3kernels.backends import standing_in_for_a_gpu
from trainer.algorithms.guarded_step import GuardedStep
from trainer.algorithms.losses import terms_of_policy
from trainer.models.networks import Encoder, Latent
from trainer.models.ranks import ONE_RANK
from trainer.models.reconstruction import latent_kl, reconstruction
from trainer.models.update_terms import fused

ROWS = 37
ROUNDING = 64 * 2**-23
"""Sums of some hundred terms of either sign in float32."""


def compare(function, leaves, *constants):
    """A function's outputs and gradients, in float32 by the kernels and in float64 by torch."""
    found = []
    for dtype in (torch.float32, torch.float64):
        with standing_in_for_a_gpu():
            assert fused(leaves[0].to(dtype)) is (dtype == torch.float32)
            given = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves]
            outputs = [out for out in function(*given, *(value.to(dtype) for value in constants)) if out is not None]
            torch.manual_seed(1)
            total = sum((out * torch.randn(out.shape, dtype=torch.float64).to(dtype)).sum() for out in outputs)
            gradients = torch.autograd.grad(total, given, allow_unused=True)
        found.append([*outputs, *(gradient for gradient in gradients if gradient is not None)])
    for one, other in zip(*found, strict=True):
        assert other.count_nonzero() > 0
        assert (one.double() - other).abs().max() <= ROUNDING * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("scan", [True, False])
def test_encoder(scan):
    torch.manual_seed(0)
    sizes = (12, (5, 7), 3, 5) if scan else (12, None, 3, 0)
    encoder = Encoder(*sizes, hidden=(16,), scan_hidden=8)
    with torch.no_grad():  # some log-variances beyond the bounds
        encoder.history_head.weight.mul_(30)
    history, image = torch.randn(ROWS, 12), torch.randn(ROWS, 35 if scan else 0)
    parameters = list(encoder.parameters())

    found = []
    for dtype in (torch.float32, torch.float64):
        encoder.to(dtype)
        with standing_in_for_a_gpu():
            latent = encoder(history.to(dtype), image.to(dtype))
            gradients = torch.autograd.grad(sum((k + 1) * out.sin().sum() for k, out in enumerate(latent)), parameters)
        found.append([*latent, *gradients])
    for one, other in zip(*found, strict=True):
        assert (one.double() - other).abs().max() <= 32 * ROUNDING * max(1.0, other.abs().max().item())


@pytest.mark.parametrize("dual_clip", [None, 2.0])
@pytest.mark.parametrize("clips_value", [True, False])
@pytest.mark.parametrize("mirrored", [True, False])
def test_policy_terms(dual_clip, clips_value, mirrored):
    torch.manual_seed(0)
    wide = torch.randn(ROWS, 8)
    names = ("log_prob", "advantages", "values", "returns", *(["acted_log_prob", "drawn"] if mirrored else []))
    columns = wide.clone()
    columns[:, 5] = (wide[:, 5] > 0).float()

    def function(log_prob, value, columns, kl):
        batch = {name: columns[:, place] for place, name in enumerate(names)}
        terms = terms_of_policy(log_prob, kl, value, batch, 0.2, dual_clip, clips_value=clips_value)
        return terms[:4]

    compare(function, (torch.randn(ROWS), torch.randn(ROWS)), columns, torch.rand(ROWS))


@pytest.mark.parametrize(("scan", "velocity"), [(35, 3), (0, 3), (35, 0), (0, 0)])
@pytest.mark.parametrize("valid", [True, False])
def test_reconstruction(scan, velocity, valid):
    torch.manual_seed(0)
    leaves = [torch.randn(ROWS, 12), torch.randn(ROWS, scan), torch.randn(ROWS, velocity)]
    leaves = [leaf for leaf in leaves if leaf.shape[1]]
    mask = (torch.rand(ROWS) > 0.3).float() if valid else torch.zeros(ROWS)
    mask[0] = 1.0

    def function(*given):
        given = list(given)
        proprio = given.pop(0)
        image = given.pop(0) if scan else proprio[:, :0]
        moved = given.pop(0) if velocity else proprio[:, :0]
        targets, mask = given
        errors = reconstruction(
            (proprio, image), moved, targets[:, :12], mask, targets[:, 16 : 16 + scan], targets[:, 60 : 60 + velocity]
        )
        return errors.proprio, errors.scan, errors.velocity

    compare(function, leaves, torch.randn(ROWS, 64), mask)


@pytest.mark.parametrize(("latent", "reduction"), [(7, "mean"), (3, "mean"), (7, "sum")])
def test_latent_kl(latent, reduction):
    torch.manual_seed(0)

    def function(mean, std):
        return (latent_kl(Latent(mean, std, mean[:, :0]), 3, reduction),)

    compare(function, (torch.randn(ROWS, latent), 0.1 + torch.rand(ROWS, latent)))


@pytest.mark.parametrize("broken", [None, "loss", "first", "second"])
@pytest.mark.parametrize("max_norm", [0.1, 100.0])
def test_guarded_step(broken, max_norm):
    """The gradients' bounds and whether the step is taken, as without the kernel."""
    results = []
    for stands_in in (True, False):
        torch.manual_seed(0)
        parts = [[torch.nn.Parameter(torch.randn(3, 2)), torch.nn.Parameter(torch.randn(4))] for _ in range(2)]
        optimizer = torch.optim.Adam(
            [p for part in parts for p in part], torch.tensor(0.1), fused=True, capturable=True
        )
        step = GuardedStep(optimizer, parts, max_norm, ONE_RANK, deferred=True)
        for part in parts:
            for parameter in part:
                parameter.grad = torch.randn_like(parameter)
        if broken in ("first", "second"):
            parts[broken == "second"][1].grad[2] = math.inf
        loss = torch.tensor(math.nan if broken == "loss" else 1.0)
        if stands_in:
            with standing_in_for_a_gpu():
                taken = step(loss)
        else:
            taken = step(loss)
        assert taken.item() is (broken is None)
        results.append([p.detach() for part in parts for p in part])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mirror_share", [0.0, 0.5])
def test_a_whole_update_as_on_a_gpu(mirror_share):
    """Every launch of an update in the interpreter: the numbers are those of the CPU."""
    found = []
    for stands_in in (True, False):
        torch.manual_seed(3)
        env = TurningEnv()
        env.symmetry = Flip()
        algorithm = construct("mm", env, mirror_share=mirror_share)
        algorithm.deferred = True
        algorithm.set_learning_rate(algorithm.learning_rate)
        rollout(algorithm, env)
        torch.manual_seed(4)
        if stands_in:
            with standing_in_for_a_gpu():
                losses = algorithm.update()
        else:
            losses = algorithm.update()
        found.append((losses, weights(algorithm)))
    (losses, after), (expected, expected_after) = found
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        assert losses[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    for name, weight in expected_after.items():
        torch.testing.assert_close(after[name], weight, rtol=1e-3, atol=1e-4)
