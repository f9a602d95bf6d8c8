"""A task that runs in E environments, whatever simulates them: episodes, commands, curriculum, noise, and their order.

An engine asks for targets and pushes before its physics, tells the state after it, and puts robots where new episodes
begin. All tensors live on one device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from torch.linalg import vector_norm

from trainer.tasks.actuation import ActionDelay, sample_motors
from trainer.tasks.curriculum import Curriculum
from trainer.tasks.extras import step_extras
from trainer.tasks.interface import ACTION_CLIP
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.outcome import Outcome, Start
from trainer.tasks.rewards import steering_error
from trainer.tasks.state import Episode, RobotState
from trainer.tasks.tiles import TileGrid

FOLLOWED = 0.5
"""Share of the commanded distance that a robot on the plane has to go for a success."""


_FROM_ZERO = (
    "step",
    "action",
    "last_action",
    "joint_vel_before",
    "air_time",
    "contact_time",
    "commanded_distance",
    "followed_distance",
)
"""What of an episode is 0 when it begins."""


_OBSERVED = ("step", "command", "action", "clock")
"""What of an episode its first observation is made of."""


class RunningTask:
    """A task and its E running episodes.

    In a control step: `act`, `draw_pushes`, the engine's physics, `after_physics`; then, for environments that begin
    anew, `draw_start`, the engine's reset, `begin`. At the beginning every environment begins.

    Args:
        task: What is learned, on the device of everything here.
        num_envs: E.
        seed: Seed of everything random here: noise, commands, pushes, dynamics, terrains.
        difficulty: Fixes the terrains' difficulty instead of the curriculum, on hard terrain, for evaluation; of
            several the first environments have the first, and so on in equal parts.
        tile_seed: Seed of the terrains alone, where it is another one.

    Attributes:
        grid: Which tiles there are.
        tiles: The tiles of the grid, by index.
        steps: Control steps so far; says when soft terrain ends.
        state: The robots after the last control step, or at the beginning of their episode.
        observations: The groups that belong to it.
        tile_of: [E] int64: the tile of each environment; 0 on the plane.
        delay: Delay of the actions; None where the task has none. An engine then asks it in every physics step.
    """

    state: RobotState
    observations: TensorDict

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        *,
        seed: int,
        difficulty: float | Sequence[float] | None = None,
        tile_seed: int | None = None,
    ) -> None:
        config, device = task.config, task.device
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        self.task, self.num_envs, self.steps = task, num_envs, 0
        self._tile_seed = seed if tile_seed is None else tile_seed
        self.generator = torch.Generator(device).manual_seed(seed)
        self.tile_of = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.curriculum: Curriculum | None = None
        self.set_difficulty(difficulty)
        if config.terrains:
            self.curriculum = Curriculum(
                num_envs,
                len(config.terrains),
                config.num_levels,
                self.generator,
                max_first_level=int(config.first_difficulty / config.last_difficulty * (config.num_levels - 1) + 1e-6),
                last_difficulty=config.last_difficulty,
                redraw_solved=config.redraw_solved,
            )
        self._any_heading = self._tensor([-math.pi, math.pi])
        self._drop = self._tensor([0.0, 0.0, config.robot.standing_height + 0.02])
        robot = config.robot
        self.episode = Episode.empty(
            num_envs, robot.num_joints, task.num_actions, len(robot.feet), (config.history, task.proprio_size), device
        )
        self.episode_return = torch.zeros(num_envs, device=device)
        self.delay = ActionDelay.of(config.dynamics, num_envs, config.control_dt, task.default_pos)
        self.term_names = [f"reward/{name}" for name in config.rewards]

    def set_difficulty(self, difficulty: float | Sequence[float] | None) -> None:
        """Makes the tiles: of this difficulty or of those alone, or with None the curriculum's; for new episodes.

        Raises:
            ValueError: As for `TileGrid.of`.
        """
        self.difficulty, self.grid = difficulty, TileGrid.of(self.task.config, difficulty)
        self.tiles = self.grid.tiles(self._tile_seed)
        self._fixed_row = torch.arange(self.num_envs, device=self.task.device) * self.grid.num_rows // self.num_envs
        self._goal = self._tensor([tile.goal_distance for tile in self.tiles])
        self._spawns = self._tensor([tile.spawn for tile in self.tiles])
        self._headings = self._tensor([tile.heading for tile in self.tiles])
        self._margin = self._tensor([tile.size for tile in self.tiles]) / 2 - 0.3
        self._curriculum_log: dict[str, float] | None = None

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.task.device)

    def act(self, actions: Tensor) -> Tensor:
        """Joint targets [E, J] of actions [E, A], which the episodes remember."""
        actions = actions.detach().clamp(-ACTION_CLIP, ACTION_CLIP)
        self.episode.last_action, self.episode.action = self.episode.action, actions
        self.episode.joint_vel_before = self.state.joint_vel
        self.steps += 1
        targets = self.task.targets(actions, self.episode.clock)
        if self.delay is not None:
            self.delay.remember(targets)
        return targets

    def draw_pushes(self) -> tuple[Tensor, Tensor] | None:
        """Environments [K] to push now, and the velocity [K, 2] (world x, y) to add to their roots; None for none."""
        episode, ranges = self.episode, self.task.config.dynamics
        episode.push_left = episode.push_left - 1
        due = (episode.push_left <= 0).nonzero().squeeze(-1)
        if not (count := due.shape[0]):
            return None
        low, high = ranges.push_velocity
        velocity = low + (high - low) * torch.rand(count, 2, generator=self.generator, device=self.task.device)
        episode.push_left[due] = self.task.sample_steps(ranges.push_interval, count, self.generator)
        return due, velocity

    def after_physics(self, state: RobotState, broken: Tensor, warning: str | None = None) -> Outcome:
        """Judges the control step that led to `state`.

        Args:
            state: State of all robots; finite, also for those that are broken.
            broken: [E] bool: environments whose simulation diverged.
            warning: What the simulator had to say about them.
        """
        task, episode = self.task, self.episode
        self.state = state
        self._advance()
        rates, why = task.reward_rates(state, episode), ""
        terms = task.weighted(rates)
        clean = self._remember()
        groups = task.observe(state, episode, self.generator, clean)
        total = terms.sum(0)
        # Finite where all numbers are: the critic sees everything that the other groups have with noise.
        whole = total + groups["critic"].sum(-1)
        broken = broken | torch.ne(whole - whole, 0.0)  # x - x is 0 for every number, NaN for what is none
        if broken.any():
            unfit = ~torch.isfinite(groups["critic"].sum(-1))
            why = warning or self._why_broken(groups, terms)
            for name, value in groups.items():
                value[unfit] = self.observations[name][unfit]
            rates, terms = torch.where(broken, 0.0, rates), torch.where(broken, 0.0, terms)
            total = terms.sum(0)
        reward = task.config.control_dt * total
        traversed = self._traversed() & ~broken
        terminated = task.terminated(state) | broken | (self._left_tile() & ~traversed)
        reward = reward - task.config.fall_penalty * (terminated & ~broken)
        self.episode_return += reward
        self.observations = TensorDict(groups, batch_size=[self.num_envs])
        out_of_time = episode.step >= task.max_steps
        achieved = traversed if self.tiles else out_of_time & self._followed()
        return Outcome(
            observations=self.observations,
            rates=rates,
            terms=terms,
            reward=reward,
            terminated=terminated,
            broken=broken,
            why_broken=why,
            out_of_time=out_of_time,
            traversed=traversed,
            success=achieved & ~terminated,
            episode_return=self.episode_return.clone(),  # a new episode begins in place
            episode_length=episode.step.clone(),
        )

    def extras(self, outcome: Outcome) -> dict[str, Any]:
        """What an rsl_rl environment tells of a step beside observations, reward and done."""
        kinds = None if self.curriculum is None else self.curriculum.terrain_type
        extras = step_extras(outcome, self.term_names, kinds, self.task.config.terrains)
        extras["log"] |= self._logged_curriculum()
        return extras

    def _logged_curriculum(self) -> dict[str, float]:
        """Mean difficulty of the terrains and of each, and whether they are soft; empty where difficulty is fixed."""
        if self.curriculum is None or self.difficulty is not None:
            return {}
        if self._curriculum_log is None:  # only the end of an episode changes it
            self._curriculum_log = self.curriculum.log(self.task.config.terrains)
        if self.grid.soft:
            return {**self._curriculum_log, "curriculum/soft": float(self.is_soft)}
        return self._curriculum_log

    @property
    def is_soft(self) -> bool:
        """Whether episodes that begin now begin on soft terrain."""
        return self.grid.soft and self.steps < self.task.config.soft_until

    def _advance(self) -> None:
        """Time, contacts and commands after a control step."""
        episode, dt = self.episode, self.task.config.control_dt
        episode.step = episode.step + 1
        contact = self.state.foot_contact
        episode.air_time = (episode.air_time + dt).masked_fill_(contact, 0.0)
        episode.contact_time = (episode.contact_time + dt) * contact
        wanted = episode.command[:, :2]
        speed = vector_norm(wanted, dim=-1)
        along = (wanted * self.state.planar_velocity).sum(-1) / speed.clamp(min=1e-6)
        episode.commanded_distance = torch.add(episode.commanded_distance, speed, alpha=dt)
        episode.followed_distance = torch.add(episode.followed_distance, along, alpha=dt)
        episode.command_left = episode.command_left - 1
        expired = (episode.command_left <= 0).nonzero().squeeze(-1)
        if count := expired.shape[0]:
            episode.command[expired], episode.command_left[expired] = self.task.sample_command(count, self.generator)
        lasting = {}
        if self.task.config.keep_heading:
            lasting["steering_error"] = steering_error(self.state, episode)
            episode.know(**lasting)
        episode.command = self.task.steered(self.state, episode)
        lasting["is_moving"] = episode.is_moving
        episode.clock = self.task.clock(episode)
        episode.know(**lasting)  # neither a new clock nor, of the error, a new command changes it

    def _remember(self) -> Tensor:
        """Appends the current proprioception, as the sensors give it, to the history; returns it without noise."""
        clean = self.task.proprio(self.state, self.episode)
        newest = self.task.noisy(clean, self.generator)
        self.episode.history = torch.cat([self.episode.history[:, 1:], newest[:, None]], 1)
        return clean

    def _why_broken(self, groups: dict[str, Tensor], terms: Tensor) -> str:
        """What is not finite although the simulator found nothing wrong."""
        rows = {f"observation {name!r}": value for name, value in groups.items()}
        rows |= dict(zip(self.term_names, terms, strict=True))
        unfit = [name for name, value in rows.items() if not torch.isfinite(value).all()]
        return f"{unfit[0]} is not finite" if unfit else "the simulator's state is absurdly large"

    def _distance(self) -> Tensor:
        return vector_norm(self.state.root_pos[:, :2] - self.episode.spawn, dim=-1)

    def _followed(self) -> Tensor:
        return self.episode.followed_distance >= FOLLOWED * self.episode.commanded_distance

    def _traversed(self) -> Tensor:
        if not self.tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool, device=self.task.device)
        return self._distance() >= self._goal.index_select(0, self.tile_of)

    def _left_tile(self) -> Tensor:
        if not self.tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool, device=self.task.device)
        return (self.state.root_pos[:, :2].abs() > self._margin.index_select(0, self.tile_of)).any(-1)

    def update_levels(self, ended: Tensor, outcome: Outcome) -> None:
        """Moves the environments `ended` [K], whose episodes `outcome` ended, along their levels.

        The way that an episode is measured by is the course, or what the commands ask for in the whole episode where
        that is less: who falls early has gone little of it, however well until then.
        """
        if self.curriculum is None or self.difficulty is not None:
            return
        config, episode = self.task.config, self.episode
        everyones = (episode.step, episode.commanded_distance, episode.command, self.tile_of, self._distance())
        step, commanded, command, tile, distance = (value.index_select(0, ended) for value in everyones)
        left = (self.task.max_steps - step).clamp(min=0) * config.control_dt
        asked = commanded + left * vector_norm(command[:, :2], dim=-1)
        way = torch.minimum(self._goal.index_select(0, tile), asked)
        failed = distance < config.demote_below * way
        if config.demote_on_fall:
            failed = failed | outcome.terminated.index_select(0, ended)
        self.curriculum.update(ended, outcome.traversed.index_select(0, ended), failed)
        self._curriculum_log = None

    def draw_start(self, env_ids: Tensor) -> Start:
        """Draws where and how new episodes of env_ids [K] begin."""
        count, task, generator = env_ids.shape[0], self.task, self.generator
        device, robot = task.device, task.config.robot
        uniform = torch.rand(count, 5, generator=generator, device=device)
        if self.curriculum is None:
            tile = torch.zeros(count, dtype=torch.int64, device=device)
            spawn, heading = torch.zeros(count, 3, device=device), self._any_heading.expand(count, 2)
        else:
            level = self.curriculum.draw_level(env_ids, uniform[:, 4])
            if self.difficulty is not None:
                level = self._fixed_row[env_ids]
            variant = (uniform[:, 3] * self.grid.variants).long()
            kind = self.curriculum.terrain_type.index_select(0, env_ids)
            tile = self.grid.index(kind, level, variant, self.is_soft)
            spawn, heading = self._spawns.index_select(0, tile), self._headings.index_select(0, tile)
        root = spawn + self._drop
        root[:, :2] += 0.2 * (uniform[:, :2] - 0.5)
        if robot.planar:
            root[:, 1] = 0.0
        low, high = heading.unbind(-1)
        spread = high - low
        yaw = torch.addcmul(low, spread, uniform[:, 2])
        scatter = torch.rand(count, robot.num_joints, generator=generator, device=device).sub_(0.5).mul_(0.2)
        # A course has a middle; from anywhere else every direction is as good, and the robot's own is taken.
        narrow = spread < math.pi
        heading = torch.where(narrow, heading.mean(-1), yaw)
        line = torch.where(narrow[:, None], spawn[:, :2], root[:, :2])
        self.episode.assign(env_ids, {"heading": heading, "line": line, "spawn": root[:, :2]})
        self.tile_of.index_copy_(0, env_ids, tile)
        dynamics = task.sample_dynamics(count, generator)
        motors = sample_motors(task.config.dynamics, count, robot.num_joints, generator)
        if self.delay is not None:
            self.delay.begin(env_ids, generator)
        return Start(tile, root, yaw, task.default_pos + scatter, dynamics, motors)

    def begin(self, env_ids: Tensor, state: RobotState) -> None:
        """Begins the episodes of env_ids [K] at the states [K] that the engine put their `Start` into."""
        episode, task, count = self.episode, self.task, env_ids.shape[0]
        first_time = not hasattr(self, "state")
        if first_time:  # everyone begins
            self.state = state
        else:
            self.state.assign(env_ids, vars(state))
        for name in _FROM_ZERO:
            getattr(episode, name).index_fill_(0, env_ids, 0)
        self.episode_return.index_fill_(0, env_ids, 0)
        command, command_left = task.sample_command(count, self.generator)
        push_left = task.sample_steps(task.config.dynamics.push_interval, count, self.generator)
        episode.assign(env_ids, {"command": command, "command_left": command_left, "push_left": push_left})
        rows = episode.select(env_ids, _OBSERVED)
        rows.clock = task.clock(rows)
        episode.clock.index_copy_(0, env_ids, rows.clock)
        first = task.proprio(state, rows)
        rows.history = task.noisy(first, self.generator)[:, None].repeat(1, task.config.history, 1)
        # A copy: observations already given away are views of it.
        episode.history = episode.history.index_copy(0, env_ids, rows.history)
        fresh = task.observe(state, rows, self.generator, first)
        if first_time:
            self.observations = TensorDict(fresh, batch_size=[self.num_envs])
            return
        # The observations before the reset belong to the step's outcome: the new rows go into a copy.
        views = task.remembered(episode)
        groups = {
            name: views[name] if name in views else self.observations[name].index_copy(0, env_ids, value)
            for name, value in fresh.items()
        }
        self.observations = TensorDict(groups, batch_size=[self.num_envs])

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues bit for bit, but for the robots' state."""
        return {
            "episode": {name: value.clone() for name, value in vars(self.episode).items()},
            "episode_return": self.episode_return.clone(),
            "curriculum": self.curriculum.state_dict() if self.curriculum is not None else {},
            "generator": self.generator.get_state(),
            "steps": torch.tensor(self.steps),
            **({} if self.delay is None else {"delay": self.delay.state_dict()}),
            "observations": {name: value.clone() for name, value in self.observations.items()},
        }

    def load_state_dict(self, values: Mapping[str, Any], state: RobotState, tile_of: Tensor) -> None:
        """Continues from `state_dict()` of the same task, size and seed, with robots in `state` on the tiles [E].

        Raises:
            ValueError: It is of another task or of an earlier version of it.
        """
        if missing := [name for name in self.state_dict() if name not in values]:
            raise ValueError(
                f"environment: {missing[0]} is missing; a run of an earlier version can be evaluated and played, not"
                " continued"
            )
        device = self.task.device
        self.state = state
        self.tile_of.copy_(tile_of)
        self.episode = Episode(**{name: value.to(device, copy=True) for name, value in values["episode"].items()})
        self.episode_return = values["episode_return"].to(device, copy=True)
        if self.curriculum is not None:
            self.curriculum.load_state_dict(values["curriculum"])
        self._curriculum_log = None
        self.steps = int(values["steps"])
        self.generator.set_state(values["generator"])
        if self.delay is not None:
            self.delay.load_state_dict(values["delay"])
        groups = {name: value.to(device, copy=True) for name, value in values["observations"].items()}
        self.observations = TensorDict(groups, batch_size=[self.num_envs])
