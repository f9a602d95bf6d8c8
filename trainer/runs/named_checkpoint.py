"""What a CHECKPOINT argument names: a checkpoint, its content and the settings of its run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.algorithms.presets import filled, task_of
from trainer.config import ResolvedConfig
from trainer.config.names import did_you_mean
from trainer.runs.checkpoint import best_path, latest_checkpoint, load_checkpoint, read_torch_file
from trainer.runs.config_file import load_config
from trainer.runs.policy_file import is_policy, pretrained, read_policy
from trainer.tasks import TaskConfig


@dataclass(frozen=True)
class RunCheckpoint:
    """A checkpoint's file, its run's settings and its content."""

    path: Path
    config: ResolvedConfig
    content: dict[str, Any]
    choice: str = ""
    """Which one of a run directory it is, in one line; nothing where a file was named."""

    @property
    def name(self) -> str:
        """Run and file, as tables and figures call it; of a policy file its own name."""
        return self.path.stem if self.is_policy else f"{self.path.resolve().parent.name}/{self.path.stem}"

    @property
    def is_policy(self) -> bool:
        """Whether it is a policy file: weights, without optimiser, environments and random numbers."""
        return is_policy(self.content)

    @property
    def loaded(self) -> dict[str, bool] | None:
        """What `P3PPO.load` takes from it, in rsl_rl's form; None for everything."""
        return {"actor": True, "critic": True, "iteration": True} if self.is_policy else None

    @property
    def run_dir(self) -> Path:
        """The directory of its run."""
        return self.path.parent

    def output(self, name: str) -> Path:
        """Where a file or folder `name` that is made of it goes: into its run, of a policy file into this directory."""
        return Path(f"{self.path.stem}-{name}") if self.is_policy else self.run_dir / name

    @property
    def task(self) -> TaskConfig:
        """The task with the settings that the policy was trained with."""
        return task_of(self.config)


def find_checkpoint(source: str | Path, *, newest: bool = False) -> Path:
    """The checkpoint file that `source` names: itself, of a run directory `best.pt`, else the newest, or a policy file.

    This is the one place that knows what a CHECKPOINT argument may be.

    Args:
        source: A checkpoint file, a run directory, a policy file, or the name of a policy that the package carries.
        newest: Whether to take the newest checkpoint of a run directory, whatever its evaluations said.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It is something else.
    """
    path = Path(source)
    if not path.exists():
        return _carried(str(source))
    run_dir, file = (path, None) if path.is_dir() else (path.parent, path)
    if not (run_dir / "config.json").exists():
        if file is None:
            raise FileNotFoundError(f"CHECKPOINT: no config.json in {run_dir}; expected the directory of a run")
        if is_policy(read_torch_file(file)):
            return file
        load_checkpoint(file)  # says what else it is, if it is something else
        raise FileNotFoundError(f"CHECKPOINT: no config.json beside {file}; expected a file in the directory of a run")
    if file is None and not newest and best_path(run_dir).exists():
        file = best_path(run_dir)
    file = file or latest_checkpoint(run_dir)
    if file is None:
        raise FileNotFoundError(f"CHECKPOINT: no checkpoint in {run_dir}; expected the directory of a run")
    return file


def read_run_checkpoint(source: str | Path, *, newest: bool = False) -> RunCheckpoint:
    """The checkpoint that `source` names, as for `find_checkpoint`.

    Raises:
        FileNotFoundError: There is none.
        OSError: It may not be read.
        ValueError: It is damaged, foreign, of another version or of another task than its run.
    """
    file = find_checkpoint(source, newest=newest)
    if is_policy(read_torch_file(file)):
        content, config = read_policy(file)
        config = dataclasses.replace(config, task_settings=content["task_settings"])
        return RunCheckpoint(file, filled(config), content)
    config = load_config(file.parent / "config.json")
    content = load_checkpoint(file, config.task)
    if "task_settings" in content:  # those of the environment that it was trained in
        config = dataclasses.replace(config, task_settings=content["task_settings"])
    return RunCheckpoint(file, filled(config), content, _choice(Path(source), file, content))


def _carried(name: str) -> Path:
    """The file of a policy that the package carries."""
    known = pretrained()
    if name in known:
        return known[name]
    hint = did_you_mean(name, known)
    carried = f"; the package carries {', '.join(known)}" if known else ""
    raise FileNotFoundError(f"CHECKPOINT: no run directory, no file and no policy {name}{hint}{carried}")


def _choice(source: Path, file: Path, content: dict[str, Any]) -> str:
    """Which checkpoint of a run directory was taken, and why."""
    if source == file:
        return ""
    best = content.get("best")
    if file.name == best_path(source).name and best is not None:
        return f"{source}: best.pt, of iteration {content['iter']}, evaluated at {best['success']:.0%} success"
    return f"{source}: no best.pt (it comes with --eval-interval), so the newest: {file.name}"
