"""What a policy and a robot agree on, by name: joints, gains, observations, history, scan, rate.

A contract is plain data, saved with every checkpoint and every export. It knows no engine, and this module needs the
standard library alone: a robot's process reads contracts too. `match` says how the observations and actions of a task
become those of a policy that was trained with other orders, or names what they do not agree on.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

if TYPE_CHECKING:
    from trainer.tasks.locomotion import LocomotionTask

VERSION = 1
"""Counted up whenever a field changes its meaning."""
STANDING_COMMAND = 0.1
"""m/s and rad/s: a command whose norm is not more asks to stand, and stops the clock."""
CONVENTIONS = {
    "ang_vel": "rad/s, body frame",
    "gravity": "unit vector of gravity, body frame: (0, 0, -1) upright",
    "command": "forward m/s, left m/s, yaw rate rad/s, body frame",
    "joint_pos": "rad, relative to default_pos",
    "joint_vel": "rad/s",
    "action": "the last action, clipped",
    "clock": "sine and cosine of the gait's phase, 0 at the start; 0, 0 for a command to stand",
}
"""What the parts of the proprioception are, by their names."""


@dataclass(frozen=True)
class Term:
    """A part of the proprioception."""

    name: str
    size: int
    joints: tuple[str, ...] = ()
    """The joint of each column; empty where columns are not joints."""
    convention: str = ""
    """Unit and frame, in words; equal words mean equal conventions."""
    scale: float = 1.0
    """What the quantity in that unit was multiplied by before the policy's own normaliser."""
    noise: float = 0.0
    """Half-width of the uniform noise of training; tells how exact a sensor must be."""


@dataclass(frozen=True)
class History:
    """How past frames of proprioception are laid out in one row."""

    length: int
    """Frames, the newest among them."""
    order: str = "oldest_first"
    """Order of the frames: oldest_first or newest_first."""
    layout: str = "frame_major"
    """frame_major: frame by frame, each with all terms; term_major: term by term, each with all frames."""
    fill: str = "first_frame"
    """What stands for the frames before an episode's first: copies of that one."""


@dataclass(frozen=True)
class Scan:
    """The height scan: a grid of points around the robot."""

    x: tuple[float, ...]
    """Forward of the root, m, in the order of the columns."""
    y: tuple[float, ...]
    """To the left of the root, m, in the order of the rows."""
    fastest: str = "x"
    """The coordinate that changes from one value to the next: x or y."""
    frame: str = "root, turned by its yaw alone"
    value: str = "root height - standing height - terrain height"
    """Positive where the ground is lower than under a robot that stands."""
    standing_height: float = 0.0
    clip: tuple[float, float] = (-1.0, 1.0)
    noise: float = 0.0

    def points(self) -> list[tuple[float, float]]:
        """x and y of each value, in the order of the values."""
        if self.fastest == "x":
            return [(x, y) for y in self.y for x in self.x]
        return [(x, y) for x in self.x for y in self.y]


