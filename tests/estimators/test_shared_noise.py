"""`SharedNoise`: its gradient is that of the return, its ratio 1 at unchanged weights, its KL and entropy exact."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.distributions import Independent, Normal, kl_divergence

from p3kernels import MonteCarlo, SharedNoise
from p3kernels.estimators import Estimator, StoredComponent

ROWS, CONTEXT, LATENTS, ACTIONS = 64, 3, 4, 2


def network(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(CONTEXT + LATENTS, 8), nn.ELU(), nn.Linear(8, ACTIONS)).to(dtype)


def inputs(rows: int = ROWS, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Context, mean and std of the latent, exploration noise."""
    generator = torch.Generator().manual_seed(2)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    return [
        normal(rows, CONTEXT),
        normal(rows, LATENTS),
        0.5 + normal(rows, LATENTS).abs(),
        torch.full((2,), 0.4).to(dtype),
    ]


def moved(actor: nn.Sequential, scale: float = 0.05) -> nn.Sequential:
    other = network(actor[0].weight.dtype)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return other


def test_gradient_is_that_of_a_known_return():
    """R = -|a - t|²: E[(R - b) ∇log π(a | o, ε)] against the pathwise gradient of E[R], in every parameter and in the
    latent's mean and std, within its standard error; a ratio of other noise is off by far more."""
    actor, (context, mean, std, action_std) = network(), inputs()
    leaves = [*actor.parameters(), mean.requires_grad_(), std.requires_grad_(), action_std.requires_grad_()]
    target = torch.tensor([1.0, -0.5], dtype=torch.float64)
    shapes = [leaf.shape for leaf in leaves]

    def flat(gradients):
        return torch.cat([gradient.flatten() for gradient in gradients])

    def gradients(estimator: Estimator, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of one draw of every row: by the score, and pathwise."""
        torch.manual_seed(seed)
        with torch.no_grad():
            acting = estimator.policy(actor, context, mean, std, action_std)
            action = acting.sample()
            remembered = acting.remember(action)
            returns = -(action - target).square().sum(-1) + 2.0  # a baseline, the same for every draw
            explored = (action - acting.mean) / action_std
        policy = estimator.recall(actor, context, mean, std, action_std, remembered)
        ratio = (policy.judge(action, remembered).log_prob - remembered["log_prob"]).exp()
        score = flat(torch.autograd.grad((ratio * returns).mean(), leaves))
        reached = acting_at(actor, context, mean, std, acting.noise) + action_std * explored
        pathwise = flat(torch.autograd.grad(-(reached - target).square().sum(-1).mean(), leaves))
        return score, pathwise

    def acting_at(actor, context, mean, std, noise):
        return actor(torch.cat([context, mean + std * noise], -1))

    errors = {}
    for estimator in (SharedNoise(), StoredComponent()):
        pairs = [gradients(estimator, seed) for seed in range(600)]
        scores, paths = (torch.stack(each) for each in zip(*pairs, strict=True))
        difference = scores - paths  # of the same draws
        error = difference.std(0) / math.sqrt(len(difference))
        errors[estimator.label] = (difference.mean(0) / error).abs()
    assert paths.mean(0).abs().min() > 0
    assert len(errors["shared"]) == sum(shape.numel() for shape in shapes)
    assert errors["shared"].max() < 5  # of some 600 numbers: a false alarm in 3000, and the seeds are fixed
    assert errors["vae-stored"].max() > 7


@pytest.mark.parametrize("estimator", [SharedNoise(), MonteCarlo(1, common=True), MonteCarlo(5, "sobol", common=True)])
def test_ratio_is_one_at_unchanged_weights_in_any_order(estimator):
    actor, arguments = network(torch.float32), inputs(257, torch.float32)
    seed, stream = torch.tensor([7]), torch.arange(257)
    with torch.no_grad():
        acting = estimator.policy(actor, *arguments)
        action = acting.sample()
        judging = estimator.recall(actor, *arguments, {"stream": stream}, seed) if estimator.deferred else acting
        remembered = {"stream": stream, **judging.remember(action)}
        for rows in torch.randperm(257).split(50):
            part = [tensor[rows] if tensor.dim() == 2 else tensor for tensor in arguments]
            kept = {name: value[rows] for name, value in remembered.items()}
            judged = estimator.recall(actor, *part, kept, seed).judge(action[rows], kept)
            assert (judged.log_prob - kept["log_prob"]).abs().max() <= 1e-5
            assert judged.kl.abs().max() <= 1e-5


def test_judgement_is_that_of_torch():
    """Under other weights, and at the same noise."""
    actor, arguments = network(), inputs()
    acting = SharedNoise().policy(actor, *arguments)
    action = acting.sample()
    remembered = {name: value.detach() for name, value in acting.remember(action).items()}
    assert set(remembered) == {"log_prob", *SharedNoise.remembers}
    other = moved(actor)
    policy = SharedNoise().recall(other, *arguments, remembered)
    assert torch.equal(policy.noise, acting.noise)
    latent = arguments[1] + arguments[2] * acting.noise
    torch.testing.assert_close(policy.latent(), latent)
    before, after = (
        Independent(Normal(net(torch.cat([arguments[0], latent], -1)), arguments[3]), 1) for net in (actor, other)
    )
    judged = policy.judge(action, remembered)
    torch.testing.assert_close(remembered["log_prob"], before.log_prob(action).detach())
    torch.testing.assert_close(judged.log_prob, after.log_prob(action))
    torch.testing.assert_close(judged.entropy, after.entropy())
    torch.testing.assert_close(judged.kl, kl_divergence(before, after))
    assert judged.kl.min() > 1e-5
    torch.testing.assert_close(policy.mean, after.mean)
    torch.testing.assert_close(policy.stddev, after.stddev.expand_as(policy.mean))


def test_conditional_kl_bounds_the_marginal():
    """E_ε[KL(p(a | ε) ‖ p'(a | ε))] ≥ KL(marginal ‖ marginal'), here of a linear actor, where both are known."""
    linear, other = (nn.Sequential(nn.Linear(CONTEXT + LATENTS, ACTIONS)).double() for _ in range(2))
    context, mean, std, action_std = inputs(1)
    kls = []
    for _ in range(1000):
        acting = SharedNoise().policy(linear, context, mean, std, action_std)
        remembered = acting.remember(acting.mean.detach())
        policy = SharedNoise().recall(other, context, mean, std, action_std, remembered)
        kls.append(policy.judge(acting.mean, remembered).kl)
    conditional = torch.cat(kls).mean()
    marginals = []
    for net in (linear, other):
        weight = net[0].weight[:, CONTEXT:] * std
        covariance = weight @ weight.T + torch.diag(action_std.square())
        centre = net(torch.cat([context, mean], -1))[0]
        marginals.append(torch.distributions.MultivariateNormal(centre, covariance))
    assert conditional > kl_divergence(*marginals) > 0


def test_a_stored_component_is_not_one_at_unchanged_weights():
    """Its KL of identical policies is Σv/σ² in the mean, for a linear actor exactly."""
    linear = nn.Sequential(nn.Linear(CONTEXT + LATENTS, ACTIONS)).double()
    arguments = [tensor.repeat(2000, 1) if tensor.dim() == 2 else tensor for tensor in inputs(1)]
    with torch.no_grad():
        acting = StoredComponent().policy(linear, *arguments)
        action = acting.sample()
        remembered = acting.remember(action)
        judged = StoredComponent().recall(linear, *arguments, remembered).judge(action, remembered)
        share = ((linear[0].weight[:, CONTEXT:] * arguments[2][0]).square().sum(-1) / arguments[3].square()).sum()
    error = judged.kl.std() / math.sqrt(len(judged.kl))
    assert abs(judged.kl.mean() - share) < 5 * error
    assert (judged.log_prob - remembered["log_prob"]).mean() < -0.1 * share


@pytest.mark.parametrize(
    ("noise", "error", "message"),
    [
        (torch.zeros(ROWS, LATENTS + 1).double(), ValueError, r"noise: expected shape \[64, 4\], got \[64, 5\]"),
        (torch.zeros(3, LATENTS).double(), ValueError, r"noise: expected shape \[64, 4\], got \[3, 4\]"),
        (torch.zeros(1, ROWS, LATENTS).double(), ValueError, "noise: expected 2 dimensions"),
        (torch.zeros(ROWS, LATENTS), TypeError, "noise: expected the dtype of latent_mean, float64, got float32"),
        ([0.0], TypeError, "noise: expected a tensor, got list"),
    ],
)
def test_a_noise_that_does_not_fit(noise, error, message):
    with pytest.raises(error, match=message):
        SharedNoise().policy(network(), *inputs(), noise=noise)


def test_the_noise_is_drawn_anew_unless_it_is_given():
    actor, arguments = network(), inputs()
    first, second = (SharedNoise().policy(actor, *arguments) for _ in range(2))
    assert not torch.equal(first.noise, second.noise)
    assert torch.equal(SharedNoise().policy(actor, *arguments, noise=first.noise).mean, first.mean)
