"""Walking as commanded: observations, rewards, terminations and commands as functions of robot state and episode.

Nothing here knows an engine; `running.py` keeps the episodes, and an environment (`trainer/env.py`) brings an engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.contract import Contract
from trainer.tasks.interface import contract_of
from trainer.tasks.randomization import Dynamics, ObservationNoise, Range
from trainer.tasks.rewards import TERMS, RewardContext
from trainer.tasks.robots import RobotSpec, by_pattern
from trainer.tasks.rotation import gravity_in_body, rotate_inverse, wrap_angle, yaw_of
from trainer.tasks.scan import SCAN_COLUMNS, SCAN_ROWS
from trainer.tasks.state import Episode, RobotState

PROPRIO_TERMS = ("ang_vel", "gravity", "command", "joint_pos", "joint_vel", "action")
"""In this order; a task leaves out what its robot cannot sense."""
SCAN_SIZE = SCAN_ROWS * SCAN_COLUMNS


@dataclass(frozen=True)
class TaskConfig:
    """Everything that makes one locomotion task."""

    name: str
    robot: RobotSpec
    rewards: dict[str, float]
    """Term to weight; see `rewards.py`."""
    fall_penalty: float = 0.0
    """Subtracted once, when an episode ends by a fall."""
    progress_ramp: float = 0.0
    """Seconds of an episode over which the `progress` term comes in."""
    posture: dict[str, float] = field(default_factory=dict)
    """Joint pattern to weight in the posture term; others 0."""
    proprio: tuple[str, ...] = PROPRIO_TERMS
    history: int = 5
    control_dt: float = 0.02
    episode_seconds: float = 20.0
    command_x: Range = (0.0, 1.0)
    command_y: Range = (-0.3, 0.3)
    command_yaw: Range = (-0.5, 0.5)
    command_seconds: Range = (4.0, 8.0)
    standing_fraction: float = 0.1
    """Of commands that are zero."""
    keep_heading: bool = False
    """Yaw rate is commanded to hold the initial heading, as on a course."""
    terrains: tuple[str, ...] = ()
    """Empty: an endless plane."""
    num_levels: int = 6
    """Difficulty is level / (num_levels - 1)."""
    tile_variants: int = 2
    """Tiles of one terrain and level, with different random stones."""
    max_tilt: float = 0.6
    """Sine of the tilt that ends an episode."""
    min_height: float = 0.7
    """Root above the feet's ground, as a fraction of standing, below which an episode ends."""
    dynamics: Dynamics = field(default_factory=Dynamics)
    noise: ObservationNoise = field(default_factory=ObservationNoise)

    def __post_init__(self) -> None:
        for name in self.rewards:
            if name not in TERMS:
                raise ValueError(f"task {self.name}: no reward term {name!r}; the terms are {', '.join(TERMS)}")
        for name in self.proprio:
            if name not in PROPRIO_TERMS:
                raise ValueError(f"task {self.name}: no proprioception {name!r}; expected some of {PROPRIO_TERMS}")
        if self.num_levels < 2:
            raise ValueError(f"task {self.name}: num_levels must be at least 2, got {self.num_levels}")


