"""One robot under a trained policy: what every way of watching steps and reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from p3kernels import MomentMatching
from trainer.engines.env import one_thread
from trainer.engines.mujoco.env import MujocoEnv
from trainer.models.actor import LatentActor
from trainer.runs.policy import action_of
from trainer.tasks import LocomotionTask

LATENTS = ("mean", "sample", "policy")
"""Ways of acting, as `action_of` has them."""
SPREAD_SAMPLES = 64
"""Latents drawn for the sampled std: one reading of it is known to 9 %."""
_LONG = 1_000_000_000  # steps until the task would draw the next command


@dataclass(frozen=True)
class Spread:
    """How uncertain latent and action are, at one observation."""

    latent: list[float]
    """[Z]: std of the latent; empty without one."""
    matched: list[float]
    """[A]: std of the action by the latent, by moment matching."""
    sampled: list[float]
    """[A]: the same over sampled latents."""
    exploration: list[float]
    """[A]: std of the exploration noise."""


@dataclass
class Tally:
    """What has happened since the session began."""

    episodes: int = 0
    """Episodes that have ended."""
    falls: int = 0
    traversed: int = 0
    """Courses walked to their goal."""
    seconds: float = 0.0
    """Seconds of the running episode."""
    reward: float = 0.0
    """Reward of the running episode."""
    last: str = ""
    """How the last episode ended."""


class Session:
    """Environment 0 of an environment of one, under an actor.

    Args:
        actor: As `load_candidate` gives it.
        task: That it was trained for.
        latent: One of LATENTS.
        difficulty: Difficulty of the terrain; None on a plane.
        terrain: Name of the terrain; the task's first by default.
        seed: Seed of the episodes.
    """

    def __init__(
        self,
        actor: LatentActor,
        task: LocomotionTask,
        *,
        latent: str = "mean",
        difficulty: float | None = None,
        terrain: str | None = None,
        seed: int = 0,
    ) -> None:
        self.actor, self.task, self.latent = actor, task, latent
        self.dt = task.config.control_dt
        self.env = MujocoEnv(task, 1, seed=seed, num_threads=0, difficulty=difficulty)
        self.tally = Tally()
        self._by_hand: torch.Tensor | None = None
        if terrain is not None:
            self.restart(terrain=terrain)

    def step(self) -> None:
        """One control step; an episode that ends is followed by the next."""
        with torch.no_grad(), one_thread():
            self._command()
            action = action_of(self.actor, self.latent)(self.env.get_observations())
            _, reward, done, extras = self.env.step(action)
        tally = self.tally
        tally.seconds += self.dt
        tally.reward += reward.item()
        if done.item():
            ended = extras["episodes"]
            fell, traversed = bool(ended["fell"].item()), bool(ended["traversed"].item())
            how = "fell" if fell else "traversed" if traversed else "timed out"
            self.tally = Tally(
                tally.episodes + 1,
                tally.falls + fell,
                tally.traversed + traversed,
                last=f"{how} after {tally.seconds:.1f} s",
            )

    def restart(self, *, difficulty: float | None = None, terrain: str | None = None) -> None:
        """A new episode now, of this difficulty and on this terrain from now on where they are given."""
        self.env.restart(difficulty=difficulty, terrain=terrain)
        self.tally.seconds = self.tally.reward = 0.0

    def drive(self, command: Sequence[float] | None) -> None:
        """Commands forward and sideways velocity and yaw rate by hand from now on; None leaves them to the task."""
        if command is None and self._by_hand is not None:
            self.env.episode.command_left[0] = 0  # the task draws one at the next step
        self._by_hand = None if command is None else torch.tensor(command, dtype=torch.float32)

    def _command(self) -> None:
        if self._by_hand is None:
            return
        episode = self.env.episode
        episode.command = self._by_hand[None].clone()
        episode.command_left[0] = _LONG
        if self.task.config.keep_heading:  # the task makes the yaw rate of the heading: so that is what turns
            episode.heading[0] += self._by_hand[2] * self.dt
            episode.line[0] = self.env.state.root_pos[0, :2]

    @property
    def difficulty(self) -> float:
        """Difficulty of the terrain; 0 on a plane."""
        tiles = self.env.engine.tiles
        return tiles[int(self.env.engine.tile_of[0])].difficulty if tiles else 0.0

    @property
    def terrain(self) -> str:
        """Name of the terrain the robot is on; empty on a plane."""
        tiles = self.env.engine.tiles
        return tiles[int(self.env.engine.tile_of[0])].name if tiles else ""

    @property
    def proprio_latent(self) -> int:
        """Columns of the latent that tell of the history; those of the scan come after them."""
        encoder = getattr(self.actor, "encoder", None)
        return 0 if encoder is None else encoder.proprio_latent

    @property
    def command(self) -> tuple[float, float, float]:
        """Forward and sideways velocity and yaw rate that the robot is asked for now."""
        forward, left, turn = self.env.episode.command[0].tolist()
        return forward, left, turn

    @property
    def velocity(self) -> tuple[float, float, float]:
        """Forward and sideways velocity and yaw rate that it has."""
        forward, left, _ = self.task.velocity(self.env.state)[0].tolist()
        return forward, left, self.env.state.root_ang_vel[0, 2].item()

    @property
    def distance(self) -> float:
        """Metres from where the episode began."""
        return (self.env.state.root_pos[0, :2] - self.env.episode.spawn[0]).norm().item()

    def spread(self) -> Spread:
        """Spread of the actions at the present observation."""
        with torch.no_grad(), one_thread():
            actor = self.actor
            context, latent = actor.encode(self.env.get_observations())
            matched = MomentMatching().policy(actor.mlp, context, latent.mean, latent.std, actor.action_std)
            noise = torch.randn(SPREAD_SAMPLES, latent.mean.shape[1])
            inputs = torch.cat([context.expand(SPREAD_SAMPLES, -1), latent.mean + latent.std * noise], -1)
            return Spread(
                latent=latent.std[0].tolist(),
                matched=matched.latent_var[0].sqrt().tolist(),
                sampled=actor.mlp(inputs).std(0).tolist(),
                exploration=actor.action_std.tolist(),
            )
