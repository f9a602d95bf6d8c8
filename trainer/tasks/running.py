"""A task that runs in E environments, whatever simulates them: episodes, commands, curriculum, noise, and their order.

An engine asks for targets and pushes before its physics, tells the state after it, and puts robots where new episodes
begin. All tensors live on one device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.tasks.curriculum import Curriculum
from trainer.tasks.interface import ACTION_CLIP
from trainer.tasks.locomotion import LocomotionTask, TaskConfig
from trainer.tasks.state import Episode, RobotState
from trainer.tasks.terrains import Terrain, make_terrain


def make_tile(config: TaskConfig, kind: int, level: int, variant: int, seed: int) -> Terrain:
    """One tile of a task: its terrain number `kind` at a level, in one of `tile_variants` variants."""
    rng = np.random.default_rng([seed, kind, level, variant])
    return make_terrain(config.terrains[kind], level / (config.num_levels - 1), rng)


def make_tiles(task: LocomotionTask, seed: int) -> list[Terrain]:
    """Every terrain of the task at every level, in `tile_variants` variants; variants run fastest, then levels."""
    config = task.config
    return [
        make_tile(config, kind, level, variant, seed)
        for kind in range(len(config.terrains))
        for level in range(config.num_levels)
        for variant in range(config.tile_variants)
    ]


@dataclass(frozen=True)
class Start:
    """Where and how K new episodes begin, with everything at rest."""

    tile: Tensor
    """[K] int64, into the tiles; 0 on the plane."""
    root_pos: Tensor
    """[K, 3], in the tile's frame."""
    yaw: Tensor
    """[K]."""
    joint_pos: Tensor
    """[K, J]."""
    dynamics: Tensor
    """[K, 5], as `RobotState.dynamics`."""


@dataclass(frozen=True)
class Outcome:
    """What a control step led to, before any new episode begins."""

    observations: TensorDict
    """The groups, finite."""
    rates: Tensor
    """[R, E]: the reward terms before their weights, in the order of `TaskConfig.rewards`; 0 where broken."""
    terms: Tensor
    """[R, E]: with their weights."""
    reward: Tensor
    """[E]: of this step, the penalty for a fall included."""
    terminated: Tensor
    """[E] bool: fallen or broken."""
    broken: Tensor
    """[E] bool: the simulation diverged."""
    why_broken: str
    """Of the first one."""
    out_of_time: Tensor
    """[E] bool."""
    traversed: Tensor
    """[E] bool: arrived at the end of the course."""
    left_tile: Tensor
    """[E] bool."""
    episode_return: Tensor
    """[E]: the sum of the episode's rewards so far."""
    episode_length: Tensor
    """[E] int64: its control steps so far."""

    @property
    def timed_out(self) -> Tensor:
        """[E] bool: ended for a reason that says nothing against the policy."""
        return (self.out_of_time | self.traversed | self.left_tile) & ~self.terminated

    @property
    def done(self) -> Tensor:
        """[E] bool."""
        return self.terminated | self.timed_out


