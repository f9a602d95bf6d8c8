"""Walking as commanded: observations, rewards, terminations and commands as functions of robot state and episode.

Nothing here knows an engine; `running.py` keeps the episodes, and an environment (`trainer/engines/env.py`) brings an
engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from trainer.config.names import did_you_mean
from trainer.tasks.contract import Contract
from trainer.tasks.interface import contract_of
from trainer.tasks.randomization import Dynamics, ObservationNoise, Range
from trainer.tasks.rewards import BY_CLOCK, TERMS, WITHIN, RewardContext, steering_error
from trainer.tasks.robots import RobotSpec, by_pattern
from trainer.tasks.scan import SCAN_COLUMNS, SCAN_ROWS
from trainer.tasks.state import Episode, RobotState
from trainer.tasks.stride import bump, directions
from trainer.tasks.terrains import FLAT, PIT_FLOOR, TERRAINS

PROPRIO_TERMS = ("ang_vel", "gravity", "command", "joint_pos", "joint_vel", "action", "clock")
"""In this order; a task leaves out what its robot cannot sense, and the clock where it has none."""
PRIVILEGED_TERMS = ("velocity", "ang_vel", "scan", "foot_contact", "foot_height", "dynamics")
"""What the critic sees after the proprioception without noise, in this order; also the joint velocities, where the
proprioception has none."""
SCAN_SIZE = SCAN_ROWS * SCAN_COLUMNS
OBSERVATION_GROUPS = ("proprio", "history", "extero", "velocity", "critic")
"""What `LocomotionTask.observe` gives, by name."""


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
    stride: dict[str, float] = field(default_factory=dict)
    """Joint pattern to radians that are added to its target in the middle of its foot's swing, by the clock. A joint
    belongs to the foot whose name begins as its own, such as left_."""
    proprio: tuple[str, ...] = tuple(name for name in PROPRIO_TERMS if name != "clock")
    gait_period: float = 0.0
    """Seconds of a stride, for a robot that walks by a clock, which is then a term of `proprio`; 0 without one."""
    history: int = 5
    control_dt: float = 0.02
    episode_seconds: float = 20.0
    command_x: Range = (0.0, 1.0)
    command_y: Range = (-0.3, 0.3)
    command_yaw: Range = (-0.5, 0.5)
    command_seconds: Range = (4.0, 8.0)
    standing_fraction: float = 0.1
    """Share of commands that are zero."""
    keep_heading: bool = False
    """The yaw rate is commanded: back to a line, which is the middle of a course, else straight ahead at the start."""
    terrains: tuple[str, ...] = ()
    """Empty: an endless plane."""
    num_levels: int = 11
    """Steps of the curriculum; difficulty is last_difficulty · level / (num_levels - 1)."""
    first_difficulty: float = 0.2
    """Environments begin at levels drawn from difficulty 0 up to this one."""
    last_difficulty: float = 1.0
    """Difficulty of the last level: a training of few steps spends none of them on what it cannot reach."""
    demote_below: float = 0.5
    """Share of its way, the course or what the command asked for, below which an episode demotes its environment."""
    demote_on_fall: bool = False
    """Demote after every fall too, as the paper says."""
    redraw_solved: bool = True
    """Whether environments that have traversed the last level meet all levels at random, or stay at the last."""
    soft_until: int = 0
    """Control steps of each environment (iterations × steps of a rollout) during which episodes begin on soft terrain:
    gaps and the room between stones are filled at z = 0, but scan, foot ground and `foot_edge` see them."""
    tile_variants: int = 2
    """Tiles of one terrain and difficulty, with different random stones."""
    max_tilt: float = 0.6
    """Sine of the tilt that ends an episode."""
    min_height: float = 0.7
    """Root above the ground under the loaded feet, as a fraction of standing, below which an episode ends."""
    pit_depth: float = 0.4
    """Metres below z = 0 of a sole that end an episode: nothing to stand on is as deep, the robot is in a pit."""
    stumble_ratio: float = 2.0
    """Horizontal over vertical force on a foot from which on it stumbles; more than any friction gives."""
    edge_drop: float = 0.04
    """Metres that the terrain lies below a point of a loaded sole from which on the point is off the terrain."""
    dynamics: Dynamics = field(default_factory=Dynamics)
    noise: ObservationNoise = field(default_factory=ObservationNoise)

    def __post_init__(self) -> None:
        for name in self.rewards:
            if name not in TERMS:
                hint = did_you_mean(name, TERMS)
                raise ValueError(f"task {self.name}: no reward term {name!r}{hint}; the terms are {', '.join(TERMS)}")
        for name in self.proprio:
            if name not in PROPRIO_TERMS:
                raise ValueError(f"task {self.name}: no proprioception {name!r}; expected some of {PROPRIO_TERMS}")
        for name in self.terrains:
            if name not in TERRAINS:
                hint, known = did_you_mean(name, TERRAINS), ", ".join(TERRAINS)
                raise ValueError(f"task {self.name}: no terrain {name!r}{hint}; the terrains are {known}")
        limits = {
            "gait_period": (0, math.inf),
            "num_levels": (2, math.inf),
            "tile_variants": (1, math.inf),
            "soft_until": (0, math.inf),
            "first_difficulty": (0, 1),
            "demote_below": (0, 1),
            "max_tilt": (0, 1),
            "min_height": (0, 1),
            "pit_depth": (0, -PIT_FLOOR),
            "stumble_ratio": (0, math.inf),
            "edge_drop": (0, math.inf),
        }
        for name, (low, high) in limits.items():
            value = getattr(self, name)
            if not low <= value <= high:
                most = "" if high == math.inf else f" and at most {high:g}"
                raise ValueError(f"task {self.name}: {name} must be at least {low:g}{most}, got {value}")
        self._check_together()

    def _check_together(self) -> None:
        """Rewards and settings that need others."""
        by_clock = [*(name for name in self.rewards if name in BY_CLOCK), *(["stride"] if self.stride else [])]
        if by_clock and self.gait_period == 0:
            raise ValueError(f"task {self.name}: {by_clock[0]} needs a clock, got a gait_period of 0")
        if "joint_limits" in self.rewards and not self.robot.joint_range:
            raise ValueError(f"task {self.name}: the reward joint_limits: {self.robot.name} declares no joint_range")
        if "off_line" in self.rewards and not self.keep_heading:
            raise ValueError(f"task {self.name}: the reward off_line needs a line: keep_heading=true")
        if ("clock" in self.proprio) != (self.gait_period > 0):
            raise ValueError(
                f"task {self.name}: a gait_period and the proprioception 'clock' go together, got"
                f" {self.gait_period:g} s and {', '.join(self.proprio)}"
            )
        if not 0 < self.last_difficulty <= 1 or self.first_difficulty > self.last_difficulty:
            raise ValueError(
                f"task {self.name}: last_difficulty must be positive, at least first_difficulty = "
                f"{self.first_difficulty:g} and at most 1, got {self.last_difficulty:g}"
            )


def by_the_paper(config: TaskConfig) -> TaskConfig:
    """The task with the paper's literal curriculum, called NAME-paper.

    Six levels from 0 on, up after a traversal, down after every failure, no flat ground among the terrains, and no
    clock. What the paper does not say, such as terminations and the other rewards, is as in the task.
    """
    return replace(
        config,
        name=f"{config.name}-paper",
        proprio=tuple(name for name in config.proprio if name != "clock"),
        gait_period=0.0,
        stride={},
        rewards={name: weight for name, weight in config.rewards.items() if name not in BY_CLOCK},
        terrains=tuple(name for name in config.terrains if name != FLAT),
        num_levels=6,
        first_difficulty=0.0,
        demote_on_fall=True,
        redraw_solved=False,
        soft_until=0,
    )


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
        low, high = self._tensor(robot.joint_range).view(-1, 2).unbind(-1)
        self.reward_context = RewardContext(
            default_pos=self.default_pos,
            effort=self._tensor([motor.effort for motor in robot.motors]),
            posture_weight=self._tensor(by_pattern(robot.joint_names, config.posture, default=0.0)),
            joint_middle=0.5 * (low + high),
            joint_reach=WITHIN * 0.5 * (high - low),
            standing_height=robot.standing_height,
            control_dt=config.control_dt,
            progress_ramp=config.progress_ramp,
            stumble_ratio=config.stumble_ratio,
            edge_drop=config.edge_drop,
        )
        contract = self.contract
        self._stride = self._tensor(contract.stride)
        self._swings = directions(self._tensor(contract.stride_middle))
        self.proprio_layout = {term.name: term.size for term in contract.proprio}
        self._noise_unit = self._tensor([term.noise for term in contract.proprio for _ in range(term.size)]) / 2**15
        self._commands = self._tensor([config.command_x, config.command_y, config.command_yaw])
        ranges = config.dynamics
        rows = [ranges.friction, ranges.added_mass, ranges.com_xy, ranges.com_xy, ranges.com_z]
        self._dynamics = self._tensor(rows)

    def _tensor(self, values: Sequence[float] | Sequence[Range]) -> Tensor:
        return torch.tensor(values, device=self.device)

    def _uniform(self, generator: torch.Generator, *shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=self.device)

    def _noise(self, generator: torch.Generator, rows: int, columns: int) -> Tensor:
        """int16, uniform over all of them but one in 2^63: noise in units of 2^-15 of its half-width.

        Four from each number drawn: to draw one each was the dearest operation of a step.
        """
        fours = (rows, -(-columns // 4))
        drawn = torch.randint(-(2**63), 2**63 - 1, fours, generator=generator, device=self.device)
        return drawn.view(torch.int16)[:, :columns]

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
        """P: 98 for the G1."""
        return sum(self.proprio_layout.values())

    @property
    def actor_groups(self) -> dict[str, int]:
        """Sizes of the observation groups that an actor is built for; `observe` gives the critic's as well."""
        history = self.config.history * self.proprio_size
        return {"proprio": self.proprio_size, "history": history, "extero": SCAN_SIZE, "velocity": 3}

    @property
    def privileged_terms(self) -> tuple[str, ...]:
        """What the group `critic` has after the proprioception, in this order."""
        return PRIVILEGED_TERMS if "joint_vel" in self.config.proprio else (*PRIVILEGED_TERMS, "joint_vel")

    @property
    def critic_scan(self) -> slice:
        """The height scan's columns in the group `critic`: see `observe`."""
        first = self.proprio_size + 6
        return slice(first, first + SCAN_SIZE)

    def targets(self, action: Tensor, clock: Tensor) -> Tensor:
        """Joint targets [E, J] of action [E, A] at the clock [E, 2] that it was chosen at."""
        targets = self.default_pos + self.action_scale * action
        return targets + self._stride * bump(clock, self._swings) if self.config.stride else targets

    def proprio(self, state: RobotState, episode: Episode) -> Tensor:
        """[E, P], without noise."""
        parts = {
            "ang_vel": state.root_ang_vel,
            "gravity": state.gravity,
            "command": episode.command,
            "joint_pos": state.joint_pos - self.default_pos,
            "joint_vel": state.joint_vel,
            "action": episode.action,
            "clock": episode.clock,
        }
        return torch.cat([parts[name] for name in self.config.proprio], -1)

    def noisy(self, proprio: Tensor, generator: torch.Generator) -> Tensor:
        """[E, P] with the noise of the robot's sensors."""
        return torch.addcmul(proprio, self._noise(generator, *proprio.shape).float(), self._noise_unit)

    def scan(self, state: RobotState) -> Tensor:
        """[E, S]: how far the terrain lies below where it would be under a robot standing, to ±1 m."""
        standing = self.config.robot.standing_height
        return (state.root_pos[:, 2:3] - standing - state.scan).clamp(-1.0, 1.0)

    def velocity(self, state: RobotState) -> Tensor:
        """[E, 3]: the root's linear velocity, body frame: what the encoder has to estimate."""
        return state.body_velocity

    def observe(
        self, state: RobotState, episode: Episode, generator: torch.Generator, clean: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The observation groups.

        Args:
            state: The state of E robots.
            episode: Its history must already hold the current proprioception.
            generator: What the noise is drawn from.
            clean: [E, P]: `proprio(state, episode)`, where it is there already.
        """
        scan = self.scan(state)
        noise = self._noise(generator, *scan.shape).float()
        velocity = self.velocity(state)
        clean = self.proprio(state, episode) if clean is None else clean
        privileged = {
            "velocity": velocity,
            "ang_vel": state.root_ang_vel,
            "scan": scan,
            "foot_contact": state.foot_contact.float(),
            "foot_height": state.foot_height,
            "dynamics": state.dynamics,
            "joint_vel": state.joint_vel,
        }
        return {
            **self.remembered(episode),
            "extero": torch.add(scan, noise, alpha=self.config.noise.scan / 2**15),
            "velocity": velocity,
            "critic": torch.cat([clean, *(privileged[name] for name in self.privileged_terms)], -1),
        }

    def remembered(self, episode: Episode) -> dict[str, Tensor]:
        """The observation groups that are views of the episode's history."""
        return {"proprio": episode.history[:, -1], "history": episode.history.flatten(1)}

    def reward_rates(self, state: RobotState, episode: Episode) -> Tensor:
        """[R, E]: the terms before their weights, rates per second, in the order of `config.rewards`."""
        return torch.stack([TERMS[name](state, episode, self.reward_context) for name in self.config.rewards])

    def weighted(self, rates: Tensor) -> Tensor:
        """[R, E]: `reward_rates` with their weights."""
        return rates * self._reward_weights

    def terminated(self, state: RobotState) -> Tensor:
        """[E] bool: fallen, or fallen into a pit."""
        config = self.config
        tilted = (state.tilt > config.max_tilt**2) | (state.gravity[:, 2] > 0)
        low = state.root_pos[:, 2] - state.ground_below() < config.min_height * config.robot.standing_height
        in_pit = state.foot_pos[..., 2].amin(-1) < -config.pit_depth
        return tilted | low | in_pit | state.body_contact

    def sample_command(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Commands [K, 3] and the steps they last [K]."""
        config = self.config
        low, high = self._commands.unbind(-1)
        command = low + (high - low) * self._uniform(generator, count, 3)
        standing = self._uniform(generator, count) < config.standing_fraction
        return command.masked_fill_(standing[:, None], 0.0), self.sample_steps(config.command_seconds, count, generator)

    def sample_steps(self, seconds: Range, count: int, generator: torch.Generator) -> Tensor:
        """[K] int64: control steps of a time drawn from `seconds`."""
        drawn = seconds[0] + (seconds[1] - seconds[0]) * self._uniform(generator, count)
        return (drawn / self.config.control_dt).round().long()

    def clock(self, episode: Episode) -> Tensor:
        """[E, 2]: sine and cosine of the gait's phase, which is 0 when an episode begins; 0, 0 without a clock.

        So it is for a command to stand, too.
        """
        if self.config.gait_period == 0:
            return torch.zeros_like(episode.clock)
        phase = (2 * math.pi * self.config.control_dt / self.config.gait_period) * episode.step
        return torch.stack([phase.sin(), phase.cos()], -1) * episode.is_moving[:, None]

    def steered(self, state: RobotState, episode: Episode) -> Tensor:
        """The commands [E, 3], with a yaw rate towards a point ahead on the episode's line where the task has one."""
        if not self.config.keep_heading:
            return episode.command
        yaw_rate = (0.8 * steering_error(state, episode)).clamp(*self.config.command_yaw)
        return torch.cat([episode.command[:, :2], yaw_rate[:, None]], -1)

    def sample_dynamics(self, count: int, generator: torch.Generator) -> Tensor:
        """[K, 5], as `RobotState.dynamics`."""
        low, high = self._dynamics.unbind(-1)
        return low + (high - low) * self._uniform(generator, count, 5)
