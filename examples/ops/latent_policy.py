"""A policy on a latent distribution, in a plain torch loop: likelihoods with the latent marginalised out.

An encoder says what it believes about a hidden value, with a mean and a standard deviation, and an actor acts on it.
The policy is the actor's action distribution averaged over that belief. Here it is fitted to demonstrations; the same
`log_prob` is what PPO's ratio needs.

    python examples/ops/latent_policy.py
"""

from __future__ import annotations

import torch

import p3kernels

ESTIMATORS = {
    "moment matching": p3kernels.MomentMatching(),
    "covariance matching": p3kernels.CovarianceMatching(),
    "Monte Carlo, N = 15": p3kernels.MonteCarlo(num_samples=15),
    "one sample (a VAE's)": p3kernels.MonteCarlo(num_samples=1),
}


def main(steps: int = 300) -> None:
    """Fits by each estimator and judges all of them by the same likelihood, Monte Carlo with 512 samples."""
    torch.manual_seed(0)
    observation = torch.rand(2048, 1) * 6 - 3
    # A demonstrator that goes one of two ways, more surely so away from zero
    side = torch.where(torch.rand_like(observation) < torch.sigmoid(2 * observation), 1.0, -1.0)
    action = side + 0.2 * torch.randn_like(observation)
    print(f"log-likelihood of a demonstration, after {steps} steps by each estimator")
    for name, estimator in ESTIMATORS.items():
        print(f"  {name:<22}{_fit(estimator, observation, action, steps):8.3f}")


def _fit(
    estimator: p3kernels.estimators.Estimator, observation: torch.Tensor, action: torch.Tensor, steps: int
) -> float:
    torch.manual_seed(1)
    encoder = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.ELU(), torch.nn.Linear(32, 4))
    actor = torch.nn.Sequential(torch.nn.Linear(1 + 2, 32), torch.nn.ELU(), torch.nn.Linear(32, 1))
    log_std = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([*encoder.parameters(), *actor.parameters(), log_std], lr=1e-2)

    def policy(by: p3kernels.estimators.Estimator) -> p3kernels.estimators.Policy:
        latent_mean, log_std_latent = encoder(observation).chunk(2, -1)
        return by.policy(actor, observation, latent_mean, log_std_latent.exp(), log_std.exp())

    for _ in range(steps):
        loss = -policy(estimator).log_prob(action).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return policy(p3kernels.MonteCarlo(num_samples=512)).log_prob(action).mean().item()


if __name__ == "__main__":
    main()
