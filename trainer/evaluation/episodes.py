"""Episodes of a policy, and the conditions they run under."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.config.names import did_you_mean
from trainer.engines.env import TaskEnv, one_thread
from trainer.tasks import LocomotionTask, TaskConfig
from trainer.tasks.actuation import MOTOR_FACTORS
from trainer.tasks.randomization import Dynamics, ObservationNoise, Range
from trainer.tasks.running import FOLLOWED
from trainer.tasks.terrains import TERRAINS

PLANE = "plane"
"""The endless plane, beside the names of `TERRAINS`."""
COURSES = ("single_row_stones", "stairs", "gaps")
"""Where policies of tasks with terrains are judged: the paper's stepping stones, stairs and gaps."""
_TILES = 10
"""Tiles of one terrain, with different random stones: as many as a success count has trials."""
_LEAST_FRICTION = 0.05
_LEAST_FACTOR = 0.05


@dataclass(frozen=True)
class Evaluation:
    """Means over one episode of each environment."""

    survival: float
    """Share of robots that did not fall within the time."""
    lifetime: float
    """Seconds until the fall, the end of the course or its edge, or the whole time."""
    reward: float
    """Sum of the rewards over the lifetime."""
    distance: float
    """Metres from the start, at the end of the lifetime."""
    episodes: int
    success: float = 0.0
    """Share that traversed its course; on the plane, that did not fall and followed its commands."""
    energy: float = 0.0
    """Joules over the lifetime: Σ |torque · joint velocity| dt over all joints."""


@dataclass(frozen=True)
class Episodes:
    """One episode of each of N robots; [N] each."""

    time: Tensor
    """Seconds until it fell, arrived or left the course; the whole time if it did none of these."""
    reward: Tensor
    """Sum of the rewards over that time."""
    distance: Tensor
    """Metres from the start, at the end of that time."""
    energy: Tensor
    """J over that time."""
    torque: Tensor
    """N m: root of the mean square over the joints and over that time."""
    foot_force: Tensor
    """N on the foot that bears more, mean over that time."""
    fell: Tensor
    """bool: whether it fell."""
    arrived: Tensor
    """bool: whether it traversed its course."""
    success: Tensor
    """bool: arrived; on the plane, did not fall and went at least half of what the commands asked for."""
    followed: Tensor
    """Metres along the commands, in their direction, over that time."""
    commanded: Tensor
    """Metres that the commands asked for over that time."""
    seconds: float
    """Seconds of the whole time."""

    @property
    def lifetime(self) -> Tensor:
        """Seconds as the paper counts them: who has arrived has the whole time."""
        return torch.where(self.arrived, self.seconds, self.time)

    @property
    def followed_share(self) -> Tensor:
        """Share of the commanded distance that was walked; 1 where nothing was commanded."""
        return torch.where(self.commanded > 0, self.followed / self.commanded.clamp(min=1e-6), 1.0)

    @property
    def total_reward(self) -> Tensor:
        """Over the lifetime; who arrived before the time was up is credited with its own mean rate for the rest.

        Without that the faster robot would have the smaller total.
        """
        return torch.where(self.arrived, self.reward * (self.seconds / self.time), self.reward)


def run_episodes(act: Callable[[TensorDict], Tensor], env: TaskEnv, seconds: float, *, rests: bool = True) -> Episodes:
    """Runs one episode in each environment of `env`, which is at its beginning, up to `seconds`.

    Args:
        act: Actions [E, A] of observations [E].
        env: The environments.
        seconds: Length of an episode.
        rests: Whether robots whose episode is over may be left as they are; what is measured is the same.
    """
    dt = env.task.config.control_dt
    running = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    fell, arrived = torch.zeros_like(running), torch.zeros_like(running)
    time, reward, distance, energy, torque, force, followed, commanded = (
        torch.zeros(env.num_envs, device=env.device) for _ in range(8)
    )
    with torch.inference_mode(), one_thread():
        observations = env.get_observations()
        for _ in range(round(seconds / dt)):
            start = env.episode.spawn.clone()
            before = env.state.root_pos[:, :2].clone()
            # As of before the step, too: an environment that begins anew has forgotten them after it.
            followed = torch.where(running, env.episode.followed_distance, followed)
            commanded = torch.where(running, env.episode.commanded_distance, commanded)
            observations, rewards, dones, extras = env.step(act(observations))
            reward += torch.where(running, rewards, 0.0)
            time += running * dt
            distance = torch.where(running, (before - start).norm(dim=-1), distance)
            power = (env.state.joint_torque * env.state.joint_vel).abs().sum(-1)
            energy += torch.where(running, power * dt, 0.0)
            torque += torch.where(running, env.state.joint_torque.square().mean(-1) * dt, 0.0)
            force += torch.where(running, env.state.foot_force.norm(dim=-1).amax(-1) * dt, 0.0)
            fell |= running & dones & ~extras["time_outs"]
            arrived |= running & extras["time_outs"] & extras["traversed"]
            over = (running & dones).nonzero().squeeze(-1)
            if over.shape[0]:
                running &= ~dones
                if not running.any():
                    break
                if rests:
                    env.rest(over)
    success = arrived if env.curriculum is not None else ~fell & (followed >= FOLLOWED * commanded)
    return Episodes(
        time=time.cpu(),
        reward=reward.cpu(),
        distance=distance.cpu(),
        energy=energy.cpu(),
        torque=(torque / time).sqrt().cpu(),
        foot_force=(force / time).cpu(),
        fell=fell.cpu(),
        arrived=arrived.cpu(),
        success=success.cpu(),
        followed=followed.cpu(),
        commanded=commanded.cpu(),
        seconds=seconds,
    )


