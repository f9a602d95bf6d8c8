"""The last checkpoints of a run on courses that no training saw, kept beside it as `judged.json`.

In a process of its own: `python -m trainer.study.judge RUN_DIR --iterations 380 390 400 410`. All difficulties run side
by side, and all checkpoints one after the other from the same beginning, at the latent's mean and sampled. A checkpoint
that was judged with the same settings is not judged again, so that it can be killed and go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from trainer.engines.mujoco.env import MujocoEnv
from trainer.evaluation.episodes import Episodes, run_episodes
from trainer.models.actor import LatentActor
from trainer.runs.checkpoint import checkpoint_iterations, checkpoint_path
from trainer.runs.directory import locked
from trainer.runs.files import replace_file
from trainer.runs.policy import action_of, load_candidate
from trainer.study.arms import Judging, Size
from trainer.study.plan import Run
from trainer.study.state import state_of
from trainer.study.versions import versions
from trainer.tasks import LocomotionTask, TaskConfig
from trainer.tasks.terrains import FLAT

FILE_NAME = "judged.json"
LATENTS = ("mean", "sample")
_VARIANTS = 8
"""Tiles of one terrain and difficulty, with different random stones."""

Judged = dict[str, dict[str, dict[str, dict[str, float]]]]
"""By iteration, latent, difficulty ("0.2") and the name of the number, such as "success"."""


def judged_iterations(run: Run, size: Size) -> tuple[int, ...]:
    """Iterations whose checkpoints are judged.

    Of a run that diverged they are the last ones of its own, and none at all where they are fewer than of other runs.
    """
    if state_of(run) != "diverged":
        return size.judged
    own = [iteration for iteration in checkpoint_iterations(run.path) if iteration >= run.first]
    count = size.judging.checkpoints
    return tuple(own[-count:]) if len(own) >= count else ()


def read_judged(run: Run, size: Size) -> Judged | None:
    """What was measured of the run's last checkpoints with these settings, or None where one is missing."""
    kept, iterations = _kept(run.path, size.judging), judged_iterations(run, size)
    if any(str(iteration) not in kept for iteration in iterations):
        return None
    return {str(iteration): kept[str(iteration)]["results"] for iteration in iterations}


def judging_seconds(run_dir: Path, judging: Judging) -> float:
    """Processor seconds that judging the run took in all."""
    return sum(one["processor_seconds"] for one in _kept(run_dir, judging).values())


def judged_with(run_dir: Path, judging: Judging) -> dict[str, str]:
    """Versions that judged the run's last checkpoint."""
    kept = _kept(run_dir, judging)
    return kept[max(kept, key=int)]["versions"] if kept else {}


def judge(run_dir: Path, iterations: Sequence[int], judging: Judging) -> None:
    """Judges these checkpoints of a run, and writes the file after each.

    Raises:
        FileNotFoundError: A checkpoint is not there.
        ValueError: It cannot be used.
    """
    kept: dict[str, Any] = _kept(run_dir, judging)
    env: MujocoEnv | None = None
    beginning: dict[str, Any] = {}
    for iteration in iterations:
        path = checkpoint_path(run_dir, iteration)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if kept.get(str(iteration), {}).get("sha256") == digest:
            continue
        began = time.process_time()
        candidate = load_candidate(path)
        if env is None:
            env = _environment(candidate.task, judging)
            beginning = env.state_dict()
        results: dict[str, dict[str, dict[str, float]]] = {}
        for latent in LATENTS:
            env.load_state_dict(beginning)
            if latent == "sample" and not _has_variance(candidate.actor, env):
                results[latent] = results["mean"]
                continue
            torch.manual_seed(judging.seed)
            episodes = run_episodes(action_of(candidate.actor, latent), env, judging.seconds)
            results[latent] = _by_difficulty(episodes, env, judging)
        kept[str(iteration)] = {
            "results": results,
            "sha256": digest,
            "versions": versions(),
            "processor_seconds": time.process_time() - began,
        }
        content = {"settings": _plain(judging), "checkpoints": kept}
        replace_file(run_dir / FILE_NAME, (json.dumps(content, indent=2) + "\n").encode())
        print(f"judged iteration {iteration}: {_told(results)}", flush=True)


