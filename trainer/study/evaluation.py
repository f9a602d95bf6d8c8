"""A trained run on fresh episodes at a fixed difficulty, kept beside it as `eval.json` so that it is done once.

In a process of its own: `python -m trainer.study.evaluation RUN_DIR`.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import evaluate
from trainer.runs.checkpoint import newest_readable
from trainer.runs.directory import locked
from trainer.runs.files import replace_file
from trainer.runs.policy import action_of, load_candidate
from trainer.study.plan import EvalSettings, Run
from trainer.study.state import final_checkpoint
from trainer.study.versions import versions
from trainer.tasks import LocomotionTask

FILE_NAME = "eval.json"
LATENTS = ("mean", "sample")

Numbers = dict[str, dict[str, float]]
"""By latent, then by the name of the quantity, as in `trainer.evaluation.episodes.Evaluation`."""


def read_evaluation(run: Run, settings: EvalSettings) -> Numbers | None:
    """What was measured of the run's final checkpoint with these settings, or None."""
    try:
        kept = json.loads((run.path / FILE_NAME).read_text(encoding="utf-8"))
        checkpoint = final_checkpoint(run) if kept["settings"] == dataclasses.asdict(settings) else None
        if checkpoint is None or kept["sha256"] != _digest(checkpoint):
            return None
        return {latent: dict(kept["results"][latent]) for latent in LATENTS}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def measure(run_dir: Path, settings: EvalSettings) -> Numbers:
    """Evaluates a run's newest checkpoint: the same episodes for every run, at the latent's mean and sampled.

    Raises:
        FileNotFoundError: No run or no checkpoint there.
        ValueError: It cannot be used.
    """
    path, _, _ = newest_readable(run_dir)
    candidate = load_candidate(path)
    actor = candidate.actor
    results: Numbers = {}
    for latent in LATENTS:
        torch.manual_seed(settings.seed)
        env = MujocoEnv(
            LocomotionTask(candidate.task),
            settings.episodes,
            seed=settings.seed,
            num_threads=1,
            difficulty=settings.difficulty,
        )
        if latent == "sample" and not _has_variance(actor, env):
            results[latent] = dict(results["mean"])
            continue
        result = evaluate(action_of(actor, latent), env, settings.seconds)
        results[latent] = {key: float(value) for key, value in dataclasses.asdict(result).items()}
    content: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "checkpoint": path.name,
        "sha256": _digest(path),
        "versions": versions(),
        "results": results,
    }
    replace_file(run_dir / FILE_NAME, (json.dumps(content, indent=2) + "\n").encode())
    return results


@torch.inference_mode()
def _has_variance(actor: Any, env: MujocoEnv) -> bool:
    return bool(actor.encode(env.get_observations())[1].std.any())


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def arguments(run_dir: Path, settings: EvalSettings) -> list[str]:
    """The command line of `main`."""
    options = [text for key, value in dataclasses.asdict(settings).items() for text in (f"--{key}", str(value))]
    return [str(run_dir), *options]


def main(argv: Sequence[str] | None = None) -> int:
    """What the study starts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--difficulty", type=lambda text: None if text == "None" else float(text), default=0.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1000)
    options = parser.parse_args(argv)
    settings = EvalSettings(options.difficulty, options.seconds, options.episodes, options.seed)
    try:
        with locked(options.run_dir):
            results = measure(options.run_dir, settings)
    except (ValueError, OSError) as error:
        print(f"evaluation: {error}", file=sys.stderr)
        return 2
    for latent, numbers in results.items():
        print(f"evaluated, z {latent}: " + ", ".join(f"{key} {value:.4g}" for key, value in numbers.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