class LocomotionTask:
    """A `TaskConfig` with its constants as tensors on a device; states, episodes and generators are there too."""

    def __init__(self, config: TaskConfig, device: torch.device | str = "cpu") -> None:
        self.config = config
        self.device = torch.device(device)
        robot = config.robot
        self.default_pos = self._tensor(robot.default_pos)
        self.action_scale = self._tensor(robot.action_scale)
        self._reward_weights = self._tensor(list(config.rewards.values()))[:, None]
        self.max_steps = round(config.episode_seconds / config.control_dt)
        self.reward_context = RewardContext(
            default_pos=self.default_pos,
            effort=self._tensor([motor.effort for motor in robot.motors]),
            posture_weight=self._tensor(by_pattern(robot.joint_names, config.posture, default=0.0)),
            standing_height=robot.standing_height,
            control_dt=config.control_dt,
            progress_ramp=config.progress_ramp,
        )
        sizes = {"ang_vel": 3, "gravity": 3, "command": 3}
        self.proprio_layout = {name: sizes.get(name, robot.num_joints) for name in config.proprio}
        noise = config.noise
        width = {"ang_vel": noise.ang_vel, "gravity": noise.gravity, "joint_pos": noise.joint_pos}
        width["joint_vel"] = noise.joint_vel
        self._noise = self._tensor([width.get(k, 0.0) for k, n in self.proprio_layout.items() for _ in range(n)])
        self._commands = self._tensor([config.command_x, config.command_y, config.command_yaw])
        ranges = config.dynamics
        rows = [ranges.friction, ranges.added_mass, ranges.com_xy, ranges.com_xy, ranges.com_z]
        self._dynamics = self._tensor(rows)

    def _tensor(self, values: Sequence[float] | Sequence[Range]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _uniform(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=self.device)

    @property
    def contract(self) -> Contract:
        """What a policy trained on this task assumes."""
        return contract_of(self.config)

    @property
    def num_actions(self) -> int:
        """A: one joint target an action."""
        return self.config.robot.num_joints

    @property
    def proprio_size(self) -> int:
        """P: 96 for the G1."""
        return sum(self.proprio_layout.values())

    def targets(self, action: Tensor) -> Tensor:
        """Joint targets [E, J] of action [E, A]."""
        return self.default_pos + self.action_scale * action

    def proprio(self, state: RobotState, episode: Episode) -> Tensor:
        """[E, P], without noise."""
        parts = {
            "ang_vel": state.root_ang_vel,
            "gravity": gravity_in_body(state.root_quat),
            "command": episode.command,
            "joint_pos": state.joint_pos - self.default_pos,
            "joint_vel": state.joint_vel,
            "action": episode.action,
        }
        return torch.cat([parts[name] for name in self.config.proprio], -1)

    def noisy(self, proprio: Tensor, generator: torch.Generator) -> Tensor:
        """[E, P] with the noise of the robot's sensors."""
        return proprio + self._noise * (2 * self._uniform(generator, *proprio.shape) - 1)

    def scan(self, state: RobotState) -> Tensor:
        """[E, S]: how far the terrain lies below where it would be under a robot standing, to ±1 m."""
        standing = self.config.robot.standing_height
        return (state.root_pos[:, 2:3] - standing - state.scan).clamp(-1.0, 1.0)

    def velocity(self, state: RobotState) -> Tensor:
        """[E, 3]: the root's linear velocity, body frame: what the encoder has to estimate."""
        return rotate_inverse(state.root_quat, state.root_lin_vel)

    def observe(self, state: RobotState, episode: Episode, generator: torch.Generator) -> dict[str, Tensor]:
        """The observation groups; `episode.history` must already hold the current proprioception."""
        scan = self.scan(state)
        noise = self.config.noise.scan * (2 * self._uniform(generator, *scan.shape) - 1)
        velocity = self.velocity(state)
        clean = self.proprio(state, episode)
        privileged = [
            clean,
            velocity,
            state.root_ang_vel,
            scan,
            state.foot_contact.float(),
            state.foot_pos[..., 2] - state.foot_ground,
            state.dynamics,
        ]
        if "joint_vel" not in self.config.proprio:
            privileged.append(state.joint_vel)
        return {
            "proprio": episode.history[:, -1],
            "history": episode.history.flatten(1),
            "extero": scan + noise,
            "velocity": velocity,
            "critic": torch.cat(privileged, -1),
        }

    def reward_rates(self, state: RobotState, episode: Episode) -> Tensor:
        """[R, E]: the terms before their weights, rates per second, in the order of `config.rewards`."""
        return torch.stack([TERMS[name](state, episode, self.reward_context) for name in self.config.rewards])

    def weighted(self, rates: Tensor) -> Tensor:
        """[R, E]: `reward_rates` with their weights."""
        return rates * self._reward_weights

    def terminated(self, state: RobotState) -> Tensor:
        """[E] bool: fallen, or fallen into a pit."""
        config = self.config
        gravity = gravity_in_body(state.root_quat)
        tilted = (gravity[:, :2].norm(dim=-1) > config.max_tilt) | (gravity[:, 2] > 0)
        ground = state.foot_ground.amax(-1)
        low = state.root_pos[:, 2] - ground < config.min_height * config.robot.standing_height
        return tilted | low | state.body_contact

    def sample_command(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Commands [K, 3] and the steps they last [K]."""
        config = self.config
        low, high = self._commands.unbind(-1)
        command = low + (high - low) * self._uniform(generator, count, 3)
        standing = self._uniform(generator, count) < config.standing_fraction
        command = torch.where(standing[:, None], 0.0, command)
        return command, self.sample_steps(config.command_seconds, count, generator)

    def sample_steps(self, seconds: Range, count: int, generator: torch.Generator) -> Tensor:
        """[K] int64: control steps of a time drawn from `seconds`."""
        drawn = seconds[0] + (seconds[1] - seconds[0]) * self._uniform(generator, count)
        return (drawn / self.config.control_dt).round().long()

    def steered(self, state: RobotState, episode: Episode) -> Tensor:
        """The commands [E, 3], with a yaw rate towards the episode's heading where the task keeps one."""
        if not self.config.keep_heading:
            return episode.command
        error = wrap_angle(episode.heading - yaw_of(state.root_quat))
        yaw_rate = (0.8 * error).clamp(*self.config.command_yaw)
        return torch.cat([episode.command[:, :2], yaw_rate[:, None]], -1)

    def sample_dynamics(self, count: int, generator: torch.Generator) -> Tensor:
        """[K, 5], as `RobotState.dynamics`."""
        low, high = self._dynamics.unbind(-1)
        return low + (high - low) * self._uniform(generator, count, 5)