@dataclass(frozen=True)
class Contract:
    """Everything a policy assumes of the robot that it drives. Sequences of floats are by `joint_names`."""

    robot: str
    task: str
    joint_names: tuple[str, ...]
    """In the order of the actions."""
    default_pos: tuple[float, ...]
    """rad; joint positions are observed relative to it, and an action of 0 asks for it."""
    stiffness: tuple[float, ...]
    """N m/rad."""
    damping: tuple[float, ...]
    """N m s/rad."""
    effort: tuple[float, ...]
    """N m."""
    action_scale: tuple[float, ...]
    """rad; the target is default_pos + action_scale · action, and the stride's part."""
    action_clip: float
    """Actions are cut to ± this before anything else, the observed last action among it."""
    control_hz: float
    proprio: tuple[Term, ...]
    """In the order of the columns."""
    history: History
    scan: Scan
    command: tuple[tuple[float, float], ...]
    """Ranges in training: forward m/s, left m/s, yaw rate rad/s."""
    gait_period: float = 0.0
    """Seconds of a stride, for the observation term `clock`; 0 without one."""
    stride: tuple[float, ...] = ()
    """rad, added to the target in the middle of the swing of the joint's foot (`trainer/tasks/stride.py`); empty for
    none."""
    stride_middle: tuple[float, ...] = ()
    """Share of a stride at which that is."""
    normalisation: str = "running mean and variance, inside the policy"
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"contract: of version {self.version}, this program reads version {VERSION}")
        self._check_joints()
        self._check_terms()
        if not self.control_hz > 0 or not self.action_clip > 0:
            raise ValueError("contract: control_hz and action_clip must be positive")
        for field, value, known in (
            ("history.order", self.history.order, ("oldest_first", "newest_first")),
            ("history.layout", self.history.layout, ("frame_major", "term_major")),
            ("scan.fastest", self.scan.fastest, ("x", "y")),
        ):
            if value not in known:
                raise ValueError(f"contract: {field}: expected {' or '.join(known)}, got {value!r}")
        if self.history.length < 1:
            raise ValueError(f"contract: history.length: expected at least 1, got {self.history.length}")

    def _check_joints(self) -> None:
        count = len(self.joint_names)
        if repeated := _repeated(self.joint_names):
            raise ValueError(f"contract: joint {repeated!r} is named twice")
        for field in ("stride", "stride_middle"):
            if not getattr(self, field):
                object.__setattr__(self, field, (0.0,) * count)
        for field in ("default_pos", "stiffness", "damping", "effort", "action_scale", "stride", "stride_middle"):
            if len(getattr(self, field)) != count:
                raise ValueError(f"contract: {field} has {len(getattr(self, field))} entries for {count} joints")

    def _check_terms(self) -> None:
        names = [term.name for term in self.proprio]
        if repeated := _repeated(names):
            raise ValueError(f"contract: observation term {repeated!r} is named twice")
        if ("clock" in names) != (self.gait_period > 0):
            raise ValueError(f"contract: a clock needs a gait_period and it a clock, got {self.gait_period:g} s")
        for term in self.proprio:
            if term.joints and (len(term.joints) != term.size or set(term.joints) != set(self.joint_names)):
                raise ValueError(f"contract: the joints of observation term {term.name!r} are not those of the robot")

    @property
    def proprio_size(self) -> int:
        """P, the number of columns."""
        return sum(term.size for term in self.proprio)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """What `from_json` reads; floats survive it exactly."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    @staticmethod
    def from_dict(values: object) -> Contract:
        """The contract of `to_dict`.

        Raises:
            ValueError: It is not one, or one of another version; names the field.
        """
        contract = _parsed(Contract, values, "contract")
        assert isinstance(contract, Contract)
        return contract

    @staticmethod
    def from_json(text: str) -> Contract:
        """The contract of `to_json`.

        Raises:
            ValueError: As for `from_dict`.
        """
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ValueError(f"contract: not JSON ({error})") from error
        return Contract.from_dict(values)


@dataclass(frozen=True)
class Matching:
    """Columns of the task for each column of the policy, and the other way round for actions."""

    proprio: tuple[int, ...]
    """Policy column i is the task's proprio column proprio[i]."""
    history: tuple[int, ...]
    """Columns of the flattened history, in the same way."""
    scan: tuple[int, ...]
    """Points of the height scan, in the same way."""
    action: tuple[int, ...]
    """The task's action column i is the policy's action[i]."""

    @property
    def same(self) -> bool:
        """Nothing has to be moved."""
        return all(columns == tuple(range(len(columns))) for columns in dataclasses.astuple(self))


def match(contract: Contract, task: LocomotionTask) -> Matching:
    """How a policy of `contract` sees and drives `task`.

    Raises:
        ValueError: Naming the joint, the observation term or the convention that differs.
    """
    return match_contracts(contract, task.contract)


def match_contracts(policy: Contract, world: Contract) -> Matching:
    """How a policy of one contract sees and drives a robot of another.

    Orders may differ: of joints, of terms, of history frames and of scan points. Everything else has to be the same.

    Raises:
        ValueError: As for `match`.
    """
    if policy.robot != world.robot:
        raise ValueError(f"robot: the policy is for {policy.robot!r}, this is {world.robot!r}")
    _same_names("joint", policy.joint_names, world.joint_names)
    _same_gains(policy, world)
    for field in ("control_hz", "action_clip", "gait_period"):
        ours, theirs = getattr(world, field), getattr(policy, field)
        if not math.isclose(ours, theirs, rel_tol=1e-6):
            raise ValueError(f"{field}: {theirs:g} of the policy, {ours:g} here")
    _same_names("observation term", [t.name for t in policy.proprio], [t.name for t in world.proprio])
    columns = _proprio_columns(policy, world)
    return Matching(
        proprio=tuple(column for term in policy.proprio for column in columns[term.name]),
        history=_history_columns(policy, world, columns),
        scan=_scan_columns(policy.scan, world.scan),
        action=tuple(policy.joint_names.index(name) for name in world.joint_names),
    )


def _same_names(kind: str, policy: Sequence[str], world: Sequence[str]) -> None:
    for name in policy:
        if name not in world:
            raise ValueError(f"{kind} {name!r}: the policy needs it, and it is missing here ({', '.join(world)})")
    for name in world:
        if name not in policy:
            raise ValueError(f"{kind} {name!r}: here it is, but the policy does not know it ({', '.join(policy)})")


def _same_gains(policy: Contract, world: Contract) -> None:
    for field in ("default_pos", "action_scale", "stiffness", "damping", "stride", "stride_middle"):
        ours = dict(zip(world.joint_names, getattr(world, field), strict=True))
        for name, theirs in zip(policy.joint_names, getattr(policy, field), strict=True):
            if not math.isclose(ours[name], theirs, rel_tol=1e-4, abs_tol=1e-6):
                raise ValueError(f"joint {name!r}: {field} {theirs:g} of the policy, {ours[name]:g} here")