def _environment(task: TaskConfig, judging: Judging) -> MujocoEnv:
    """Robots on the task's courses, `judging.episodes` at each difficulty; terrains in equal parts at each of them."""
    courses = tuple(name for name in task.terrains if name != FLAT)
    if not courses:
        raise ValueError(f"--task: {task.name} has no courses to be judged on")
    task = dataclasses.replace(
        task, terrains=courses, tile_variants=_VARIANTS, soft_until=0, episode_seconds=judging.seconds
    )
    count = judging.episodes * len(judging.difficulties)
    env = MujocoEnv(
        LocomotionTask(task),
        count,
        seed=judging.seed,
        num_threads=1,
        difficulty=judging.difficulties,
        auto_reset=False,
    )
    assert env.curriculum is not None
    env.curriculum.terrain_type[:] = torch.arange(count) % len(courses)
    env.begin_anew()
    return env


def _by_difficulty(episodes: Episodes, env: MujocoEnv, judging: Judging) -> dict[str, dict[str, float]]:
    assert env.curriculum is not None
    quantities = {
        "success": episodes.success.float(),
        "fell": episodes.fell.float(),
        "reward": episodes.reward,
        "total_reward": episodes.total_reward,
        "lifetime": episodes.lifetime,
        "distance": episodes.distance,
    }
    found = {}
    for index, difficulty in enumerate(judging.difficulties):
        rows = slice(index * judging.episodes, (index + 1) * judging.episodes)
        numbers = {name: values[rows].mean().item() for name, values in quantities.items()}
        kinds = env.curriculum.terrain_type[rows]
        for kind, name in enumerate(env.task.config.terrains):
            own = quantities["success"][rows][kinds == kind]
            if len(own):
                numbers[f"success/{name}"] = own.mean().item()
        found[f"{difficulty:g}"] = {name: round(value, 6) for name, value in numbers.items()}
    return found


def _told(results: dict[str, dict[str, dict[str, float]]]) -> str:
    return "; ".join(
        f"z {latent}: " + ", ".join(f"{numbers['success']:.0%} at {grade}" for grade, numbers in by_grade.items())
        for latent, by_grade in results.items()
    )


@torch.inference_mode()
def _has_variance(actor: LatentActor, env: MujocoEnv) -> bool:
    return bool(actor.encode(env.get_observations())[1].std.any())


def _plain(judging: Judging) -> dict[str, Any]:
    """What the numbers of one checkpoint depend on."""
    values = dataclasses.asdict(judging)
    del values["checkpoints"]
    return {**values, "difficulties": list(judging.difficulties)}


def _kept(run_dir: Path, judging: Judging) -> dict[str, Any]:
    """Checkpoints judged so far, with these settings."""
    try:
        content = json.loads((run_dir / FILE_NAME).read_text(encoding="utf-8"))
        return dict(content["checkpoints"]) if content["settings"] == _plain(judging) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def arguments(run: Run, size: Size) -> list[str]:
    """The command line of `main`."""
    judging = size.judging
    return [
        str(run.path),
        *("--iterations", *map(str, judged_iterations(run, size))),
        *("--difficulties", *(f"{difficulty:g}" for difficulty in judging.difficulties)),
        *("--episodes", str(judging.episodes), "--seconds", f"{judging.seconds:g}", "--seed", str(judging.seed)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs in the process that the study starts: judges a checkpoint."""
    default = Judging()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--iterations", type=int, nargs="+", required=True)
    parser.add_argument("--difficulties", type=float, nargs="+", default=list(default.difficulties))
    parser.add_argument("--episodes", type=int, default=default.episodes)
    parser.add_argument("--seconds", type=float, default=default.seconds)
    parser.add_argument("--seed", type=int, default=default.seed)
    options = parser.parse_args(argv)
    judging = Judging(
        tuple(options.difficulties), options.episodes, options.seconds, options.seed, len(options.iterations)
    )
    try:
        with locked(options.run_dir):
            judge(options.run_dir, options.iterations, judging)
    except (ValueError, OSError) as error:
        print(f"judging: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
