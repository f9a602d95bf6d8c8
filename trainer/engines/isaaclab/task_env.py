"""A task in Isaac Lab, as the trainer's environment."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.isaaclab.env import ManagedTaskEnv
from trainer.env import TaskEnv


class IsaacLabEnv(TaskEnv):
    """E environments of one task in PhysX.

    Args:
        simulation: Made by `gymnasium.make`; begins anew here.
    """

    def __init__(self, simulation: ManagedTaskEnv) -> None:
        self.simulation = simulation
        super().__init__(simulation.managed.running, auto_reset=True)
        simulation.reset()

    @property
    def episode_length_buf(self) -> Tensor:
        """[E]: steps of the running episodes."""
        return self.simulation.episode_length_buf

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.simulation.episode_length_buf = value.to(torch.int64)
        self.episode.step = self.simulation.episode_length_buf.clone()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""
        _, reward, terminated, timed_out, _ = self.simulation.step(actions.detach())
        return self.running.observations, reward.clone(), terminated | timed_out, self.simulation.task_extras

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues: episodes and robots, not PhysX's contacts."""
        data = self.simulation.reader.robot.data
        robots = {
            "root": torch.cat([data.root_link_pose_w, data.root_link_vel_w], -1),
            "joint_pos": data.joint_pos.clone(),
            "joint_vel": data.joint_vel.clone(),
            "tile_of": self.running.tile_of.clone(),
        }
        return {"engine": robots, **self.running.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of this engine, of the same task, size and seed."""
        robots = {name: value.to(self.device) for name, value in state["engine"].items()}
        robot = self.simulation.reader.robot
        with torch.inference_mode():  # as rollouts are: what Isaac Lab has made there can be written to nowhere else
            robot.write_root_link_state_to_sim(robots["root"])
            robot.write_joint_state_to_sim(robots["joint_pos"], robots["joint_vel"])
            self.running.tile_of.copy_(robots["tile_of"])
            self.running.load_state_dict(state, self.simulation.read(), robots["tile_of"])
            self.simulation.episode_length_buf = self.episode.step.clone()
