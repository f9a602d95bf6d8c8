"""All diagnostics of one checkpoint, one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from p3kernels import diagnostics
from p3kernels.diagnostics import LatentPolicy
from trainer.config.commands import DiagnoseConfig
from trainer.diagnosis.rows import closed_form_estimators, efficiency_rows, fidelity_rows, gradient_rows
from trainer.diagnosis.states import Subject


@dataclass(frozen=True)
class Sizes:
    """How much of everything; what decides the time."""

    states: int = DiagnoseConfig.states
    """Kept of a rollout, and those of data efficiency."""
    steps: int = 96
    """Control steps of the rollout."""
    kl_states: int = 512
    kl_reference: int = 1000
    kl_counts: tuple[int, ...] = (1, 2, 5, 10, 15, 20, 30, 50, 100)
    moment_states: int = 256
    moment_samples: int = 1000
    linearity_states: int = 16
    test_states: int = 32
    test_samples: tuple[int, ...] = (100, 500, 2000)
    """Latents of a Shapiro–Wilk test; the middle one is the one shown by action."""
    gradient_states: int = 128
    redraws: int = 24
    fidelity_redraws: int = 48
    fidelity_reference: int = 2000
    noise_counts: tuple[int, ...] = (1, 2, 4, 8, 16)


QUICK = Sizes(
    states=128,
    steps=16,
    kl_states=64,
    kl_reference=200,
    moment_states=32,
    moment_samples=200,
    linearity_states=2,
    test_states=4,
    test_samples=(50, 100, 200),
    gradient_states=32,
    redraws=6,
    fidelity_redraws=4,
    fidelity_reference=50,
    noise_counts=(1, 4),
)


@dataclass(frozen=True)
class Summary:
    """What D_eff must be read with."""

    trained_with: str
    latent_share: float
    """Σv/σ²: variance of the actions by the latent over that of the exploration, summed over actions."""
    latent_std: float
    """Mean posterior std."""
    action_std: float
    """Mean exploration std."""
    active_latents: int
    latents: int
    jacobian: float
    """Mean ‖J‖_F of the actor in its latent."""


@dataclass(frozen=True)
class Diagnosis:
    """Everything measured on one checkpoint."""

    summary: Summary
    data_efficiency: dict[str, diagnostics.DataEfficiency]
    kl: diagnostics.KlScan
    variance_gap: diagnostics.VarianceGap
    cloud: diagnostics.ActionCloud
    correlation: diagnostics.Correlation
    linearity: dict[str, diagnostics.Linearity]
    gaussianity: dict[str, diagnostics.Gaussianity]
    """By the number of samples of a test."""
    gradient_noise: dict[str, diagnostics.GradientNoise]
    gradient_fidelity: dict[str, diagnostics.GradientFidelity]
    noise_scaling: diagnostics.NoiseScaling
    seconds: dict[str, float]


def diagnose(
    subject: Subject,
    sizes: Sizes,
    *,
    clip: float,
    seed: int,
    say: Callable[[str], None],
    pair: tuple[int, int] | None = None,
) -> Diagnosis:
    """Runs every diagnostic on the states of `subject`.

    Args:
        subject: What was gathered of a checkpoint.
        sizes: How much of everything.
        clip: PPO's ε in the run.
        seed: Seed of everything that is drawn.
        say: Called with a line before each diagnostic.
        pair: The two actions to show as a scatter; None to choose them.
    """
    estimators = closed_form_estimators()
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def begin(name: str) -> None:
        nonlocal started
        now = time.perf_counter()
        if seconds:
            seconds[list(seconds)[-1]] = now - started
        started, seconds[name] = now, 0.0
        say(name)

    begin("data efficiency")
    efficiency = {
        name: diagnostics.data_efficiency(row.estimator, subject.states, clip=clip, repeats=row.repeats, seed=seed)
        for name, row in efficiency_rows().items()
    }
    begin("KL scan")
    old, new = (_first(policy, sizes.kl_states) for policy in (subject.old, subject.new))
    kl = diagnostics.kl_scan(
        old, new, estimators, counts=sizes.kl_counts, reference_samples=sizes.kl_reference, seed=seed
    )
    begin("variance gap")
    some = _first(subject.states, sizes.moment_states)
    gap = diagnostics.variance_gap(estimators, some, num_samples=sizes.moment_samples, seed=seed)
    cloud = diagnostics.action_cloud(estimators, some, actions=pair, seed=seed)
    begin("correlation")
    correlation = diagnostics.correlation(estimators, some, num_samples=sizes.moment_samples, seed=seed)
    begin("latent linearity")
    few = _first(subject.states, sizes.linearity_states)
    linearity = {radius: diagnostics.linearity(few, radius=radius, seed=seed) for radius in ("unit", "typical")}
    begin("Shapiro-Wilk tests")
    tested = _first(subject.states, sizes.test_states)
    gaussianity = {
        str(count): diagnostics.gaussianity(tested, num_samples=count, seed=seed) for count in sizes.test_samples
    }
    begin("gradient noise")
    batch = _first(subject.old, sizes.gradient_states)
    actions, advantages = (x[: sizes.gradient_states] for x in (subject.actions, subject.advantages))
    noise = {
        name: diagnostics.gradient_noise(
            row.estimator,
            *batch,
            actions,
            advantages,
            clip=clip,
            redraws=sizes.redraws if row.drawn else 2,
            seed=seed,
        )
        for name, row in gradient_rows().items()
    }
    begin("gradient fidelity")
    fidelity = {
        name: diagnostics.gradient_fidelity(
            row.estimator,
            *batch,
            clip=clip,
            redraws=sizes.fidelity_redraws,
            reference_samples=sizes.fidelity_reference,
            seed=seed,
        )
        for name, row in fidelity_rows().items()
    }
    begin("scaling of the gradient noise")
    scaling = diagnostics.noise_scaling(batch, advantages, counts=sizes.noise_counts, redraws=sizes.redraws, seed=seed)
    seconds[list(seconds)[-1]] = time.perf_counter() - started
    jacobian = diagnostics.actor_jacobian(some.actor, some.context, some.latent_mean)
    return Diagnosis(
        summary=Summary(
            trained_with=subject.trained_with,
            latent_share=gap.latent_share,
            latent_std=subject.states.latent_std.mean().item(),
            action_std=subject.states.action_std.mean().item(),
            active_latents=subject.active_latents,
            latents=subject.states.latent_mean.shape[1],
            jacobian=torch.linalg.matrix_norm(jacobian).mean().item(),
        ),
        data_efficiency=efficiency,
        kl=kl,
        variance_gap=gap,
        cloud=cloud,
        correlation=correlation,
        linearity=linearity,
        gaussianity=gaussianity,
        gradient_noise=noise,
        gradient_fidelity=fidelity,
        noise_scaling=scaling,
        seconds=seconds,
    )


def _first(policy: LatentPolicy, rows: int) -> LatentPolicy:
    """The states are in random order: the first are as good as any."""
    context, mean, std = (tensor[:rows] for tensor in (policy.context, policy.latent_mean, policy.latent_std))
    return LatentPolicy(policy.actor, context, mean, std, policy.action_std)
