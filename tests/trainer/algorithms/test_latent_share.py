"""The Σλ term: its value against sampled variances, where its gradient goes, and how its weight is held and kept."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.trainer.small_runs import whole_and_parts
from helpers.trainer.synthetic import TurningEnv, config, construct, rollout, trained

from p3kernels.diagnostics import sampled_moments
from trainer.algorithms import P3PPO, parse_method
from trainer.algorithms.methods import QUIET_COEF
from trainer.algorithms.presets import resolve
from trainer.config import ModelConfig, TrainConfig
from trainer.models.latent_noise import BAND, REACH, STEP, LatentNoise, latent_share
from trainer.models.networks import Latent

SAMPLES = 10_000


def with_term(method: str = "mm", env: TurningEnv | None = None, coef: float = 0.02, **options: Any) -> P3PPO:
    env = env or TurningEnv()
    settings = config(method)
    settings["actor"] |= {"latent_noise_coef": coef, **options}
    made = P3PPO.construct_algorithm(env.get_observations(), env, settings, "cpu")
    made.train_mode()
    with torch.no_grad():
        made.actor.mlp[-1].weight.mul_(10.0)
    return made


def test_value_against_sampled_variances():
    """Σ_a E[(μ(z) - μ(m))²] / σ² is Σv/σ² and the squared shift of the mean, both by 10,000 latents a row."""
    torch.manual_seed(0)
    actor = construct("mm").actor
    with torch.no_grad():
        context, latent = actor.encode(TurningEnv(64).get_observations())
        sampled = sampled_moments(actor.mlp, context, latent.mean, latent.std, SAMPLES)
        centre = actor.mlp(torch.cat([context, latent.mean], -1))
        share = (sampled.var / actor.action_std.square()).sum(-1)
        shift = ((sampled.mean - centre) / actor.action_std).square().sum(-1)
        draws = torch.stack([latent_share(actor.mlp, context, latent, actor.action_std) for _ in range(400)])
    error = draws.std() / math.sqrt(len(draws)) + (share + shift).mean() * math.sqrt(2 / (SAMPLES * 64))
    assert shift.mean() < 0.1 * share.mean()  # so that the term is about the variance
    assert abs(draws.mean() - (share + shift).mean()) <= 5 * error
    assert error < 0.02 * share.mean()


def test_of_every_second_row():
    actor = construct("mm").actor
    with torch.no_grad():
        context, latent = actor.encode(TurningEnv(7).get_observations())
        torch.manual_seed(4)
        strided = latent_share(actor.mlp, context, latent, actor.action_std, every=2)
        torch.manual_seed(4)
        own = Latent(*(part[[0, 2, 4, 6]] for part in latent))
        assert torch.equal(strided, latent_share(actor.mlp, context[[0, 2, 4, 6]], own, actor.action_std))


def test_gradient_reaches_weights_and_latent_std_alone():
    actor = construct("mm").actor
    context, latent = actor.encode(TurningEnv().get_observations())
    context, mean, std = (tensor.detach().requires_grad_() for tensor in (context, latent.mean, latent.std))
    latent_share(actor.mlp, context, Latent(mean, std, latent.velocity), actor.action_std).backward()
    assert context.grad is None
    assert mean.grad is None
    assert actor.log_std.grad is None
    assert (std.grad != 0).all()
    for name, parameter in actor.mlp.named_parameters():
        assert parameter.grad.count_nonzero() > 0, name


@pytest.mark.parametrize("method", ["mm", "mc(3)", "z-mean"])
def test_trains_the_share_down(method):
    env = TurningEnv()
    shares = []
    for coef in (1e-6, 1.0):
        torch.manual_seed(0)
        algorithm = with_term(method, env, coef)
        for _ in range(6):
            rollout(algorithm, env)
            losses = algorithm.update()
        shares.append(losses["latent_share"])
        assert losses["latent_noise_coef"] == coef
    assert shares[1] < 0.7 * shares[0]


def test_without_the_term_there_is_no_pass_and_no_number():
    algorithm, _ = trained("mm")
    assert algorithm.actor.latent_noise is None
    assert not {"latent_share", "latent_noise_coef"} & algorithm.update().keys()


class TestAdaptedWeight:
    def test_moves_towards_the_target(self):
        weight = LatentNoise(0.02, target=0.5)
        weight.adapt(0.5 * BAND * 1.01)
        assert weight.coef == pytest.approx(0.02 * STEP)
        weight.adapt(0.5)
        assert weight.coef == pytest.approx(0.02 * STEP)
        for _ in range(2):
            weight.adapt(0.5 / BAND * 0.99)
        assert weight.coef == pytest.approx(0.02 / STEP)
        for _ in range(100):
            weight.adapt(100.0)
        assert weight.coef == pytest.approx(0.02 * REACH)

    def test_constant_without_a_target(self):
        weight = LatentNoise(0.02)
        weight.adapt(100.0)
        assert weight.coef == 0.02

    def test_resumed_bit_for_bit(self, tmp_path):
        """A run of eight iterations, and one that is interrupted after five: the weight has moved in both."""
        options: dict[str, Any] = {"latent_noise_coef": 0.02, "latent_noise_target": 1e-4}
        whole, part = (runner.algorithm.actor for runner in whole_and_parts(tmp_path, "mm", 5, 8, model=options))
        assert part.latent_noise.coef == whole.latent_noise.coef
        assert whole.latent_noise.coef == pytest.approx(0.02 * STEP**8)
        for one, other in zip(whole.parameters(), part.parameters(), strict=True):
            assert torch.equal(one, other)


def test_first_weights_of_the_latent():
    torch.manual_seed(0)
    plain = construct("mm").actor.mlp[0].weight
    torch.manual_seed(0)
    scaled = with_term(coef=0.0, latent_init_scale=0.1).actor.mlp[0].weight
    torch.testing.assert_close(scaled[:, -8:], 0.1 * plain[:, -8:])
    assert torch.equal(scaled[:, :-8], plain[:, :-8])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"latent_noise_coef": -1.0}, "--model.latent-noise-coef: expected at least 0, got -1.0"),
        ({"latent_init_scale": -1.0}, "--model.latent-init-scale: expected 0 to 100, got -1.0"),
        ({"latent_noise_target": 0.5}, "--model.latent-noise-target: expected a --model.latent-noise-coef"),
        (
            {"latent_noise_coef": 0.1, "latent_noise_target": 0.0},
            "--model.latent-noise-target: expected a positive number, got 0.0",
        ),
    ],
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        resolve(TrainConfig(method="mm", model=ModelConfig(**options)))


def test_quiet_is_mm_with_the_term():
    ours, term = (
        resolve(TrainConfig(method=method, model=ModelConfig(latent_noise_coef=coef)))
        for method, coef in (("quiet", None), ("mm", QUIET_COEF))
    )
    assert ours.model == term.model
    assert parse_method("quiet").phases == parse_method("mm").phases
    for given in ({}, {"coef": 0.5}):
        settings = config("quiet")
        assert "latent_noise_coef" not in settings["actor"]
        settings["actor"] |= {f"latent_noise_{name}": value for name, value in given.items()}
        env = TurningEnv()
        algorithm = P3PPO.construct_algorithm(env.get_observations(), env, settings, "cpu")
        assert algorithm.actor.latent_noise.coef == given.get("coef", QUIET_COEF)


def test_quiet_without_the_term_is_refused():
    with pytest.raises(ValueError, match=r"--model.latent-noise-coef: without it quiet is mm"):
        resolve(TrainConfig(method="quiet", model=ModelConfig(latent_noise_coef=0.0)))
    with pytest.raises(ValueError, match=r"method 'quiet' needs a latent_noise_coef above 0, its own is 0.0"):
        with_term("quiet", coef=0.0)


def test_only_for_a_latent_with_a_variance():
    given = TrainConfig(method="ae", model=ModelConfig(latent_noise_coef=0.02))
    with pytest.raises(ValueError, match=r"--model.latent-noise-coef: the networks of ae have no such setting"):
        resolve(given)