def evaluate(act: Callable[[TensorDict], Tensor], env: TaskEnv, seconds: float) -> Evaluation:
    """Runs one episode in each environment of a new `env`, up to `seconds`; a course traversed is survived."""
    episodes = run_episodes(act, env, seconds)
    return Evaluation(
        survival=1.0 - episodes.fell.float().mean().item(),
        lifetime=episodes.time.mean().item(),
        reward=episodes.reward.mean().item(),
        distance=episodes.distance.mean().item(),
        episodes=env.num_envs,
        success=episodes.success.float().mean().item(),
        energy=episodes.energy.mean().item(),
    )


def terrain_difficulty(task: LocomotionTask, difficulty: float | None) -> float | None:
    """The difficulty to fix: 0 by default on terrains, none on a plane.

    Raises:
        ValueError: A difficulty for a task without terrains, or one that is not in [0, 1].
    """
    if not task.config.terrains:
        if difficulty is not None:
            raise ValueError(f"--difficulty: {task.config.name} has no terrains")
        return None
    if difficulty is not None and not 0 <= difficulty <= 1:
        raise ValueError(f"--difficulty: expected numbers in [0, 1], got {difficulty:g}")
    return difficulty or 0.0


def default_terrains(config: TaskConfig) -> tuple[str, ...]:
    """Where policies of a task are judged."""
    return COURSES if config.terrains else (PLANE,)


def trial_task(config: TaskConfig, terrain: str, strength: float, seconds: float, *, pushes: bool) -> LocomotionTask:
    """The task as it is evaluated: on one terrain, with randomisation of a given strength.

    A task without terrains takes to a course as the tasks with terrains do: straight ahead, keeping its heading.

    Args:
        config: Settings of the task.
        terrain: PLANE, or a name of `TERRAINS`.
        strength: Strength of randomised friction, masses and sensor noise: 0 for none, 1 for training's ranges.
        seconds: Length of an episode.
        pushes: Push the robots as in training.

    Raises:
        ValueError: There is no such terrain, or the strength is negative.
    """
    if terrain != PLANE and terrain not in TERRAINS:
        hint = did_you_mean(terrain, (PLANE, *TERRAINS))
        raise ValueError(f"--terrains: expected some of {', '.join((PLANE, *TERRAINS))}, got {terrain!r}{hint}")
    if not strength >= 0:
        raise ValueError(f"--strengths: expected numbers >= 0, got {strength}")
    dynamics, noise = scaled_dynamics(config.dynamics, strength), scaled_noise(config.noise, strength)
    if not pushes:
        dynamics = replace(dynamics, push_velocity=(0.0, 0.0))
    changed = replace(config, dynamics=dynamics, noise=noise, episode_seconds=seconds, tile_variants=_TILES)
    changed = replace(changed, soft_until=0)  # what is judged is the terrain as it is
    if terrain == PLANE:
        return LocomotionTask(replace(changed, terrains=()))
    if not config.terrains:
        changed = replace(
            changed,
            command_x=(max(0.4, config.command_x[0]), config.command_x[1]),
            command_y=(0.0, 0.0),
            standing_fraction=0.0,
            keep_heading=not config.robot.planar,
        )
    return LocomotionTask(replace(changed, terrains=(terrain,), command_seconds=(seconds, seconds)))


def scaled_dynamics(ranges: Dynamics, strength: float) -> Dynamics:
    """Friction around its middle, motors around 1, restitution, masses, offsets and delay around none; pushes stay."""
    low, high = ranges.friction
    middle, half = 0.5 * (low + high), 0.5 * (high - low) * strength
    return replace(
        ranges,
        friction=(max(middle - half, _LEAST_FRICTION), middle + half),
        restitution=_times(ranges.restitution, strength),
        added_mass=_times(ranges.added_mass, strength),
        com_xy=_times(ranges.com_xy, strength),
        com_z=_times(ranges.com_z, strength),
        action_delay=_times(ranges.action_delay, strength),
        **{name: _from_one(getattr(ranges, name), strength) for name in MOTOR_FACTORS},
    )


def scaled_noise(noise: ObservationNoise, strength: float) -> ObservationNoise:
    """Every width times `strength`."""
    return ObservationNoise(**{field.name: strength * getattr(noise, field.name) for field in fields(noise)})


def _from_one(ends: Range, strength: float) -> Range:
    low, high = (max(1.0 + strength * (end - 1.0), _LEAST_FACTOR) for end in ends)
    return low, high


def _times(ends: Range, factor: float) -> Range:
    return ends[0] * factor, ends[1] * factor
