"""Trained actors on states that they met, for tests/estimators/test_covariance_matching.py and docs/derivation.md.

python tests/helpers/trained_actor.py write RUN/model_150.pt mm-1.npz     network, contexts and latents, in float16
python tests/helpers/trained_actor.py compare mm-1.npz mm-2.npz ...       the estimators' moments there against samples

A line of the table is of the actors whose file names differ in what follows the last "-" alone: the seeds of a method.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from p3kernels import CovarianceMatching, MomentMatching
from p3kernels.estimators import CorrelatedGaussianPolicy, GaussianPolicy

SAMPLES = 10_000
STATES = 8


@dataclass(frozen=True)
class TrainedActor:
    """An actor, its inputs in eight states, and the moments of 10,000 sampled actions in each; float64."""

    network: nn.Sequential
    inputs: tuple[Tensor, Tensor, Tensor]
    """Context [8, C], latent mean and std [8, Z]."""
    action_std: Tensor
    """[A]: of the exploration it was trained with."""
    mean: Tensor
    """[8, A]."""
    covariance: Tensor
    """[8, A, A]: the latent's part alone."""

    def policy(self, estimator: CovarianceMatching | MomentMatching) -> GaussianPolicy | CorrelatedGaussianPolicy:
        """The estimator's, without exploration."""
        return estimator.policy(self.network, *self.inputs, torch.zeros_like(self.action_std))

    def share_of_variance(self, covariance: Tensor) -> Tensor:
        """[8]: total variance over the samples'."""
        return total(covariance) / total(self.covariance)

    def worst_correlation(self, covariance: Tensor) -> float:
        """Largest error of any pair of actions in any state."""
        return (correlation(covariance) - correlation(self.covariance)).abs().max().item()


def correlation(covariance: Tensor) -> Tensor:
    """[B, A, A] of covariances [B, A, A]."""
    std = covariance.diagonal(dim1=1, dim2=2).sqrt()
    return covariance / (std[:, :, None] * std[:, None])


def total(covariance: Tensor) -> Tensor:
    """[B]: the traces."""
    return covariance.diagonal(dim1=1, dim2=2).sum(1)


def load(path: Path) -> TrainedActor:
    """The actor of a file that `write` wrote, sampled with a seed of its own."""
    arrays = {name: torch.from_numpy(value.astype(np.float64)) for name, value in np.load(path).items()}
    layers: list[nn.Module] = []
    for name in [name for name in arrays if name.endswith(".weight")]:
        linear = nn.Linear(*arrays[name].shape[::-1], dtype=torch.float64)
        linear.load_state_dict({"weight": arrays[name], "bias": arrays[name.replace("weight", "bias")]})
        layers += [linear, nn.ELU()]
    network = nn.Sequential(*layers[:-1]).requires_grad_(False)
    every = len(arrays["context"]) // STATES
    inputs = tuple(arrays[name][::every] for name in ("context", "latent_mean", "latent_std"))
    generator = torch.Generator().manual_seed(1)
    moments = []
    for context, mean, std in zip(*inputs, strict=True):
        latents = mean + std * torch.randn(SAMPLES, len(mean), generator=generator, dtype=torch.float64)
        actions = network(torch.cat([context.expand(SAMPLES, -1), latents], 1))
        moments.append((actions.mean(0), torch.cov(actions.t())))
    sampled = (torch.stack(part) for part in zip(*moments, strict=True))
    return TrainedActor(network, inputs, arrays["action_std"], *sampled)  # type: ignore[arg-type]


def write(checkpoint: Path, out: Path, environments: int = 8, steps: int = 60, every: int = 30) -> None:
    """Acts with sampled latents and keeps every 30th step."""
    from trainer.engines.mujoco.env import MujocoEnv
    from trainer.runs.policy import load_candidate
    from trainer.tasks import make_task

    torch.manual_seed(0)
    candidate = load_candidate(checkpoint)
    actor = candidate.actor
    env = MujocoEnv(make_task(candidate.config.task), environments, num_threads=1)
    contexts, means, stds = [], [], []
    with torch.inference_mode():
        observations = env.get_observations()
        for step in range(1, steps + 1):
            observations, *_ = env.step(actor.act_at_sample(observations))
            if step % every == 0:
                context, latent = actor.encode(observations)
                contexts.append(context)
                means.append(latent.mean)
                stds.append(latent.std)
    arrays = {"context": torch.cat(contexts), "latent_mean": torch.cat(means), "latent_std": torch.cat(stds)}
    arrays |= {"action_std": actor.action_std.detach(), **actor.mlp.state_dict()}
    np.savez_compressed(out, **{name: value.numpy().astype(np.float16) for name, value in arrays.items()})
    print(f"{out}: {checkpoint}, {out.stat().st_size / 1000:.0f} kB")


def compare(paths: list[Path]) -> None:
    """Lines of docs/derivation.md: lowest and highest share of the variance and worst correlation of a method."""
    methods: dict[str, list[Path]] = {}
    for path in paths:
        methods.setdefault(path.stem.rpartition("-")[0] or path.stem, []).append(path)
    estimators = (MomentMatching(), CovarianceMatching(), CovarianceMatching(transform="unscented"))
    for method, files in methods.items():
        actors = [load(path) for path in files]
        noise = torch.stack([(total(a.covariance) / a.action_std.square().mean()).mean() for a in actors])
        cells = [f"{method}, {len(actors)}", f"{noise.mean():.2g} ({noise.min():.2g}–{noise.max():.2g})"]
        for estimator in estimators:
            pairs = [(actor, actor.policy(estimator).covariance) for actor in actors]
            low, high = torch.cat([actor.share_of_variance(covariance) for actor, covariance in pairs]).aminmax()
            worst = max(actor.worst_correlation(covariance) for actor, covariance in pairs)
            cells.append(f"{low:.3f}–{high:.3f}, {worst:.2f}")
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["write", checkpoint, out]:
            write(Path(checkpoint), Path(out))
        case ["compare", _, *_]:
            compare([Path(path) for path in sys.argv[2:]])
        case _:
            raise SystemExit(__doc__)
