"""What a task sees: the robots' state, filled by an engine, and the episode's own buffers, kept by the environment.

Every tensor is batched over E environments; joints are in the robot's order (`RobotSpec.joint_names`), never in an
engine's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trainer.tasks.contract import STANDING_COMMAND
from trainer.tasks.rotation import gravity_in_body, rotate_inverse, yaw_of
from trainer.tasks.stride import bump, directions, middle

CONTACT_FORCE = 5.0
"""N on a foot, above which it is in contact."""
ON_AN_EDGE = 0.15
"""m of a loaded sole above the terrain of the map, above which something else than that terrain bears it."""


class _Batched:
    """Row selection and assignment over all tensor fields of a dataclass.

    What follows from the fields is computed once and kept until `assign` or a new field: rewards, observations and
    terminations ask for the same few quantities. Whoever writes into a field's tensor does it before any of them.
    """

    __slots__ = ("_derived",)  # beside the fields' dictionary, so that `vars` has the fields alone
    _derived: dict[str, Tensor]

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        object.__setattr__(self, "_derived", {})

    def _once(self, name: str, compute: Callable[[], Tensor]) -> Tensor:
        """`compute()`, or what it gave the last time."""
        if name not in self._derived:
            self._derived[name] = compute()
        return self._derived[name]

    def know(self, **derived: Tensor) -> None:
        """Takes what follows from the fields, by the names of the properties, from whoever has computed it already."""
        self._derived.update(derived)

    def known(self, name: str) -> Tensor | None:
        """What `know` was told by this name, as long as it is true."""
        return self._derived.get(name)

    def assign(self, index: Tensor, values: dict[str, Tensor]) -> None:
        """Writes `values` into the rows `index` [K]."""
        for name, value in values.items():
            getattr(self, name).index_copy_(0, index, value)
        self._derived = {}


@dataclass
class RobotState(_Batched):
    """The robots at the end of a control step. Positions are in the frame of the environment's terrain tile."""

    root_pos: Tensor
    """[E, 3]."""
    root_quat: Tensor
    """[E, 4]: w, x, y, z; body to world."""
    root_lin_vel: Tensor
    """[E, 3]: of the root body's origin, world frame."""
    root_ang_vel: Tensor
    """[E, 3]: body frame, as a gyroscope gives it."""
    joint_pos: Tensor
    """[E, J]."""
    joint_vel: Tensor
    """[E, J]."""
    joint_torque: Tensor
    """[E, J]: what the actuators applied."""
    foot_pos: Tensor
    """[E, F, 3]: the soles."""
    foot_vel: Tensor
    """[E, F, 3]: world frame."""
    foot_force: Tensor
    """[E, F, 3]: contact force of the terrain on the foot, N, world frame: z bears the robot, x and y push it back."""
    body_contact: Tensor
    """[E] bool: a part of the trunk touches the terrain."""
    scan: Tensor
    """[E, S]: terrain height at the scan points, tile frame; rows are y, columns x, in the heading frame."""
    foot_ground: Tensor
    """[E, F]: terrain height below the feet."""
    sole_drop: Tensor
    """[E, F, P]: how far the terrain below each of `RobotSpec.sole_points` lies under the lowest of the foot's."""
    dynamics: Tensor
    """[E, 5]: friction, added trunk mass, trunk centre-of-mass offset x, y, z — what was randomised."""

    @property
    def foot_contact(self) -> Tensor:
        """[E, F] bool: the foot bears load."""
        return self._once("foot_contact", lambda: self.foot_force.square().sum(-1) > CONTACT_FORCE**2)

    @property
    def foot_speed(self) -> Tensor:
        """[E, F]: horizontal, m/s."""
        return self._once("foot_speed", lambda: self.foot_vel[..., :2].square().sum(-1).sqrt())

    @property
    def foot_height(self) -> Tensor:
        """[E, F]: of the soles above the terrain below them."""
        return self._once("foot_height", lambda: self.foot_pos[..., 2] - self.foot_ground)

    @property
    def gravity(self) -> Tensor:
        """[E, 3]: unit vector in the body frame; (0, 0, -1) when upright."""
        return self._once("gravity", lambda: gravity_in_body(self.root_quat))

    @property
    def tilt(self) -> Tensor:
        """[E]: the square of the sine of the trunk's tilt."""
        return self._once("tilt", lambda: self.gravity[:, :2].square().sum(-1))

    @property
    def uprightness(self) -> Tensor:
        """[E]: exp(-10 tilt), 1 when upright."""
        return self._once("uprightness", lambda: torch.exp(self.tilt * -10.0))

    @property
    def yaw(self) -> Tensor:
        """[E]: heading."""
        return self._once("yaw", lambda: yaw_of(self.root_quat))

    @property
    def facing(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of the heading, [E] each."""
        return self._once("cos_yaw", self.yaw.cos), self._once("sin_yaw", self.yaw.sin)

    @property
    def body_velocity(self) -> Tensor:
        """[E, 3]: the root's linear velocity, body frame."""
        return self._once("body_velocity", lambda: rotate_inverse(self.root_quat, self.root_lin_vel))

    @property
    def planar_velocity(self) -> Tensor:
        """[E, 2]: forward and left, in the heading frame."""
        return self._once("planar_velocity", lambda: _turned(self.root_lin_vel, *self.facing))

    def ground_below(self) -> Tensor:
        """[E]: the ground that a robot's height is measured from: the lowest under its loaded feet.

        In the air it is the ground under the lower foot. A loaded foot whose sole is far above the terrain stands on
        an edge or on a filled pit: there the sole is the ground.
        """
        return self._once("ground_below", self._ground_below)

    def _ground_below(self) -> Tensor:
        sole, contact = self.foot_pos[..., 2], self.foot_contact
        borne = torch.where(sole - self.foot_ground > ON_AN_EDGE, sole, self.foot_ground)
        lowest = torch.where(contact, borne, torch.inf).amin(-1)
        lower_foot = self.foot_ground.gather(-1, sole.argmin(-1, keepdim=True)).squeeze(-1)
        return torch.where(contact.any(-1), lowest, lower_foot)

    def select(self, index: Tensor) -> RobotState:
        """The state of the environments `index` [K] alone, as copies."""
        return RobotState(**{name: value.index_select(0, index) for name, value in vars(self).items()})


@dataclass
class Episode(_Batched):
    """What the environment remembers of each running episode."""

    step: Tensor
    """[E] int64: control steps so far."""
    command: Tensor
    """[E, 3]: wanted velocity forward, left (m/s) and yaw rate (rad/s), body frame."""
    command_left: Tensor
    """[E] int64: steps until the next command."""
    push_left: Tensor
    """[E] int64: steps until the next push."""
    action: Tensor
    """[E, A]: the latest."""
    last_action: Tensor
    """[E, A]: the one before."""
    joint_vel_before: Tensor
    """[E, J]: at the end of the last step, for accelerations."""
    air_time: Tensor
    """[E, F]: seconds since the foot last touched; 0 in contact."""
    contact_time: Tensor
    """[E, F]: seconds since the foot last left; 0 in the air."""
    history: Tensor
    """[E, H, P]: noisy proprioception, the newest last."""
    clock: Tensor
    """[E, 2]: sine and cosine of the gait's phase; 0 without one."""
    heading: Tensor
    """[E]: direction of the line to keep to, where the task has one."""
    line: Tensor
    """[E, 2]: a point of it."""
    spawn: Tensor
    """[E, 2]: where the episode began."""
    commanded_distance: Tensor
    """[E]: metres that the commands asked for so far."""
    followed_distance: Tensor
    """[E]: metres that the robot has gone along its commands so far, in their direction."""

    @staticmethod
    def empty(
        num_envs: int,
        num_joints: int,
        num_actions: int,
        num_feet: int,
        history: tuple[int, int],
        device: torch.device | str = "cpu",
    ) -> Episode:
        """A state of zeros."""

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(num_envs, *shape, device=device)

        def counts() -> Tensor:
            return torch.zeros(num_envs, dtype=torch.int64, device=device)

        return Episode(
            step=counts(),
            command=zeros(3),
            command_left=counts(),
            push_left=counts(),
            action=zeros(num_actions),
            last_action=zeros(num_actions),
            joint_vel_before=zeros(num_joints),
            air_time=zeros(num_feet),
            contact_time=zeros(num_feet),
            history=zeros(*history),
            clock=zeros(2),
            heading=zeros(),
            line=zeros(2),
            spawn=zeros(2),
            commanded_distance=zeros(),
            followed_distance=zeros(),
        )

    @property
    def is_moving(self) -> Tensor:
        """[E]: 1 where the command asks to go somewhere, else 0."""
        return self._once("is_moving", self._is_moving)

    def _is_moving(self) -> Tensor:
        return (self.command.square().sum(-1) > STANDING_COMMAND**2).float()

    @property
    def swing(self) -> Tensor:
        """[E, F]: how far in its swing each foot is by the clock, 0 to 1."""
        return self._once("swing", self._swing)

    def _swing(self) -> Tensor:
        feet = self.contact_time.shape[1]
        return bump(self.clock, _directions(feet, self.clock.device))

    def select(self, index: Tensor, names: Sequence[str]) -> Episode:
        """Copies of some buffers of the environments `index` [K]; it has no others."""
        rows = Episode.__new__(Episode)
        for name in names:
            setattr(rows, name, getattr(self, name).index_select(0, index))
        return rows


@functools.cache
def _directions(feet: int, device: torch.device) -> Tensor:
    """[2, F]: where the clock points in the middle of the feet's swings."""
    with torch.inference_mode(False):  # kept beyond the rollout that asks first
        return directions(torch.tensor([middle(foot, feet) for foot in range(feet)])).to(device)


def _turned(vector: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[E, 2]: the horizontal part of vector [E, 3] in a frame that is turned by an angle of cos and sin [E]."""
    x, y = vector[:, 0], vector[:, 1]
    return torch.stack([x * cos + y * sin, y * cos - x * sin], -1)
