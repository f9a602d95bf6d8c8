"""Left/right mirroring of rollouts: more rows of the same kind, for tasks that look the same in a mirror.

A share of a rollout's steps is seen a second time, in the mirror: observations, actions and what the representation is
trained towards are mirrored, returns and advantages are copied. The old value, around which the value's loss may be
clipped, and what the KL compares with are computed again at the mirrored observation, with the weights of the rollout.

The old likelihood of the ratio is copied. A mirrored action a′ at o′ was drawn by the mirror image of the policy, whose
density there is π(a | o): so π_new(a′ | o′) / π(a | o) is its importance weight, exactly, and PPO's clip holds the new
policy near that image. Rows with A > 0 draw the two sides together, and those with A < 0 that the policy would never
take are clipped away. With π(a′ | o′) in its place ratios begin at 1, but the score of an action that the policy would
never take grows with its distance, and rows with A < 0 push the two sides apart without end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from rsl_rl.env import VecEnv
from rsl_rl.utils import resolve_callable
from tensordict import TensorDict
from torch import Tensor

_KNOWN = {"data_augmentation_func", "use_data_augmentation", "use_mirror_loss", "mirror_loss_coeff", "env", "_env"}


class Symmetry(Protocol):
    """What an environment looks like in the mirror; `trainer.tasks.symmetry.TaskSymmetry` is one."""

    def observations(self, observations: TensorDict) -> TensorDict:
        """The image of all observation groups [B]."""

    def group(self, name: str, values: Tensor, observations: TensorDict) -> Tensor:
        """The image of `values` [B, N] in the place of the group `name` of `observations` [B]."""

    def actions(self, actions: Tensor) -> Tensor:
        """The image of actions [B, A]."""


class AugmentationFunction:
    """A symmetry by a function of rsl_rl's convention: rows and, after them, their images.

    Args:
        function: Called with `env`, `obs` and `actions`, of which one may be None.
        env: For the function.
    """

    def __init__(self, function: Callable[..., tuple[Any, Any]], env: VecEnv) -> None:
        self.function, self.env = function, env

    def observations(self, observations: TensorDict) -> TensorDict:
        """The image of all observation groups [B]."""
        both, _ = self.function(env=self.env, obs=observations, actions=None)
        return both[self._images(len(both), len(observations))]

    def group(self, name: str, values: Tensor, observations: TensorDict) -> Tensor:
        """The image of `values` [B, N] in the place of the group `name` of `observations` [B]."""
        replaced = observations.clone(recurse=False)
        replaced[name] = values
        image = self.observations(replaced)[name]
        assert isinstance(image, Tensor)
        return image

    def actions(self, actions: Tensor) -> Tensor:
        """The image of actions [B, A]."""
        _, both = self.function(env=self.env, obs=None, actions=actions)
        return both[self._images(len(both), len(actions))]

    @staticmethod
    def _images(found: int, rows: int) -> slice:
        if found != 2 * rows:
            raise ValueError(
                f"symmetry_cfg: data_augmentation_func has to give each row and one image of it: {2 * rows} rows for"
                f" {rows}, got {found}"
            )
        return slice(rows, None)


class Mirroring:
    """Which steps of a rollout are seen in the mirror too, and what of them.

    Args:
        symmetry: The environment's.
        share: Share of the rollout's steps, in (0, 1]; over several updates where it is no whole number of steps.
        frame_group: The observation group that `next_proprio` is of.

    Attributes:
        images: The mirrored observations of the last update; None where no step was mirrored.
        scalars: Scalars of the last update, for the log; none where no step was mirrored. `asymmetry` is the KL of the
            policy from its mirror image, estimated on their actions as the mean of log π(a | o) - log π(a′ | o′).
    """

    images: TensorDict | None = None

    def __init__(self, symmetry: Symmetry, share: float, frame_group: str) -> None:
        self.symmetry, self.share, self.frame_group = symmetry, share, frame_group
        self.scalars: dict[str, Tensor] = {}

    def extended(
        self,
        rollout: Mapping[str, Any],
        iteration: int,
        num_envs: int,
        critic: Callable[[TensorDict], Tensor],
        remember: Callable[[Mapping[str, Any]], dict[str, Tensor]],
    ) -> dict[str, Any]:
        """A rollout's rows and, after them, the images of those that are mirrored in the update `iteration`.

        `acted_log_prob` [B] is the likelihood by what acted: of an image, the policy's mirror image. `drawn` [B] is
        1 for the rollout's own rows and 0 for images.

        Args:
            rollout: [T·E] rows of each: row t·E + e is step t of environment e. The images have the same order.
            iteration: Updates so far.
            num_envs: E.
            critic: Values [B, 1] of observations [B].
            remember: What is stored with the actions of rows [B], by the weights of the rollout.
        """
        steps = self.steps(iteration, len(rollout["actions"]) // num_envs)
        self.images, self.scalars = None, {}
        own = rollout["log_prob"]
        rollout = {**rollout, "acted_log_prob": own, "drawn": torch.ones_like(own)}
        if not steps:
            return rollout
        rows = torch.cat([torch.arange(num_envs) + step * num_envs for step in steps]).to(rollout["actions"].device)
        # What follows a rollout's last step, and the last image, is no row: it must not be taken for the next one.
        continues = rollout["continues"].clone()
        continues[-num_envs:] = 0.0
        rollout = {**rollout, "continues": continues}
        images = {name: value[rows] for name, value in rollout.items()}
        images["observations"] = self.observations(images["observations"])
        images["actions"] = self.symmetry.actions(images["actions"])
        images |= remember(images)
        with torch.no_grad():
            images["values"] = critic(images["observations"]).squeeze(-1)
        images["continues"][-num_envs:] = 0.0
        images["drawn"] = torch.zeros_like(images["drawn"])
        self.images = images["observations"]
        self.scalars = {"asymmetry": (images["acted_log_prob"] - images["log_prob"]).mean()}
        return {name: torch.cat([value, images[name]]) for name, value in rollout.items()}

    def steps(self, iteration: int, count: int) -> list[int]:
        """The steps, of `count` of a rollout, to mirror in the update `iteration`: one after the other, wrapping round.

        They go on where the last update's ended, so that every step of a rollout has its turn equally often. They are
        whole steps, and no chance is in them, so that all ranks mirror the same ones and a resumed run does too.
        """
        first, last = (math.floor((iteration + more) * self.share * count + 1e-9) for more in (0, 1))
        return [step % count for step in range(first, last)]

    def observations(self, stored: TensorDict) -> TensorDict:
        """The image of stored observations [B], `next_proprio` and `next_valid` among them."""
        own = stored.exclude("next_proprio", "next_valid")
        image = self.symmetry.observations(own)
        image["next_proprio"] = self.symmetry.group(self.frame_group, stored["next_proprio"], own)
        image["next_valid"] = stored["next_valid"]
        return image


def share_of(mirror_share: float | None, symmetry_cfg: Mapping[str, Any] | None) -> float:
    """The share of a rollout's steps to mirror: `mirror_share`, else all where rsl_rl's settings ask for it, else 0.

    Raises:
        ValueError: It is not in [0, 1], or rsl_rl's settings ask for what P3PPO has not.
    """
    if symmetry_cfg is not None:
        if unknown := [name for name in symmetry_cfg if name not in _KNOWN]:
            raise ValueError(f"symmetry_cfg: no setting {unknown[0]!r}; expected some of {', '.join(sorted(_KNOWN))}")
        if symmetry_cfg.get("use_mirror_loss"):
            raise ValueError("symmetry_cfg: use_mirror_loss is not supported by P3PPO; mirror_share augments its data")
        if mirror_share is None:
            mirror_share = 1.0 if symmetry_cfg.get("use_data_augmentation") else 0.0
    share = 0.0 if mirror_share is None else mirror_share
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"mirror_share: expected 0 to 1, got {share}")
    return share


def symmetry_of(env: VecEnv, symmetry_cfg: Mapping[str, Any] | None) -> Symmetry:
    """The symmetry of an environment: by the function of rsl_rl's settings where there is one, else its own.

    Raises:
        ValueError: It declares none, or its robot has none.
    """
    if symmetry_cfg is not None and symmetry_cfg.get("data_augmentation_func") is not None:
        return AugmentationFunction(resolve_callable(symmetry_cfg["data_augmentation_func"]), env)
    for place in (env, getattr(env, "unwrapped", None)):
        found = getattr(place, "symmetry", None)
        if found is not None:
            return found
    raise ValueError(
        f"mirror_share: {type(env).__name__} declares no left/right symmetry; expected env.symmetry (see"
        " trainer.algorithms.mirroring.Symmetry) or symmetry_cfg: {data_augmentation_func: ...}"
    )
