"""The terrain curriculum: who traverses a terrain gets a harder one, who fails an easier one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class Curriculum:
    """The paper's promote/demote rule over terrain rows.

    Each environment keeps one terrain type for good and moves along its levels, 0 the easiest. All tensors live on the
    generator's device.

    Attributes:
        level: [E] int64, in [0, num_levels).
        terrain_type: [E] int64, in [0, num_types); every type has as many environments as any other, give or take one.
    """

    level: Tensor
    terrain_type: Tensor

    def __init__(
        self, num_envs: int, num_types: int, num_levels: int, generator: torch.Generator, max_initial_level: int = 0
    ) -> None:
        """Draws the types and the first levels.

        Args:
            num_envs: E, at least 1.
            num_types: Number of terrain types, at least 1.
            num_levels: Number of difficulty levels, at least 1.
            generator: Shuffles the types and draws the levels; not used after that.
            max_initial_level: Levels start uniform in [0, max_initial_level].

        Raises:
            ValueError: A number is out of its range.
        """
        for name, value in (("num_envs", num_envs), ("num_types", num_types), ("num_levels", num_levels)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 <= max_initial_level < num_levels:
            raise ValueError(
                f"max_initial_level: expected a level in [0, num_levels = {num_levels}), got {max_initial_level}"
            )
        self.num_types = num_types
        self.num_levels = num_levels
        device = generator.device
        self.terrain_type = torch.randperm(num_envs, generator=generator, device=device) % num_types
        self.level = torch.randint(max_initial_level + 1, (num_envs,), generator=generator, device=device)

    def update(self, env_ids: Tensor, traversed: Tensor, failed: Tensor) -> None:
        """Moves environments whose episode ended: up if traversed, else down if failed, else not at all.

        The top level and level 0 hold who would leave them. An environment that did both, such as one that fell after
        it had arrived, is promoted.

        Args:
            env_ids: [N] int64, each environment at most once.
            traversed: [N] bool.
            failed: [N] bool.

        Raises:
            ValueError: An argument has another shape or dtype, or (on the CPU) an id is not in [0, E).
        """
        _check("env_ids", env_ids, torch.int64, None)
        _check("traversed", traversed, torch.bool, len(env_ids))
        _check("failed", failed, torch.bool, len(env_ids))
        # On a GPU this look at the values would stall every step; there the index kernel stops on ids that are too big.
        if env_ids.device.type == "cpu":
            _check_range("env_ids", env_ids, len(self.level))
        step = traversed.long() - (failed & ~traversed).long()
        self.level[env_ids] = (self.level[env_ids] + step).clamp(0, self.num_levels - 1)

    def mean_level(self) -> float:
        """The paper's curriculum difficulty: the mean level over the environments. Waits for the device."""
        return self.level.double().mean().item()

    def mean_level_by_type(self) -> Tensor:
        """[num_types] float32: the mean level over the environments of each type, NaN for a type without any."""
        total = torch.zeros(self.num_types, dtype=torch.int64, device=self.level.device)
        count = total.clone()
        total.index_add_(0, self.terrain_type, self.level)
        count.index_add_(0, self.terrain_type, torch.ones_like(self.level))
        return total / count

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of `level` and `terrain_type`."""
        return {"level": self.level.clone(), "terrain_type": self.terrain_type.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` gave, from any device.

        Raises:
            ValueError: `state` is not of a curriculum with these numbers of environments, types and levels; nothing
                has changed then.
        """
        if set(state) != {"level", "terrain_type"}:
            raise ValueError(
                f"state: expected the keys level, terrain_type, got {', '.join(map(str, state)) or 'none'}"
            )
        for name, size in (("level", self.num_levels), ("terrain_type", self.num_types)):
            _check(f"state[{name!r}]", state[name], torch.int64, len(self.level))
            _check_range(f"state[{name!r}]", state[name], size)
        self.level.copy_(state["level"])
        self.terrain_type.copy_(state["terrain_type"])


def _check(name: str, tensor: Tensor, dtype: torch.dtype, length: int | None) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype}, got {tensor.dtype}")
    if tensor.ndim != 1 or length not in (None, len(tensor)):
        expected = "one dimension" if length is None else f"shape [{length}]"
        raise ValueError(f"{name}: expected {expected}, got shape {list(tensor.shape)}")


def _check_range(name: str, tensor: Tensor, size: int) -> None:
    bad = tensor[(tensor < 0) | (tensor >= size)]
    if len(bad):
        raise ValueError(f"{name}: expected values in [0, {size}), got {int(bad[0])}")
