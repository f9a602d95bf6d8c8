"""A trained policy as one small file: weights, contract and settings, without what only its training needs.

Such a file is usable wherever a checkpoint is, and the package carries some: `p3 eval g1-flat` finds them by name.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.runs.checkpoint import check_weights, read_torch_file, write_torch_file
from trainer.runs.config_file import saved_config

FORMAT = "p3-policy"
VERSION = 1
"""Counted up whenever an older trainer could not use what a newer one wrote, or the other way round."""
KEYS = ("settings", "task", "method", "task_settings", "contract", "algorithm", "iter", "totals")
"""What a policy file holds, each as in a checkpoint; `settings` are those of its run."""
KEPT = ("actor_state_dict", "critic_state_dict", "p3_state")
"""What it holds of the algorithm: the critic is for trainings that begin with it, the state tells the estimator."""

_PRETRAINED = Path(__file__).parents[1] / "pretrained"


def pretrained() -> dict[str, Path]:
    """Name to file of the policies that come with the package."""
    return {path.stem: path for path in sorted(_PRETRAINED.glob("*.pt"))}


def is_policy(content: Any) -> bool:
    """Whether the content of a torch file is a policy, not a checkpoint."""
    return isinstance(content, dict) and content.get("format") == FORMAT


def write_policy(path: Path, content: dict[str, Any], config: TrainConfig) -> None:
    """Writes the policy of a checkpoint, in one piece.

    Args:
        path: The file.
        content: The checkpoint's.
        config: The settings of its run.

    Raises:
        ValueError: The checkpoint has no contract, so that nobody could say what the policy's columns mean.
        OSError: It could not be written.
    """
    if content.get("contract") is None:
        raise ValueError("CHECKPOINT: it was saved without a contract; expected one of version 0.1.0 or later")
    settings = json.loads(json.dumps(dataclasses.asdict(config), default=str))
    kept = {key: content.get(key) for key in KEYS if key not in ("settings", "algorithm")}
    kept_of_algorithm = {name: content["algorithm"][name] for name in KEPT}
    settings = settings | {"run_dir": None, "resume": False}
    write_torch_file(
        path, {"format": FORMAT, "version": VERSION, **kept, "settings": settings, "algorithm": kept_of_algorithm}
    )


def read_policy(path: Path) -> tuple[dict[str, Any], TrainConfig]:
    """The content of a policy file, and the settings that it was trained with.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is damaged, something else or of another version.
    """
    content = read_torch_file(path)
    if not is_policy(content):
        raise ValueError(f"{path}: a torch file, but not a policy that p3 pack wrote")
    if content.get("version") != VERSION:
        found = content.get("version")
        raise ValueError(f"{path}: a policy of version {found!r}; this trainer reads version {VERSION}")
    if missing := [key for key in KEYS if key not in content]:
        raise ValueError(f"{path}: a policy without {', '.join(missing)}")
    check_weights(path, content["algorithm"])
    try:
        return content, saved_config(content["settings"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: its settings cannot be used ({error})") from error
