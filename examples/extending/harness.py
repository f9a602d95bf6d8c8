"""An engine of one's own: robots that hang in a harness, so that their motors move joints and nothing else moves."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.env import TaskEnv
from trainer.tasks import LocomotionTask, TaskConfig, find_task
from trainer.tasks.locomotion import SCAN_SIZE
from trainer.tasks.running import RunningTask
from trainer.tasks.state import RobotState

PHYSICS_STEPS = 4


class HarnessEnv(TaskEnv):
    """E environments of a task on the plane; each joint turns its own rotor, the trunk stays where it began."""

    def __init__(self, task: LocomotionTask, num_envs: int, *, seed: int = 0, auto_reset: bool = True) -> None:
        super().__init__(RunningTask(task, num_envs, seed=seed), auto_reset=auto_reset)
        motors = task.config.robot.motors
        self._stiffness = torch.tensor([motor.stiffness for motor in motors])
        self._damping = torch.tensor([motor.damping for motor in motors])
        self._effort = torch.tensor([motor.effort for motor in motors])
        self._inertia = torch.tensor([motor.armature for motor in motors])
        self.begin_anew()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]: the order is the task's, only the physics is ours."""
        running = self.running
        targets = running.act(actions)
        running.draw_pushes()  # nobody can push what hangs, but the random numbers are those of every engine
        state = self._simulate(targets)
        return self._concluded(running.after_physics(state, torch.zeros(self.num_envs, dtype=torch.bool)))

    def begin_anew(self) -> None:
        """New episodes everywhere."""
        self._start(torch.arange(self.num_envs))

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues bit for bit."""
        return {
            "robots": {name: value.clone() for name, value in vars(self.state).items()},
            **self.running.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of the same task, size and seed."""
        robots = RobotState(**{name: value.clone() for name, value in state["robots"].items()})
        self.running.load_state_dict(state, robots, torch.zeros(self.num_envs, dtype=torch.int64))

    def _simulate(self, targets: Tensor) -> RobotState:
        """The robots a control step later: PD control at every physics step, damping implicit."""
        dt = self.task.config.control_dt / PHYSICS_STEPS
        values = {name: value.clone() for name, value in vars(self.state).items()}
        position, velocity = values["joint_pos"], values["joint_vel"]
        for _ in range(PHYSICS_STEPS):
            torque = (self._stiffness * (targets - position)).clamp(-self._effort, self._effort)
            velocity = (velocity + dt * torque / self._inertia) / (1.0 + dt * self._damping / self._inertia)
            position = position + dt * velocity
        values |= {"joint_pos": position, "joint_vel": velocity, "joint_torque": torque - self._damping * velocity}
        return RobotState(**values)

    def _start(self, env_ids: Tensor) -> None:
        """New episodes for env_ids [K]: the task says where, the engine puts robots there and tells their state."""
        start, robot, count = self.running.draw_start(env_ids), self.task.config.robot, len(env_ids)
        half, feet = 0.5 * start.yaw, len(robot.feet)
        none = torch.zeros(count)
        feet_pos = start.root_pos[:, None] - torch.tensor([0.0, 0.0, robot.standing_height])
        state = RobotState(
            root_pos=start.root_pos,
            root_quat=torch.stack([half.cos(), none, none, half.sin()], -1),
            root_lin_vel=torch.zeros(count, 3),
            root_ang_vel=torch.zeros(count, 3),
            joint_pos=start.joint_pos,
            joint_vel=torch.zeros_like(start.joint_pos),
            joint_torque=torch.zeros_like(start.joint_pos),
            foot_pos=feet_pos.expand(count, feet, 3).contiguous(),
            foot_vel=torch.zeros(count, feet, 3),
            foot_force=torch.zeros(count, feet, 3),
            body_contact=torch.zeros(count, dtype=torch.bool),
            scan=torch.zeros(count, SCAN_SIZE),
            foot_ground=torch.zeros(count, feet),
            sole_drop=torch.zeros(count, feet, len(robot.sole_points)),
            dynamics=start.dynamics,
        )
        self.running.begin(env_ids, state)


def make_env(
    engine: str, task: TaskConfig, num_envs: int, *, seed: int, device: str, num_threads: int | None
) -> TaskEnv:
    """What `trainer.commands.train_run.run` and `Runner` take in place of the engines that the trainer knows."""
    return HarnessEnv(LocomotionTask(task), num_envs, seed=seed)


if __name__ == "__main__":
    env = make_env("harness", find_task("g1-flat"), 4, seed=1, device="cpu", num_threads=None)
    for _ in range(50):
        observations, reward, done, extras = env.step(torch.zeros(4, env.num_actions))
    print("joints' largest departure from the stance", (env.state.joint_pos - env.task.default_pos).abs().max().item())
