r"""Trains in Isaac Lab: starts Isaac Sim first, then goes the way of Isaac Lab's own train script with our trainer.

    python -m trainer.engines.isaaclab.train --task P3-Parkour-G1-v0 --headless \
        agent.method=p3 agent.run_dir=runs/parkour env.scene.num_envs=4096

`agent.*` are the settings of `p3 train`, those of the task among them (`'agent.set=["rewards.progress=2.0"]'`), `env.*`
those of `env_cfg.py`, both by Hydra; the rest is Isaac Sim's.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.engines.isaaclab.env_cfg import TaskEnvCfg
    from trainer.tasks.locomotion import TaskConfig

PROG = "python -m trainer.engines.isaaclab.train"
_NOT_INSTALLED = """Isaac Lab 2.3.2 with Isaac Sim 5.1 is not installed here ({error}).
It needs Linux, Python 3.11 and an NVIDIA GPU:
    pip install 'p3kernels[isaaclab]', with the package index that Isaac Sim's installation guide names
To train without it: p3 train --engine mujoco"""
_HYDRA = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=none")
"""The run directory has its own record of the settings; Hydra shall not begin another."""


def main(arguments: Sequence[str]) -> int:
    """Trains as the command line says.

    Returns:
        The exit code of `trainer.commands.train_run.run`; 2 where Isaac Sim is not installed.
    """
    parser = argparse.ArgumentParser(prog=PROG, description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--task", default="P3-Parkour-G1-v0", help="P3-Parkour-G1-v0 (default) or P3-Flat-G1-v0")
    try:
        from isaaclab.app import AppLauncher  # noqa: PLC0415  there may be none
    except ImportError as error:
        print(f"{PROG}: {_NOT_INSTALLED.format(error=error)}", file=sys.stderr)
        return 2
    AppLauncher.add_app_launcher_args(parser)
    options, overrides = parser.parse_known_args(list(arguments))
    app = AppLauncher(options).app
    try:
        return _train(options.task, options.device, overrides)
    finally:
        app.close()


def _train(task_id: str, device: str, overrides: Sequence[str]) -> int:
    """What has to wait for the simulator: almost everything of Isaac Lab asks for it while it is imported."""
    from isaaclab_tasks.utils.hydra import hydra_task_config  # noqa: PLC0415

    import trainer.engines.isaaclab.tasks  # noqa: F401, PLC0415

    codes: list[int] = []

    def run(env_cfg: TaskEnvCfg, settings: dict[str, Any]) -> None:
        codes.append(train(task_id, device, env_cfg, settings))

    sys.argv = [PROG, *overrides, *_HYDRA]  # Hydra reads them there
    with_overrides: Callable[[], None] = hydra_task_config(task_id, "p3_cfg_entry_point")(run)
    with_overrides()
    return codes[0] if codes else 2


def train(task_id: str, device: str, env_cfg: TaskEnvCfg, settings: dict[str, Any]) -> int:
    """Trains on an environment of `env_cfg` with the settings of a `TrainConfig`; the simulator is running.

    The number of environments is `env_cfg`'s unless `settings` have one; seed and device are the same for both.
    """
    import gymnasium  # noqa: PLC0415

    from trainer.commands.train_run import run  # noqa: PLC0415
    from trainer.engines.isaaclab.env import IsaacLabEnv  # noqa: PLC0415
    from trainer.engines.isaaclab.env_cfg import take_settings  # noqa: PLC0415
    from trainer.engines.isaaclab.managed_env import ManagedTaskEnv  # noqa: PLC0415
    from trainer.runs.config_file import config_of  # noqa: PLC0415

    settings = {**settings, "device": device, "num_envs": settings["num_envs"] or env_cfg.scene.num_envs}

    def make_env(
        engine: str, task: TaskConfig, num_envs: int, *, seed: int, device: str, num_threads: int | None
    ) -> IsaacLabEnv:
        take_settings(env_cfg, task)
        env_cfg.scene.num_envs, env_cfg.seed, env_cfg.sim.device = num_envs, seed, device
        simulation = gymnasium.make(task_id, cfg=env_cfg).unwrapped
        assert isinstance(simulation, ManagedTaskEnv)
        stack.callback(simulation.close)
        return IsaacLabEnv(simulation)

    with contextlib.ExitStack() as stack:
        return run(config_of(settings), PROG, make_env)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
