"""Left and right exchanged: what becomes of states, episodes, observations and actions in a mirror.

The mirror stands in the x-z plane of the tile's frame, y → -y. Of what a vector and an angular velocity, a quaternion
and a height scan become there nothing depends on the robot; which joints and feet change places, and which joints turn
the other way, the robot declares (`RobotSpec.mirror`). Observation groups are mirrored term by term, by the names in
the task's contract, so that a task with other terms, another history or another scan needs nothing here; a term that
is new has to be added to `_TERMS`, a field of `RobotState` or `Episode` to `_STATE` or `_EPISODE`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from trainer.tasks.contract import Contract
from trainer.tasks.locomotion import LocomotionTask
from trainer.tasks.robots import Mirror
from trainer.tasks.state import Episode, RobotState

Columns = tuple[tuple[int, float], ...]
"""For each column of an image, the column it comes from and its sign."""

_FIXED: dict[str, Columns] = {
    "vector": ((0, 1.0), (1, -1.0), (2, 1.0)),
    "axial": ((0, -1.0), (1, 1.0), (2, -1.0)),  # an angular velocity is a product of two vectors
    "quaternion": ((0, 1.0), (1, -1.0), (2, 1.0), (3, -1.0)),
    "horizontal": ((0, 1.0), (1, -1.0)),
    "command": ((0, 1.0), (1, -1.0), (2, -1.0)),  # forward, left, yaw rate
    "half a stride": ((0, -1.0), (1, -1.0)),  # sine and cosine, when the other foot is where this one was
    "dynamics": ((0, 1.0), (1, 1.0), (2, 1.0), (3, -1.0), (4, 1.0)),  # friction, mass, centre of mass
}

_TERMS = {
    "ang_vel": "axial",
    "gravity": "vector",
    "command": "command",
    "joint_pos": "joints",
    "joint_vel": "joints",
    "action": "joints",
    "clock": "half a stride",
    "velocity": "vector",
    "scan": "scan",
    "foot_contact": "feet",
    "foot_height": "feet",
    "dynamics": "dynamics",
}
"""Terms of observations by name."""

_STATE = {
    "root_pos": "vector",
    "root_quat": "quaternion",
    "root_lin_vel": "vector",
    "root_ang_vel": "axial",
    "joint_pos": "joints",
    "joint_vel": "joints",
    "joint_torque": "joints",
    "foot_pos": "foot vectors",
    "foot_vel": "foot vectors",
    "foot_force": "foot vectors",
    "body_contact": "same",
    "scan": "scan",
    "foot_ground": "feet",
    "sole_drop": "sole points",
    "dynamics": "dynamics",
}

_EPISODE = {
    "step": "same",
    "command": "command",
    "command_left": "same",
    "push_left": "same",
    "action": "joints",
    "last_action": "joints",
    "joint_vel_before": "joints",
    "air_time": "feet",
    "contact_time": "feet",
    "history": "proprio",
    "clock": "half a stride",
    "heading": "angle",
    "line": "horizontal",
    "spawn": "horizontal",
    "commanded_distance": "same",
    "followed_distance": "same",
}


class SignedColumns:
    """The columns of a tensor in another order, some with the other sign.

    Args:
        columns: By column of the image.
        device: Where the tensors are.
    """

    def __init__(self, columns: Columns, device: torch.device | str = "cpu") -> None:
        self.columns = columns
        self._from = torch.tensor([column for column, _ in columns], device=device)
        self._signs = torch.tensor([sign for _, sign in columns], device=device)

    def __call__(self, values: Tensor) -> Tensor:
        """The image [..., N] of values [..., N]."""
        if values.shape[-1] != len(self.columns):
            raise ValueError(f"mirror: expected {len(self.columns)} columns, got {values.shape[-1]}")
        return values.index_select(-1, self._from) * self._signs.to(values.dtype)


class TaskSymmetry:
    """A task in the mirror.

    Args:
        task: Whose robot declares what it looks like in a mirror, and whose rewards treat left and right alike.

    Attributes:
        groups: What becomes of each observation group.

    Raises:
        ValueError: The robot declares no symmetry, the task's rewards are not symmetric, or there is a term of the
            observations whose image is not known.
    """

    def __init__(self, task: LocomotionTask) -> None:
        robot = task.config.robot
        if robot.mirror is None:
            raise ValueError(
                f"symmetry: the robot {robot.name!r} declares none (RobotSpec.mirror), so that {task.config.name!r}"
                " cannot be mirrored"
            )
        contract = task.contract
        columns = dict(_FIXED)
        columns["joints"] = tuple(zip(robot.mirror.joints, robot.mirror.signs, strict=True))
        columns["feet"] = tuple((foot, 1.0) for foot in robot.mirror.feet)
        columns["scan"] = _scan_columns(contract)
        columns["points of a sole"] = _mirrored("sole", robot.sole_points)
        columns["proprio"] = proprio = _joined(_proprio_columns(contract, robot.mirror, columns).values())
        privileged = [_kind(name, columns) for name in task.privileged_terms]
        groups = {
            "proprio": proprio,
            "history": _history_columns(contract, _proprio_columns(contract, robot.mirror, columns)),
            "extero": columns["scan"],
            "velocity": columns["vector"],
            "critic": _joined([proprio, *privileged]),
        }
        self.groups = {name: SignedColumns(found, task.device) for name, found in groups.items()}
        self._maps: dict[str, Callable[[Tensor], Tensor]] = {
            name: SignedColumns(found, task.device) for name, found in columns.items()
        }
        self._maps |= {"same": torch.clone, "angle": torch.neg, "foot vectors": self._foot_vectors}
        self._maps["sole points"] = self._sole_points
        weight = task.reward_context.posture_weight
        if not torch.equal(weight, self._maps["joints"](weight).abs()):
            raise ValueError(f"symmetry: the posture weights of {task.config.name!r} differ between left and right")

    def observations(self, observations: TensorDict) -> TensorDict:
        """The image of observation groups [..., N]; any of the task's, by their names.

        Raises:
            ValueError: There is a group that is not the task's.
        """
        present = list(observations.keys())
        if unknown := [name for name in present if name not in self.groups]:
            raise ValueError(
                f"symmetry: no image of the observation group {unknown[0]!r}; known are {', '.join(self.groups)}"
            )
        images = {name: mirror(observations[name]) for name, mirror in self.groups.items() if name in present}
        return TensorDict(images, batch_size=observations.batch_size)

    def group(self, name: str, values: Tensor, observations: TensorDict | None = None) -> Tensor:
        """The image of `values` [..., N] of the observation group `name`, which needs no other groups."""
        return self.groups[name](values)

    def actions(self, actions: Tensor) -> Tensor:
        """The image of actions [..., A]."""
        return self._maps["joints"](actions)

    def state(self, state: RobotState) -> RobotState:
        """The image of robot states [E]: on a mirrored terrain, with the sensors' readings mirrored."""
        return RobotState(**self._images(state, _STATE))

    def episode(self, episode: Episode) -> Episode:
        """The image of the running episodes [E]."""
        return Episode(**self._images(episode, _EPISODE))

    def _images(self, of: RobotState | Episode, kinds: Mapping[str, str]) -> dict[str, Any]:
        missing = [field.name for field in fields(of) if field.name not in kinds]
        if missing:
            raise ValueError(f"symmetry: no image of {type(of).__name__}.{missing[0]} is declared")
        return {field.name: self._maps[kinds[field.name]](getattr(of, field.name)) for field in fields(of)}

    def _foot_vectors(self, values: Tensor) -> Tensor:
        """[E, F, 3]."""
        return self._maps["vector"](self._maps["feet"](values.mT).mT)

    def _sole_points(self, values: Tensor) -> Tensor:
        """[E, F, P]."""
        return self._maps["points of a sole"](self._maps["feet"](values.mT).mT)


