"""A task in Isaac Lab, as the trainer's environment."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.isaaclab.managed_env import ManagedTaskEnv
from trainer.engines.managed.env import ManagedEnv
from trainer.tasks.state import RobotState


class IsaacLabEnv(ManagedEnv):
    """E environments of one task in PhysX.

    Args:
        simulation: Made by `gymnasium.make`; begins anew here, at the random numbers of its seed.
        auto_reset: Whether its terminations begin new episodes.
    """

    def __init__(self, simulation: ManagedTaskEnv, *, auto_reset: bool = True) -> None:
        self.simulation = simulation
        super().__init__(simulation.managed.running, auto_reset=auto_reset)
        self.generator.set_state(simulation.beginning)  # the managers have asked for episodes to find their sizes
        simulation.reset()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""
        reward = self.simulation.step(actions.detach())[1]
        outcome = self.simulation.managed.last_outcome
        assert outcome is not None
        return self.running.observations, reward.clone(), outcome.done, self.simulation.task_extras

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues: episodes and robots, not PhysX's contacts."""
        data = self.simulation.reader.robot.data
        robots = {
            "root": torch.cat([data.root_link_pose_w, data.root_link_vel_w], -1),
            "joint_pos": data.joint_pos.clone(),
            "joint_vel": data.joint_vel.clone(),
            "tile_of": self.running.tile_of.clone(),
            "dynamics": self.simulation.reader.dynamics.clone(),
        }
        state = {name: value.clone() for name, value in vars(self.state).items()}
        return {"engine": robots, "state": state, **self.running.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of this engine, of the same task, size and seed.

        Raises:
            ValueError: It is of another size or of another engine.
        """
        engine = state.get("engine", {})
        if "dynamics" not in engine or len(engine["dynamics"]) != self.num_envs:
            raise ValueError(f"environment: expected the state of {self.num_envs} environments of Isaac Lab")
        robots = {name: value.to(self.device) for name, value in engine.items()}
        robot = self.simulation.reader.robot
        with torch.inference_mode():  # as rollouts are: what Isaac Lab has made there can be written to nowhere else
            robot.write_root_link_state_to_sim(robots["root"])
            robot.write_joint_state_to_sim(robots["joint_pos"], robots["joint_vel"])
            self.simulation.reader.write_dynamics(torch.arange(self.num_envs, device=self.device), robots["dynamics"])
            self.running.tile_of.copy_(robots["tile_of"])
            # As it was: sensors still have what they measured where the robots come from.
            robot_state = RobotState(
                **{name: value.to(self.device, copy=True) for name, value in state["state"].items()}
            )
            self.running.load_state_dict(state, robot_state, robots["tile_of"])
            self.simulation.episode_length_buf = self.episode.step.clone()
