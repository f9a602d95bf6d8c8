"""mjlab's runner with the trainer's checkpoints: what either trains, the other and `p3 eval` and `p3 play` can load."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from mjlab.rl import MjlabOnPolicyRunner

from trainer.algorithms import parse_method
from trainer.algorithms.presets import resolve
from trainer.config import ModelConfig, PpoConfig, ResolvedConfig, TrainConfig
from trainer.engines.mjlab.terms import walk
from trainer.runs.checkpoint import load_checkpoint, save_checkpoint
from trainer.runs.config_file import save_config
from trainer.tasks.settings import plain
from trainer.tasks.symmetry import TaskSymmetry


class P3Runner(MjlabOnPolicyRunner):
    """rsl_rl's loop; checkpoints have the trainer's format, with the terrain levels, and its config.json beside them.

    Args:
        env: mjlab's, wrapped for rsl_rl.
        train_cfg: A `P3AgentCfg` as a dict.
        log_dir: Where everything goes; None for nowhere.
        device: Device of the networks.
    """

    def __init__(self, env: Any, train_cfg: dict[str, Any], log_dir: str | None = None, device: str = "cpu") -> None:
        self._running = walk(env.unwrapped).running
        if train_cfg["algorithm"].get("mirror_share"):
            env.symmetry = TaskSymmetry(self._running.task)
        given = {name: value for name, value in train_cfg["actor"].items() if value is not None}
        super().__init__(env, {**train_cfg, "actor": given}, log_dir, device)

    def save(self, path: str, infos: dict[str, Any] | None = None) -> None:
        """Writes a checkpoint, and the settings that it belongs to."""
        settings = Path(path).with_name("config.json")
        if not settings.exists():
            save_config(self._config(settings.parent), settings)
        curriculum = self._running.curriculum
        content = {
            "task": self.cfg["task"],
            "method": self.cfg["algorithm"]["method"],
            "task_settings": plain(self._running.task.config),
            "contract": self._running.task.contract.to_dict(),
            "algorithm": self.alg.save(),
            "environment": {
                "curriculum": {} if curriculum is None else curriculum.state_dict(),
                "steps": torch.tensor(self._running.steps),
                "common_step_counter": self.env.unwrapped.common_step_counter,
            },
            "torch_rng": torch.get_rng_state(),
            "iter": self.alg.iteration,  # done, not begun: rsl_rl would repeat one on resume
            "totals": {},
            "switched_at": None,
            "trouble": 0,
            "finished": {},
        }
        save_checkpoint(Path(path), content)
        if self.cfg["upload_model"]:
            self.logger.save_model(path, self.current_learning_iteration)

    def load(
        self, path: str, load_cfg: dict[str, Any] | None = None, strict: bool = True, map_location: str | None = None
    ) -> dict[str, Any]:
        """Continues from a checkpoint of this runner; of one of `p3 train`, takes over all but the robots' state.

        Raises:
            ValueError: It is of another task or of networks of other sizes, or not a checkpoint of the trainer.
        """
        content = load_checkpoint(Path(path), self.cfg["task"])
        try:
            continues = self.alg.load(content["algorithm"], load_cfg, strict)
        except ValueError as error:  # which names the layer
            raise ValueError(
                f"{path}: of networks of other sizes than the agent's, which are the paper preset's (`p3 play` and"
                " `p3 eval` take those of the run)"
            ) from error
        if continues:
            self.current_learning_iteration = content["iter"]
        environment, curriculum = content["environment"], self._running.curriculum
        self.env.unwrapped.common_step_counter = environment.get("common_step_counter", 0)
        positions = environment["curriculum"].get("position")
        # Another number of environments, such as a viewer's few, begins where it begins.
        if curriculum is not None and positions is not None and len(positions) == len(curriculum.position):
            self._running.steps = int(environment.get("steps", 0))
            curriculum.load_state_dict(environment["curriculum"])
            with torch.inference_mode(self._running.state.root_pos.is_inference()):  # as the rollout before it was
                self.env.reset()
        return {}

    def _config(self, run_dir: Path) -> ResolvedConfig:
        """The settings as `p3 train` would have them."""
        agent, algorithm = self.cfg, self.cfg["algorithm"]
        ppo, model = (
            {option.name: given[option.name] for option in dataclasses.fields(kind) if option.name in given}
            for kind, given in ((PpoConfig, algorithm), (ModelConfig, agent["actor"]))
        )
        return resolve(
            TrainConfig(
                task=agent["task"],
                task_settings=plain(self._running.task.config),
                method=algorithm["method"],
                engine="mjlab",
                device=str(self.device),
                preset="paper",
                num_envs=self.env.num_envs,
                iterations=agent["max_iterations"],
                switch_at=algorithm["switch_at"],
                switch_on_plateau=algorithm["switch_at"] is None and parse_method(algorithm["method"]).changes > 0,
                plateau_window=algorithm["plateau_window"],
                seed=agent["seed"],
                run_dir=run_dir,
                save_interval=agent["save_interval"],
                ppo=PpoConfig(**{**ppo, "num_steps_per_env": agent["num_steps_per_env"]}),
                model=ModelConfig(**model),
            )
        )
