"""Writes the trained actor that tests/test_covariance_matching.py needs: `python tests/make_trained_actor.py RUN OUT`.

A checkpoint's policy network, and context and latent of observations from its own rollouts with sampled latents, as
float16 in an .npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

from trainer.env import LocomotionEnv
from trainer.evaluate import load_candidate
from trainer.tasks import make_task


def main(checkpoint: Path, out: Path, environments: int = 8, steps: int = 60, every: int = 30) -> None:
    """Acts with sampled latents and keeps every 30th step."""
    torch.manual_seed(0)
    candidate = load_candidate(checkpoint)
    actor = candidate.actor
    env = LocomotionEnv(make_task(candidate.config.task), environments, num_threads=1)
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