def _proprio_columns(policy: Contract, world: Contract) -> dict[str, list[int]]:
    """For each term, the task's columns in the policy's order."""
    first, ours = {}, {}
    start = 0
    for term in world.proprio:
        first[term.name], ours[term.name] = start, term
        start += term.size
    columns = {}
    for term in policy.proprio:
        here = ours[term.name]
        for field in ("size", "scale", "convention"):
            if getattr(term, field) != getattr(here, field):
                raise ValueError(
                    f"observation term {term.name!r}: {field} {getattr(term, field)!r} of the policy,"
                    f" {getattr(here, field)!r} here"
                )
        if bool(term.joints) != bool(here.joints):
            raise ValueError(f"observation term {term.name!r}: only one of the two is by joint")
        inner = [here.joints.index(joint) for joint in term.joints] if term.joints else range(term.size)
        columns[term.name] = [first[term.name] + column for column in inner]
    return columns


def _history_columns(policy: Contract, world: Contract, proprio: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    ours, theirs = world.history, policy.history
    if theirs.length > ours.length:
        raise ValueError(f"history: {theirs.length} frames of the policy, only {ours.length} here")
    if theirs.fill != ours.fill:
        raise ValueError(f"history: filled with {theirs.fill!r} for the policy, with {ours.fill!r} here")
    sizes = {term.name: term.size for term in world.proprio}
    first = {}
    start = 0
    for name, size in sizes.items():
        first[name] = start
        start += size

    def where(age: int, name: str, column: int) -> int:
        """The task's history column of a term's proprio `column`, `age` frames before the newest."""
        frame = ours.length - 1 - age if ours.order == "oldest_first" else age
        if ours.layout == "frame_major":
            return frame * start + column
        return ours.length * first[name] + frame * sizes[name] + column - first[name]

    ages = range(theirs.length)
    ordered = ages if theirs.order == "newest_first" else tuple(reversed(ages))
    names = [term.name for term in policy.proprio]
    if theirs.layout == "frame_major":
        return tuple(where(age, name, column) for age in ordered for name in names for column in proprio[name])
    return tuple(where(age, name, column) for name in names for age in ordered for column in proprio[name])


def _scan_columns(policy: Scan, world: Scan) -> tuple[int, ...]:
    for field in ("frame", "value", "clip"):
        theirs, ours = getattr(policy, field), getattr(world, field)
        if theirs != ours:
            raise ValueError(f"scan: {field} {theirs!r} of the policy, {ours!r} here")
    if not math.isclose(policy.standing_height, world.standing_height, abs_tol=1e-6):
        raise ValueError(
            f"scan: standing_height {policy.standing_height:g} of the policy, {world.standing_height:g} here"
        )
    # To a tenth of a millimetre: coordinates are sums of steps, and no grid is as fine as that.
    here = {(round(x, 4), round(y, 4)): index for index, (x, y) in enumerate(world.points())}
    columns = []
    for x, y in policy.points():
        point = (round(x, 4), round(y, 4))
        if point not in here:
            raise ValueError(f"scan: the policy needs the point x = {x:g}, y = {y:g}, which is not measured here")
        columns.append(here[point])
    return tuple(columns)


def _repeated(names: Sequence[str]) -> str | None:
    return next((name for index, name in enumerate(names) if name in names[:index]), None)


_NESTED = {"proprio": Term, "history": History, "scan": Scan}


def _parsed(kind: type, values: object, where: str) -> Any:
    """A `kind` of plain values, whose types are checked field by field."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected a table of values, got {type(values).__name__}")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    if unknown := [str(key) for key in values if key not in fields]:
        raise ValueError(f"{where}: unknown field {unknown[0]!r}")
    hints = get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for name, field in fields.items():
        if name not in values:
            if field.default is dataclasses.MISSING:
                raise ValueError(f"{where}: {name} is missing")
            continue
        arguments[name] = _value(hints[name], values[name], f"{where}: {name}", _NESTED.get(name))
    return kind(**arguments)


def _value(hint: Any, value: object, where: str, nested: type | None) -> Any:
    expected = str(hint)
    if nested is not None:
        if not expected.startswith("tuple"):
            return _parsed(nested, value, where)
        return tuple(_parsed(nested, item, f"{where}[{index}]") for index, item in enumerate(_sequence(value, where)))
    if hint is str:
        if not isinstance(value, str):
            raise ValueError(f"{where}: expected text, got {value!r}")
        return value
    if hint in (int, float):
        allowed = (int,) if hint is int else (int, float)
        if not isinstance(value, allowed) or isinstance(value, bool) or not math.isfinite(value):
            raise ValueError(f"{where}: expected a finite number, got {value!r}")
        return hint(value)
    inner = hint.__args__[0]
    items = _sequence(value, where)
    if Ellipsis not in hint.__args__ and len(items) != len(hint.__args__):
        raise ValueError(f"{where}: expected {len(hint.__args__)} values, got {len(items)}")
    return tuple(_value(inner, item, where, None) for item in items)


def _sequence(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where}: expected a list, got {value!r}")
    return value
