"""A small world for the algorithm's tests: everything observed is a function of a state that turns."""

from __future__ import annotations

from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from trainer.algorithms import P3PPO, parse_method
from trainer.models import P3Actor

PROPRIO, FRAMES, SCAN_SHAPE, ACTIONS, STATE = 12, 3, (5, 7), 4, 4
SIZES = {"proprio": PROPRIO, "history": FRAMES * PROPRIO, "extero": SCAN_SHAPE[0] * SCAN_SHAPE[1]} | {
    "critic": 6,
    "velocity": 3,
}
PROPRIO_LATENT, EXTERO_LATENT = 3, 5
GROUPS = {"actor": ["proprio", "history", "extero"]}


def observations(rows: int) -> TensorDict:
    """Noise of the right shapes, with means and scales of its own in every column."""
    groups = {
        name: torch.linspace(-2, 2, size) + torch.linspace(0.5, 3, size) * torch.randn(rows, size)
        for name, size in SIZES.items()
    }
    return TensorDict(groups, batch_size=[rows])


def make_actor(obs: TensorDict | None = None, **changed: object) -> P3Actor:
    """Small, with statistics that are neither 0 nor 1."""
    obs = observations(50) if obs is None else obs
    settings = {"scan_shape": SCAN_SHAPE, "proprio_latent": PROPRIO_LATENT, "extero_latent": EXTERO_LATENT}
    actor = P3Actor(obs, GROUPS, "actor", ACTIONS, **{"hidden_dims": (32, 16), **settings, **changed})
    actor.update_normalization(obs)
    return actor


class TurningEnv(VecEnv):
    """States [E, 4] turn by a fixed rotation; an episode ends by chance, or as a time-out after 10 steps.

    Args:
        num_envs: E.
        seed: Of the states and of the ends.
        with_final: Gives `extras["final_observations"]`.
    """

    def __init__(self, num_envs: int = 16, seed: int = 0, *, with_final: bool = True) -> None:
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, ACTIONS, 10
        self.device, self.cfg, self.with_final = "cpu", {}, with_final
        constant = torch.Generator().manual_seed(1)
        self.maps = {name: torch.randn(STATE, size, generator=constant) for name, size in SIZES.items()}
        self.maps["history"] = torch.zeros(0)  # made of the frames
        self.target = torch.randn(STATE, ACTIONS, generator=constant)
        self.turn = torch.linalg.qr(torch.randn(STATE, STATE, generator=constant))[0]
        self.generator = torch.Generator().manual_seed(seed)
        self.state = torch.randn(num_envs, STATE, generator=self.generator)
        self.episode_length_buf = torch.arange(num_envs) % self.max_episode_length

    def get_observations(self) -> TensorDict:
        groups = {name: self.state @ matrix for name, matrix in self.maps.items() if name != "history"}
        backwards = [torch.linalg.matrix_power(self.turn.T, age) for age in reversed(range(FRAMES))]
        groups["history"] = torch.cat([self.state @ turn @ self.maps["proprio"] for turn in backwards], -1)
        return TensorDict(groups, batch_size=[self.num_envs])

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        reward = -(actions - self.state @ self.target).square().mean(-1)
        self.state = self.state @ self.turn
        self.episode_length_buf = self.episode_length_buf + 1
        fell = torch.rand(self.num_envs, generator=self.generator) < 0.05
        timed_out = (self.episode_length_buf >= self.max_episode_length) & ~fell
        done = fell | timed_out
        extras: dict[str, Any] = {"time_outs": timed_out}
        if self.with_final:
            extras["final_observations"] = self.get_observations()
        fresh = torch.randn(self.num_envs, STATE, generator=self.generator)
        self.state = torch.where(done[:, None], fresh, self.state)
        self.episode_length_buf = torch.where(done, 0, self.episode_length_buf)
        return self.get_observations(), reward, done, extras


def flipped(values: Tensor) -> Tensor:
    """Columns in the other order, the outer ones with the other sign; twice is the identity."""
    size = values.shape[-1]
    sign = torch.tensor([-1.0 if min(i, size - 1 - i) % 2 == 0 else 1.0 for i in range(size)], dtype=values.dtype)
    return values.flip(-1) * sign


