"""The terrain curriculum: who traverses a terrain gets a harder one, who hardly gets going an easier one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from trainer.tasks.terrains import FLAT


class Curriculum:
    """Where each environment stands on the ladder of difficulty.

    Each environment keeps one terrain type for good and moves along its levels, 0 the easiest. One that has traversed
    the last level is solved: it meets all levels at random, until it is demoted back to the last. All tensors live on
    the generator's device.

    Attributes:
        position: [E] int64: the level, in [0, num_levels), or num_levels for a solved environment.
        terrain_type: [E] int64, in [0, num_types); every type has as many environments as any other, give or take one.
    """

    position: Tensor
    terrain_type: Tensor

    def __init__(
        self,
        num_envs: int,
        num_types: int,
        num_levels: int,
        generator: torch.Generator,
        *,
        max_first_level: int = 0,
        last_difficulty: float = 1.0,
        redraw_solved: bool = True,
    ) -> None:
        """Draws the types and the first levels.

        Args:
            num_envs: E, at least 1.
            num_types: Number of terrain types, at least 1.
            num_levels: Number of difficulty levels, at least 1.
            generator: Shuffles the types and draws the levels; not used after that.
            max_first_level: Levels start uniform in [0, max_first_level].
            last_difficulty: Difficulty of the last level.
            redraw_solved: Whether who has traversed the last level is solved, or stays at the last level.

        Raises:
            ValueError: A number is out of its range.
        """
        for name, value in (("num_envs", num_envs), ("num_types", num_types), ("num_levels", num_levels)):
            if value < 1:
                raise ValueError(f"{name}: expected at least 1, got {value}")
        if not 0 <= max_first_level < num_levels:
            raise ValueError(
                f"max_first_level: expected a level in [0, num_levels = {num_levels}), got {max_first_level}"
            )
        self.num_types = num_types
        self.num_levels = num_levels
        self._last_difficulty = last_difficulty
        self._top = num_levels if redraw_solved else num_levels - 1
        device = generator.device
        self.terrain_type = torch.randperm(num_envs, generator=generator, device=device) % num_types
        self.position = torch.randint(max_first_level + 1, (num_envs,), generator=generator, device=device)

    def draw_level(self, env_ids: Tensor, uniform: Tensor) -> Tensor:
        """[N] int64: the level of a new episode of env_ids [N]; uniform [N], in [0, 1), draws that of the solved."""
        position = self.position.index_select(0, env_ids)
        return torch.where(position < self.num_levels, position, (uniform * self.num_levels).long())

    def update(self, env_ids: Tensor, traversed: Tensor, failed: Tensor) -> None:
        """Moves environments whose episode ended: up if traversed, else down if failed, else not at all.

        The top and level 0 hold who would leave them. An environment that did both, such as one that fell after it had
        arrived, is promoted.

        Args:
            env_ids: [N] int64, each environment at most once.
            traversed: [N] bool.
            failed: [N] bool.

        Raises:
            ValueError: An argument has another shape or dtype, or (on the CPU) an id is not in [0, E).
        """
        _check("env_ids", env_ids, torch.int64, None)
        count = env_ids.shape[0]
        _check("traversed", traversed, torch.bool, count)
        _check("failed", failed, torch.bool, count)
        # On a GPU this look at the values would stall every step; there the index kernel stops on ids that are too big.
        if env_ids.device.type == "cpu":
            _check_range("env_ids", env_ids, self.position.shape[0])
        step = traversed.long() - (failed & ~traversed).long()
        moved = self.position.index_select(0, env_ids) + step
        self.position.index_copy_(0, env_ids, moved.clamp_(0, self._top))

    def difficulty(self) -> Tensor:
        """[E] float32, in [0, 1]: that of the level where each environment stands; the last one's for the solved."""
        return self._last_difficulty * self.position.float().div(max(self.num_levels - 1, 1)).clamp(max=1.0)

    def difficulty_by_type(self) -> tuple[list[float], list[int]]:
        """The mean difficulty over the environments of each type, NaN for a type without any, and their number.

        The paper's curriculum difficulty is the mean over all environments. Waits for the device.
        """
        count = self.terrain_type.bincount(minlength=self.num_types)
        total = self.terrain_type.bincount(self.difficulty(), self.num_types)
        return (total / count).tolist(), count.tolist()

    def log(self, terrains: Sequence[str]) -> dict[str, float]:
        """Mean difficulty over all environments and by terrain; flat ground, the same at every difficulty, has none.

        Args:
            terrains: Name of each type.
        """
        graded = [
            (name, mean, count)
            for name, mean, count in zip(terrains, *self.difficulty_by_type(), strict=True)
            if name != FLAT and count
        ]
        log = {f"curriculum/difficulty/{name}": mean for name, mean, _ in graded}
        if graded:
            total = sum(count for *_, count in graded)
            log["curriculum/difficulty"] = sum(mean * count for _, mean, count in graded) / total
        return log

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of `position` and `terrain_type`."""
        return {"position": self.position.clone(), "terrain_type": self.terrain_type.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Takes over what `state_dict` gave, from any device.

        Raises:
            ValueError: `state` is not of a curriculum with these numbers of environments, types and levels; nothing
                has changed then.
        """
        if set(state) != {"position", "terrain_type"}:
            raise ValueError(
                f"curriculum: expected position, terrain_type, got {', '.join(map(str, state)) or 'nothing'}; a run of"
                " an earlier version can be evaluated and played, not continued"
            )
        for name, size in (("position", self._top + 1), ("terrain_type", self.num_types)):
            _check(f"curriculum: {name}", state[name], torch.int64, len(self.position))
            _check_range(f"curriculum: {name}", state[name], size)
        self.position.copy_(state["position"])
        self.terrain_type.copy_(state["terrain_type"])


def _check(name: str, tensor: Tensor, dtype: torch.dtype, length: int | None) -> None:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected {dtype}, got {tensor.dtype}")
    if tensor.ndim != 1 or length not in (None, tensor.shape[0]):
        expected = "one dimension" if length is None else f"shape [{length}]"
        raise ValueError(f"{name}: expected {expected}, got shape {list(tensor.shape)}")


def _check_range(name: str, tensor: Tensor, size: int) -> None:
    if not tensor.shape[0]:
        return
    values = tensor.cpu().numpy()  # on few values numpy's two passes are quicker than torch's one
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= size:
        raise ValueError(f"{name}: expected values in [0, {size}), got {low if low < 0 else high}")