class RunningTask:
    """A task and its E running episodes.

    In a control step: `act`, `draw_pushes`, the engine's physics, `after_physics`; then, for environments that begin
    anew, `draw_start`, the engine's reset, `begin`. At the beginning every environment begins.

    Args:
        task: What is learned, on the device of everything here.
        num_envs: E.
        seed: Of everything random here: noise, commands, pushes, dynamics, terrains.
        level: Fixes the terrain level instead of the curriculum, for evaluation.
        tiles: In the order of `make_tiles`, which makes them from the seed by default.

    Attributes:
        state: The robots after the last control step, or at the beginning of their episode.
        observations: The groups that belong to it.
        tile_of: [E] int64: the tile of each environment; 0 on the plane.
    """

    state: RobotState
    observations: TensorDict

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        *,
        seed: int,
        level: int | None = None,
        tiles: list[Terrain] | None = None,
    ) -> None:
        config, device = task.config, task.device
        if num_envs < 1:
            raise ValueError(f"num_envs: expected at least 1, got {num_envs}")
        if level is not None and not 0 <= level < config.num_levels:
            raise ValueError(f"level: expected 0 to {config.num_levels - 1}, got {level}")
        self.task, self.num_envs, self.fixed_level = task, num_envs, level
        self.generator = torch.Generator(device).manual_seed(seed)
        self.tiles = make_tiles(task, seed) if tiles is None else tiles
        self.tile_of = torch.zeros(num_envs, dtype=torch.int64, device=device)
        self.curriculum: Curriculum | None = None
        if self.tiles:
            self.curriculum = Curriculum(num_envs, len(config.terrains), config.num_levels, self.generator)
            self._goal = self._tensor([tile.goal_distance for tile in self.tiles])
            self._spawns = self._tensor([tile.spawn for tile in self.tiles])
            self._headings = self._tensor([tile.heading for tile in self.tiles])
            self._half_size = self._tensor([tile.size for tile in self.tiles]) / 2
        self._any_heading = self._tensor([-math.pi, math.pi])
        self._drop = self._tensor([0.0, 0.0, config.robot.standing_height + 0.02])
        robot = config.robot
        self.episode = Episode.empty(
            num_envs, robot.num_joints, task.num_actions, len(robot.feet), (config.history, task.proprio_size), device
        )
        self.episode_return = torch.zeros(num_envs, device=device)
        self.term_names = [f"reward/{name}" for name in config.rewards]

    def _tensor(self, values: list[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.task.device)

    def act(self, actions: Tensor) -> Tensor:
        """Joint targets [E, J] of actions [E, A], which the episodes remember."""
        actions = actions.detach().clamp(-ACTION_CLIP, ACTION_CLIP)
        self.episode.last_action, self.episode.action = self.episode.action, actions
        self.episode.joint_vel_before = self.state.joint_vel
        return self.task.targets(actions)

    def draw_pushes(self) -> tuple[Tensor, Tensor] | None:
        """Environments [K] to push now, and the velocity [K, 2] (world x, y) to add to their roots; None for none."""
        episode, ranges = self.episode, self.task.config.dynamics
        episode.push_left = episode.push_left - 1
        due = (episode.push_left <= 0).nonzero().squeeze(-1)
        if not len(due):
            return None
        low, high = ranges.push_velocity
        velocity = low + (high - low) * torch.rand(len(due), 2, generator=self.generator, device=self.task.device)
        episode.push_left[due] = self.task.sample_steps(ranges.push_interval, len(due), self.generator)
        return due, velocity

    def after_physics(self, state: RobotState, broken: Tensor, warning: str | None = None) -> Outcome:
        """Judges the control step that led to `state`.

        Args:
            state: Of all robots; finite, also of those that are broken.
            broken: [E] bool: environments whose simulation diverged.
            warning: What the simulator had to say about them.
        """
        task, episode = self.task, self.episode
        self.state = state
        self._advance()
        rates, why = task.reward_rates(state, episode), ""
        terms = task.weighted(rates)
        self._remember()
        groups = task.observe(state, episode, self.generator)
        unfit = ~torch.isfinite(torch.stack([value.sum(-1) for value in groups.values()])).all(0)
        broken = broken | unfit | ~torch.isfinite(terms.sum(0))
        if broken.any():
            why = warning or self._why_broken(groups, terms)
            for name, value in groups.items():
                value[unfit] = self.observations[name][unfit]
            rates, terms = torch.where(broken, 0.0, rates), torch.where(broken, 0.0, terms)
        reward = task.config.control_dt * terms.sum(0)
        terminated = task.terminated(state) | broken
        reward = reward - task.config.fall_penalty * (terminated & ~broken)
        self.episode_return += reward
        self.observations = TensorDict(groups, batch_size=[self.num_envs])
        return Outcome(
            observations=self.observations,
            rates=rates,
            terms=terms,
            reward=reward,
            terminated=terminated,
            broken=broken,
            why_broken=why,
            out_of_time=episode.step >= task.max_steps,
            traversed=self._traversed() & ~broken,
            left_tile=self._left_tile(),
            episode_return=self.episode_return.clone(),  # a new episode begins in place
            episode_length=episode.step.clone(),
        )

    def extras(self, outcome: Outcome) -> dict[str, Any]:
        """What an rsl_rl environment tells of a step beside observations, reward and done."""
        extras: dict[str, Any] = {
            "time_outs": outcome.timed_out,
            "final_observations": outcome.observations,
            "traversed": outcome.traversed,
            "broken": outcome.broken,
            "why_broken": outcome.why_broken,
            "log": dict(zip(self.term_names, outcome.terms.mean(1).tolist(), strict=True)),
        }
        if self.curriculum is not None:
            extras["log"]["curriculum/level"] = self.curriculum.mean_level()
        ended = outcome.done.nonzero().squeeze(-1)
        if len(ended):
            extras["episodes"] = {
                "reward": outcome.episode_return[ended],
                "length": outcome.episode_length[ended].float(),
                "fell": outcome.terminated[ended].float(),
                "traversed": outcome.traversed[ended].float(),
            }
        return extras

    def _advance(self) -> None:
        """Time, contacts and commands after a control step."""
        episode, dt = self.episode, self.task.config.control_dt
        episode.step = episode.step + 1
        contact = self.state.foot_contact
        episode.air_time = torch.where(contact, 0.0, episode.air_time + dt)
        episode.contact_time = torch.where(contact, episode.contact_time + dt, 0.0)
        episode.commanded_distance = episode.commanded_distance + dt * episode.command[:, :2].norm(dim=-1)
        episode.command_left = episode.command_left - 1
        expired = (episode.command_left <= 0).nonzero().squeeze(-1)
        if len(expired):
            episode.command[expired], episode.command_left[expired] = self.task.sample_command(
                len(expired), self.generator
            )
        episode.command = self.task.steered(self.state, episode)

    def _remember(self) -> None:
        """Appends the current proprioception, as the sensors give it, to the history."""
        newest = self.task.noisy(self.task.proprio(self.state, self.episode), self.generator)
        self.episode.history = torch.cat([self.episode.history[:, 1:], newest[:, None]], 1)

    def _why_broken(self, groups: dict[str, Tensor], terms: Tensor) -> str:
        """What is not finite although the simulator found nothing wrong."""
        rows = {f"observation {name!r}": value for name, value in groups.items()}
        rows |= dict(zip(self.term_names, terms, strict=True))
        unfit = [name for name, value in rows.items() if not torch.isfinite(value).all()]
        return f"{unfit[0]} is not finite" if unfit else "the simulator's state is absurdly large"

    def _distance(self) -> Tensor:
        return (self.state.root_pos[:, :2] - self.episode.spawn).norm(dim=-1)

    def _traversed(self) -> Tensor:
        if not self.tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool, device=self.task.device)
        return self._distance() >= self._goal[self.tile_of]

    def _left_tile(self) -> Tensor:
        if not self.tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool, device=self.task.device)
        margin = self._half_size[self.tile_of] - 0.3
        return (self.state.root_pos[:, :2].abs() > margin).any(-1)

    def update_levels(self, ended: Tensor, outcome: Outcome) -> None:
        """Moves the environments `ended` [K], whose episodes `outcome` ended, along their levels."""
        if self.curriculum is None or self.fixed_level is not None:
            return
        lagged = self._distance()[ended] < 0.5 * self.episode.commanded_distance[ended]
        self.curriculum.update(ended, outcome.traversed[ended], outcome.terminated[ended] | lagged)

    def draw_start(self, env_ids: Tensor) -> Start:
        """Draws where and how new episodes of env_ids [K] begin."""
        count, task, generator = len(env_ids), self.task, self.generator
        device, robot = task.device, task.config.robot
        uniform = torch.rand(count, 4, generator=generator, device=device)
        if self.curriculum is None:
            tile = torch.zeros(count, dtype=torch.int64, device=device)
            spawn, heading = torch.zeros(count, 3, device=device), self._any_heading.expand(count, 2)
        else:
            config = task.config
            level = self.curriculum.level[env_ids]
            if self.fixed_level is not None:
                level = torch.full_like(level, self.fixed_level)
            variant = (uniform[:, 3] * config.tile_variants).long()
            kind = self.curriculum.terrain_type[env_ids]
            tile = (kind * config.num_levels + level) * config.tile_variants + variant
            spawn, heading = self._spawns[tile], self._headings[tile]
        root = spawn + self._drop
        root[:, :2] += 0.2 * (uniform[:, :2] - 0.5)
        if robot.planar:
            root[:, 1] = 0.0
        yaw = heading[:, 0] + (heading[:, 1] - heading[:, 0]) * uniform[:, 2]
        scatter = 0.1 * (2 * torch.rand(count, robot.num_joints, generator=generator, device=device) - 1)
        self.episode.heading[env_ids] = yaw
        self.episode.spawn[env_ids] = root[:, :2]
        self.tile_of[env_ids] = tile
        return Start(tile, root, yaw, task.default_pos + scatter, task.sample_dynamics(count, generator))

    def begin(self, env_ids: Tensor, state: RobotState) -> None:
        """Begins the episodes of env_ids [K] at the states [K] that the engine put their `Start` into."""
        episode, task, count = self.episode, self.task, len(env_ids)
        first_time = not hasattr(self, "state")
        if first_time:  # everyone begins
            self.state = state
        else:
            self.state.assign(env_ids, vars(state))
        for name in ("step", "action", "last_action", "joint_vel_before", "air_time", "contact_time"):
            getattr(episode, name)[env_ids] = 0
        episode.commanded_distance[env_ids] = 0
        self.episode_return[env_ids] = 0
        episode.command[env_ids], episode.command_left[env_ids] = task.sample_command(count, self.generator)
        episode.push_left[env_ids] = task.sample_steps(task.config.dynamics.push_interval, count, self.generator)
        first = task.proprio(self.state.select(env_ids), episode.select(env_ids))
        history = episode.history.clone()  # observations already given away are views of it
        history[env_ids] = task.noisy(first, self.generator)[:, None]
        episode.history = history
        fresh = task.observe(self.state.select(env_ids), episode.select(env_ids), self.generator)
        if first_time:
            self.observations = TensorDict(fresh, batch_size=[self.num_envs])
            return
        # The observations before the reset belong to the step's outcome: the new rows go into a copy.
        self.observations = self.observations.clone()
        for name, value in fresh.items():
            self.observations[name][env_ids] = value

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues bit for bit, but for the robots' state."""
        return {
            "episode": {name: value.clone() for name, value in vars(self.episode).items()},
            "episode_return": self.episode_return.clone(),
            "curriculum": self.curriculum.state_dict() if self.curriculum is not None else {},
            "generator": self.generator.get_state(),
            "observations": {name: value.clone() for name, value in self.observations.items()},
        }

    def load_state_dict(self, values: Mapping[str, Any], state: RobotState, tile_of: Tensor) -> None:
        """Continues from `state_dict()` of the same task, size and seed, with robots in `state` on the tiles [E]."""
        device = self.task.device
        self.state = state
        self.tile_of.copy_(tile_of)
        self.episode = Episode(**{name: value.to(device, copy=True) for name, value in values["episode"].items()})
        self.episode_return = values["episode_return"].to(device, copy=True)
        if self.curriculum is not None:
            self.curriculum.load_state_dict(values["curriculum"])
        self.generator.set_state(values["generator"])
        groups = {name: value.to(device, copy=True) for name, value in values["observations"].items()}
        self.observations = TensorDict(groups, batch_size=[self.num_envs])