class Flip:
    """A symmetry of the observations' form; the world behind them is not symmetric."""

    def observations(self, observations: TensorDict) -> TensorDict:
        images = {name: self.group(name, value) for name, value in observations.items()}
        return TensorDict(images, batch_size=observations.batch_size)

    def group(self, name: str, values: Tensor, observations: TensorDict | None = None) -> Tensor:
        if name == "history":
            return flipped(values.unflatten(-1, (FRAMES, PROPRIO))).flatten(-2)
        return flipped(values)

    def actions(self, actions: Tensor) -> Tensor:
        return flipped(actions)


class MirroredEnv(TurningEnv):
    """Declares a symmetry."""

    symmetry = Flip()


def augmented(env: VecEnv, obs: TensorDict | None, actions: Tensor | None) -> tuple[Any, Any]:
    """`Flip` as a function of rsl_rl's convention."""
    assert isinstance(env, VecEnv)
    observed = None if obs is None else torch.cat([obs, Flip().observations(obs)])
    return observed, None if actions is None else torch.cat([actions, flipped(actions)])


def config(method: str = "mm", *, steps: int = 8, **algorithm: Any) -> dict[str, Any]:
    """An rsl_rl config of small networks, with the method's actor; the critic's groups overlap the actor's."""
    chosen = parse_method(method)
    sizes = {"proprio_latent": PROPRIO_LATENT, "extero_latent": EXTERO_LATENT}
    return {
        "num_steps_per_env": steps,
        "save_interval": 50,
        "obs_groups": {"actor": ["proprio", "history", "extero"], "critic": ["proprio", "critic"]},
        "algorithm": {
            "class_name": "trainer.algorithms:P3PPO",
            "method": method,
            "rnd_cfg": None,
            "num_learning_epochs": 2,
            "num_mini_batches": 2,
            **algorithm,
        },
        "actor": {
            "class_name": chosen.actor,
            "hidden_dims": [32, 16],
            "scan_shape": list(SCAN_SHAPE),
            "init_std": 0.3,
            **{name: size for name, size in sizes.items() if hasattr(chosen.options, name)},
        },
        "critic": {"class_name": "rsl_rl.models:MLPModel", "hidden_dims": [32, 16], "obs_normalization": True},
    }


def construct(method: str = "mm", env: VecEnv | None = None, *, steps: int = 8, **algorithm: Any) -> P3PPO:
    """The algorithm of `config`, its actor's last layer scaled up so that the latent matters to the action."""
    env = env or TurningEnv()
    made = P3PPO.construct_algorithm(env.get_observations(), env, config(method, steps=steps, **algorithm), "cpu")
    made.train_mode()
    with torch.no_grad():
        made.actor.mlp[-1].weight.mul_(10.0)
    return made


def rollout(algorithm: P3PPO, env: VecEnv) -> None:
    """Fills the storage as rsl_rl's runner does."""
    with torch.inference_mode():
        obs = env.get_observations()
        for _ in range(algorithm.storage.num_transitions_per_env):
            obs, reward, done, extras = env.step(algorithm.act(obs))
            algorithm.process_env_step(obs, reward, done, extras)
        algorithm.compute_returns(obs)


def weights(algorithm: P3PPO) -> dict[str, Tensor]:
    """Copies of every parameter of actor and critic."""
    networks = {"actor": algorithm.actor, "critic": algorithm.critic}
    return {
        f"{prefix}.{name}": parameter.detach().clone()
        for prefix, network in networks.items()
        for name, parameter in network.named_parameters()
    }


def statistics(algorithm: P3PPO) -> list[Tensor]:
    """Copies of the normalisers' buffers."""
    return [buffer.clone() for network in (algorithm.actor, algorithm.critic) for buffer in network.buffers()]


def adam_state(algorithm: P3PPO) -> list[Tensor]:
    """Copies of the optimiser's steps and moments."""
    state = algorithm.optimizer.state_dict()["state"]
    return [value.clone() for entry in state.values() for value in entry.values()]


def same(first: Any, second: Any) -> bool:
    """Bit for bit, of two lists or two dicts of tensors."""
    if isinstance(first, dict):
        assert list(first) == list(second)
        first, second = first.values(), second.values()
    return all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def trained(method: str = "mm", num_envs: int = 16, **algorithm: Any) -> tuple[P3PPO, TurningEnv]:
    """After one update, so that statistics and Adam's state are no longer trivial, with the next rollout stored."""
    env = (MirroredEnv if algorithm.get("mirror_share") else TurningEnv)(num_envs)
    made = construct(method, env, **algorithm)
    rollout(made, env)
    made.update()
    rollout(made, env)
    return made, env
