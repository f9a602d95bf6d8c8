"""A task in an engine, as an rsl_rl environment.

Beyond what rsl_rl asks for, `extras["final_observations"]` has the observations before any reset, so that a time-out
can be bootstrapped from the state it really ended in, and `extras["episodes"]` tells of the episodes that ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from trainer.engines.mujoco import MujocoEngine
from trainer.tasks.curriculum import Curriculum
from trainer.tasks.interface import ACTION_CLIP
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.state import Episode
from trainer.tasks.terrains import Terrain, make_terrain


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: its operations in a step are small, and the cores are the simulator's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def make_tiles(task: LocomotionTask, seed: int) -> list[Terrain]:
    """Every terrain of the task at every level, in `tile_variants` variants; variants run fastest, then levels."""
    config = task.config
    tiles = []
    for kind, name in enumerate(config.terrains):
        for level in range(config.num_levels):
            for variant in range(config.tile_variants):
                rng = np.random.default_rng([seed, kind, level, variant])
                tiles.append(make_terrain(name, level / (config.num_levels - 1), rng))
    return tiles


class LocomotionEnv(VecEnv):
    """E environments of one task in native MuJoCo.

    Args:
        task: What is learned.
        num_envs: E.
        seed: Of everything random here: noise, commands, pushes, dynamics, terrains.
        num_threads: Simulator threads; None for one a core.
        level: Fixes the terrain level instead of the curriculum, for evaluation.
        auto_reset: Begin a new episode where one ends. Without it every random number is drawn at the same step
            whatever the policy does, so that policies can be compared on the same ones.
    """

    def __init__(
        self,
        task: LocomotionTask,
        num_envs: int,
        *,
        seed: int = 0,
        num_threads: int | None = None,
        level: int | None = None,
        auto_reset: bool = True,
    ) -> None:
        config = task.config
        if level is not None and not 0 <= level < config.num_levels:
            raise ValueError(f"level: expected 0 to {config.num_levels - 1}, got {level}")
        self.task, self.num_envs, self.num_actions = task, num_envs, task.num_actions
        self.max_episode_length = task.max_steps
        self.device = "cpu"
        self.cfg: dict[str, Any] = {"task": config.name, "num_envs": num_envs, "seed": seed}
        self.generator = torch.Generator().manual_seed(seed)
        self._fixed_level, self._auto_reset = level, auto_reset
        self._tiles = make_tiles(task, seed)
        self.engine = MujocoEngine(
            config.robot, self._tiles, num_envs, control_dt=config.control_dt, num_threads=num_threads
        )
        self.curriculum: Curriculum | None = None
        if self._tiles:
            self.curriculum = Curriculum(num_envs, len(config.terrains), config.num_levels, self.generator)
            self._goal = torch.tensor([tile.goal_distance for tile in self._tiles])
            self._spawns = torch.tensor([tile.spawn for tile in self._tiles], dtype=torch.float32)
            self._headings = torch.tensor([tile.heading for tile in self._tiles], dtype=torch.float32)
            self._half_size = torch.tensor([tile.size for tile in self._tiles]) / 2
        robot = config.robot
        self.episode = Episode.empty(
            num_envs, robot.num_joints, self.num_actions, len(robot.feet), (config.history, task.proprio_size)
        )
        self._episode_return = torch.zeros(num_envs)
        self._term_names = [f"reward/{name}" for name in config.rewards]
        everyone = torch.arange(num_envs)
        self.state = self.engine.reset(everyone, *self._draw_start(everyone))
        self._begin(everyone)
        groups = task.observe(self.state, self.episode, self.generator)
        self._observations = TensorDict(groups, batch_size=[num_envs])

    @property
    def episode_length_buf(self) -> Tensor:
        """[E]: steps of the running episodes."""
        return self.episode.step

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self.episode.step = value.to(torch.int64)

    def get_observations(self) -> TensorDict:
        """The current observation groups."""
        return self._observations

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """One control step of actions [E, A]."""
        task, episode = self.task, self.episode
        actions = actions.detach().clamp(-ACTION_CLIP, ACTION_CLIP)
        episode.last_action, episode.action = episode.action, actions
        episode.joint_vel_before = self.state.joint_vel
        self._push()
        self.state, broken = self.engine.step(task.targets(actions))
        self._advance()
        terms, why = task.reward_terms(self.state, episode), ""
        self._remember()
        groups = self.task.observe(self.state, episode, self.generator)
        unfit = ~torch.isfinite(torch.stack([value.sum(-1) for value in groups.values()])).all(0)
        broken = broken | unfit | ~torch.isfinite(terms.sum(0))
        if broken.any():
            why = self._why_broken(groups, terms)
            for name, value in groups.items():
                value[unfit] = self._observations[name][unfit]
            terms = torch.where(broken, 0.0, terms)
        final = TensorDict(groups, batch_size=[self.num_envs])
        reward = task.config.control_dt * terms.sum(0)
        terminated = task.terminated(self.state) | broken
        reward = reward - task.config.fall_penalty * (terminated & ~broken)
        self._episode_return += reward
        traversed = self._traversed() & ~broken
        timed_out = (episode.step >= task.max_steps) | traversed | self._left_tile()
        timed_out &= ~terminated
        done = terminated | timed_out
        extras: dict[str, Any] = {
            "time_outs": timed_out,
            "final_observations": final,
            "traversed": traversed,
            "broken": broken,
            "why_broken": why,
            "log": dict(zip(self._term_names, terms.mean(1).tolist(), strict=True)),
        }
        if self.curriculum is not None:
            extras["log"]["curriculum/level"] = self.curriculum.mean_level()
        self._observations = final
        if done.any():
            ended = done.nonzero().squeeze(-1)
            extras["episodes"] = {
                "reward": self._episode_return[ended],
                "length": episode.step[ended].float(),
                "fell": terminated[ended].float(),
                "traversed": traversed[ended].float(),
            }
            if self._auto_reset:
                self._reset(ended, traversed[ended], terminated[ended])
        return self._observations, reward, done, extras

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

    def _push(self) -> None:
        episode, ranges = self.episode, self.task.config.dynamics
        episode.push_left = episode.push_left - 1
        due = (episode.push_left <= 0).nonzero().squeeze(-1)
        if len(due):
            low, high = ranges.push_velocity
            self.engine.push(due, low + (high - low) * torch.rand(len(due), 2, generator=self.generator))
            episode.push_left[due] = self.task.sample_steps(ranges.push_interval, len(due), self.generator)

    def _remember(self) -> None:
        """Appends the current proprioception, as the sensors give it, to the history."""
        newest = self.task.noisy(self.task.proprio(self.state, self.episode), self.generator)
        self.episode.history = torch.cat([self.episode.history[:, 1:], newest[:, None]], 1)

    def _why_broken(self, groups: dict[str, Tensor], terms: Tensor) -> str:
        """The simulator's own words, or else what is not finite although the simulator found nothing wrong."""
        warning = self.engine.first_warning()
        if warning is not None:
            return warning
        rows = {f"observation {name!r}": value for name, value in groups.items()}
        rows |= dict(zip(self._term_names, terms, strict=True))
        unfit = [name for name, value in rows.items() if not torch.isfinite(value).all()]
        return f"{unfit[0]} is not finite" if unfit else "the simulator's state is absurdly large"

    def _distance(self) -> Tensor:
        return (self.state.root_pos[:, :2] - self.episode.spawn).norm(dim=-1)

    def _traversed(self) -> Tensor:
        if not self._tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool)
        return self._distance() >= self._goal[self.engine.tile_of]

    def _left_tile(self) -> Tensor:
        if not self._tiles:
            return torch.zeros(self.num_envs, dtype=torch.bool)
        margin = self._half_size[self.engine.tile_of] - 0.3
        return (self.state.root_pos[:, :2].abs() > margin).any(-1)

    def _reset(self, ended: Tensor, traversed: Tensor, fell: Tensor) -> None:
        if self.curriculum is not None and self._fixed_level is None:
            lagged = self._distance()[ended] < 0.5 * self.episode.commanded_distance[ended]
            self.curriculum.update(ended, traversed, fell | lagged)
        self._start(ended)

    def restart(self, *, level: int | None = None, terrain: str | None = None) -> TensorDict:
        """Begins a new episode everywhere, at this level and on this terrain from now on where they are given.

        Raises:
            ValueError: The task has no such level or terrain.
        """
        config = self.task.config
        if terrain is not None and terrain not in config.terrains:
            known = f"expected one of {', '.join(config.terrains)}" if config.terrains else f"{config.name} has none"
            raise ValueError(f"terrain: {known}, got {terrain!r}")
        if level is not None and not (config.terrains and 0 <= level < config.num_levels):
            known = f"expected 0 to {config.num_levels - 1}" if config.terrains else f"{config.name} has none"
            raise ValueError(f"level: {known}, got {level}")
        if level is not None:
            self._fixed_level = level
        if terrain is not None and self.curriculum is not None:
            self.curriculum.terrain_type[:] = config.terrains.index(terrain)
        self._start(torch.arange(self.num_envs))
        return self._observations

    def _start(self, env_ids: Tensor) -> None:
        """New episodes for env_ids [K], and their first observations."""
        self.state.assign(env_ids, vars(self.engine.reset(env_ids, *self._draw_start(env_ids))))
        self._begin(env_ids)
        fresh = self.task.observe(self.state.select(env_ids), self.episode.select(env_ids), self.generator)
        # The observations before the reset belong to `extras`: the new rows go into a copy.
        self._observations = self._observations.clone()
        for name, value in fresh.items():
            self._observations[name][env_ids] = value

    def _draw_start(self, env_ids: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Tile, root position, yaw, joint positions and dynamics of new episodes."""
        count, task, generator = len(env_ids), self.task, self.generator
        uniform = torch.rand(count, 4, generator=generator)
        if self.curriculum is None:
            tile = torch.zeros(count, dtype=torch.int64)
            spawn, heading = torch.zeros(count, 3), torch.tensor([-np.pi, np.pi], dtype=torch.float32).expand(count, 2)
        else:
            config = task.config
            level = self.curriculum.level[env_ids]
            if self._fixed_level is not None:
                level = torch.full_like(level, self._fixed_level)
            variant = (uniform[:, 3] * config.tile_variants).long()
            kind = self.curriculum.terrain_type[env_ids]
            tile = (kind * config.num_levels + level) * config.tile_variants + variant
            spawn, heading = self._spawns[tile], self._headings[tile]
        root = spawn + torch.tensor([0.0, 0.0, task.config.robot.standing_height + 0.02])
        root[:, :2] += 0.2 * (uniform[:, :2] - 0.5)
        if task.config.robot.planar:
            root[:, 1] = 0.0
        yaw = heading[:, 0] + (heading[:, 1] - heading[:, 0]) * uniform[:, 2]
        scatter = 0.1 * (2 * torch.rand(count, task.config.robot.num_joints, generator=generator) - 1)
        self.episode.heading[env_ids] = yaw
        self.episode.spawn[env_ids] = root[:, :2]
        return tile, root, yaw, task.default_pos + scatter, task.sample_dynamics(count, generator)

    def _begin(self, env_ids: Tensor) -> None:
        """Clears the buffers of env_ids [K] for a new episode; spawn and heading are already those of the new one."""
        episode, task, count = self.episode, self.task, len(env_ids)
        for name in ("step", "action", "last_action", "joint_vel_before", "air_time", "contact_time"):
            getattr(episode, name)[env_ids] = 0
        episode.commanded_distance[env_ids] = 0
        self._episode_return[env_ids] = 0
        episode.command[env_ids], episode.command_left[env_ids] = task.sample_command(count, self.generator)
        episode.push_left[env_ids] = task.sample_steps(task.config.dynamics.push_interval, count, self.generator)
        first = task.proprio(self.state.select(env_ids), episode.select(env_ids))
        history = episode.history.clone()  # observations already given away are views of it
        history[env_ids] = task.noisy(first, self.generator)[:, None]
        episode.history = history

    def state_dict(self) -> dict[str, Any]:
        """Tensors from which `load_state_dict` continues bit for bit."""
        return {
            "engine": self.engine.state_dict(),
            "episode": {name: value.clone() for name, value in vars(self.episode).items()},
            "episode_return": self._episode_return.clone(),
            "curriculum": self.curriculum.state_dict() if self.curriculum is not None else {},
            "generator": self.generator.get_state(),
            "observations": {name: value.clone() for name, value in self._observations.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from `state_dict()` of an environment of the same task, size and seed."""
        self.state = self.engine.load_state_dict(state["engine"])
        self.episode = Episode(**{name: value.clone() for name, value in state["episode"].items()})
        self._episode_return = state["episode_return"].clone()
        if self.curriculum is not None:
            self.curriculum.load_state_dict(state["curriculum"])
        self.generator.set_state(state["generator"])
        groups = {name: value.clone() for name, value in state["observations"].items()}
        self._observations = TensorDict(groups, batch_size=[self.num_envs])
