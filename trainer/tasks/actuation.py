"""Randomisation of the motors beyond the paper's table: action delay, torque and gains. All of it is off by default.

What is off draws no random number and costs nothing: a run without it is the same, bit for bit, as if it did not exist.
The critic is not told what was drawn: its input keeps its size, so that checkpoints and warm starts fit with and
without.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from trainer.tasks.randomization import Dynamics

MOTOR_FACTORS = ("motor_strength", "stiffness", "damping")
"""Fields of `Dynamics`, in the order of the factors [.., 3, J]."""


def randomizes_motors(ranges: Dynamics) -> bool:
    """Whether torque or gains differ between episodes."""
    return any(getattr(ranges, name) != (1.0, 1.0) for name in MOTOR_FACTORS)


def sample_motors(ranges: Dynamics, count: int, num_joints: int, generator: torch.Generator) -> Tensor | None:
    """Factors [K, 3, J] on each joint's torque, stiffness and damping; None where they are all 1."""
    if not randomizes_motors(ranges):
        return None
    device = generator.device
    ends = torch.tensor([getattr(ranges, name) for name in MOTOR_FACTORS], device=device)
    low, high = ends[:, 0, None], ends[:, 1, None]
    return low + (high - low) * torch.rand(count, 3, num_joints, generator=generator, device=device)


class ActionDelay:
    """Targets that reach the motors late, by a time drawn for every episode, in whole physics steps.

    Args:
        ranges: With the range of the delay, in seconds.
        num_envs: E.
        control_dt: Seconds of a control step.
        rest: [J]: the targets before the first action.
    """

    def __init__(self, ranges: Dynamics, num_envs: int, control_dt: float, rest: Tensor) -> None:
        self._range, self._control_dt, self._rest = ranges.action_delay, control_dt, rest
        steps = -int(-ranges.action_delay[1] // control_dt)  # rounded up: so many control steps are remembered
        self.delay = torch.zeros(num_envs, device=rest.device)
        """[E] seconds."""
        self.past = rest.repeat(num_envs, steps + 1, 1)
        """[E, N, J]: the targets of the last control steps, the newest last."""
        self._rows = torch.arange(num_envs, device=rest.device)

    @staticmethod
    def of(ranges: Dynamics, num_envs: int, control_dt: float, rest: Tensor) -> ActionDelay | None:
        """None where actions are not delayed."""
        return ActionDelay(ranges, num_envs, control_dt, rest) if ranges.action_delay[1] > 0 else None

    def begin(self, env_ids: Tensor, generator: torch.Generator) -> None:
        """New episodes for env_ids [K], with delays of their own."""
        low, high = self._range
        drawn = torch.rand(len(env_ids), generator=generator, device=self.delay.device)
        self.delay[env_ids] = low + (high - low) * drawn
        self.past[env_ids] = self._rest

    def remember(self, targets: Tensor) -> None:
        """The targets [E, J] of a control step that begins."""
        self.past = torch.cat([self.past[:, 1:], targets[:, None]], 1)

    def at(self, step: int, decimation: int) -> Tensor:
        """Targets [E, J] in the physics step number `step` of the present control step, which has `decimation`."""
        late = (self.delay * (decimation / self._control_dt)).round().long() - step
        back = ((late + decimation - 1) // decimation).clamp(min=0)
        return self.past[self._rows, self.past.shape[1] - 1 - back]

    def schedule(self, decimation: int) -> Tensor:
        """[E, decimation, J]: the targets in every physics step of the present control step."""
        return torch.stack([self.at(step, decimation) for step in range(decimation)], 1)

    def state_dict(self) -> dict[str, Tensor]:
        """All that a continuation needs."""
        return {"delay": self.delay.clone(), "past": self.past.clone()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continues from `state_dict()`."""
        self.delay, self.past = (state[name].to(self._rest.device, copy=True) for name in ("delay", "past"))