def _kind(name: str, columns: Mapping[str, Columns]) -> Columns:
    if name not in _TERMS:
        raise ValueError(f"symmetry: no image of the observation term {name!r} is declared; known are {list(_TERMS)}")
    return columns[_TERMS[name]]


def _proprio_columns(contract: Contract, mirror: Mirror, columns: Mapping[str, Columns]) -> dict[str, Columns]:
    """For each term of the proprioception, its columns; those of joints by the names that the contract has."""
    found = {}
    for term in contract.proprio:
        if term.joints:
            number = {name: index for index, name in enumerate(contract.joint_names)}
            place = {name: index for index, name in enumerate(term.joints)}
            images = [number[name] for name in term.joints]
            found[term.name] = tuple(
                (place[contract.joint_names[mirror.joints[joint]]], mirror.signs[joint]) for joint in images
            )
        else:
            found[term.name] = _kind(term.name, columns)
        if len(found[term.name]) != term.size:
            raise ValueError(
                f"symmetry: the observation term {term.name!r} has {term.size} columns,"
                f" its image {len(found[term.name])}"
            )
    return found


def _history_columns(contract: Contract, terms: Mapping[str, Columns]) -> Columns:
    """The terms of every frame: the mirror does not exchange frames."""
    frames = contract.history.length
    if contract.history.layout == "frame_major":
        return _joined([_joined(terms.values())] * frames)
    return _joined([term for term in terms.values() for _ in range(frames)])


def _scan_columns(contract: Contract) -> Columns:
    """Rows of y become those of -y.

    Raises:
        ValueError: The scan's points are not those of its image.
    """
    return _mirrored("scan", contract.scan.points())


def _mirrored(what: str, points: Sequence[tuple[float, ...]]) -> Columns:
    """Points x, y, ... of a grid become those of -y."""
    rounded = [tuple(round(value, 4) for value in point) for point in points]
    place = {point: index for index, point in enumerate(rounded)}
    for x, y, *rest in rounded:
        if (x, -y, *rest) not in place:
            raise ValueError(f"symmetry: the {what} has a point at x = {x:g}, y = {y:g}, but none at y = {-y:g}")
    return tuple((place[(x, -y, *rest)], 1.0) for x, y, *rest in rounded)


def _joined(parts: Iterable[Columns]) -> Columns:
    """One set of columns after the other."""
    joined: list[tuple[int, float]] = []
    for part in parts:
        first = len(joined)
        joined.extend((first + column, sign) for column, sign in part)
    return tuple(joined)
