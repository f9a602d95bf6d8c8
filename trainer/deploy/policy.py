"""An exported policy on a robot: named sensor readings in, joint targets out.

Needs numpy and onnxruntime, nothing else: no torch, no simulator. It keeps the history and the last action, so a
control loop is `policy.reset()` once and `policy.act(readings)` at the contract's rate.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from trainer.deploy.latency import Latency, Stopwatch
from trainer.deploy.package import CONTRACT_KEY, DamagedPolicy, ForeignPolicy, read_package
from trainer.tasks.contract import STANDING_COMMAND, Contract, History, match_contracts


@dataclass(frozen=True)
class Action:
    """What the policy wants."""

    targets: np.ndarray
    """[J] rad: joint position targets, in the robot's order."""
    action: np.ndarray
    """[J]: before scale and offset, clipped, in the policy's order."""
    std: np.ndarray | None
    """[J] rad: what the latent's uncertainty does to the targets, in the robot's order; None if it was not exported."""


class Policy:
    """A policy from its ONNX file alone.

    Args:
        path: Written by `p3 export`.
        joint_order: Names of the robot's joints, in the order of its readings and targets; None for the policy's own.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedPolicy, ForeignPolicy: It is not, or no longer, an exported policy.
        ValueError: A joint of the robot is not one of the policy's, or the other way round.
    """

    def __init__(self, path: str | Path, joint_order: Sequence[str] | None = None) -> None:
        path = Path(path)
        self._session = _session(path, read_package(path))
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        """As any reader of the file sees it."""
        self.contract = _contract(path, self.metadata)
        contract = self.contract
        self.joint_order = tuple(joint_order or contract.joint_names)
        for name in (*self.joint_order, *contract.joint_names):
            if name not in contract.joint_names or name not in self.joint_order:
                missing = "policy" if name not in contract.joint_names else "robot"
                raise ValueError(f"joint_order: the {missing} has no joint {name!r}")
        if len(self.joint_order) != len(contract.joint_names):
            raise ValueError("joint_order: a joint is named twice")
        self.has_std = "action_std" in [output.name for output in self._session.get_outputs()]
        self._check_shapes(path)
        self._sources = {
            term.name: np.array([self.joint_order.index(name) for name in term.joints]) for term in contract.proprio
        }
        self._recalled = {
            term.name: np.array([contract.joint_names.index(name) for name in term.joints]) for term in contract.proprio
        }
        self._out = np.array([contract.joint_names.index(name) for name in self.joint_order])
        default = dict(zip(contract.joint_names, contract.default_pos, strict=True))
        self._default = np.array([default[name] for name in self.joint_order], np.float32)
        self._scale = np.array(contract.action_scale, np.float32)
        self._reads_history = "history" in [entry.name for entry in self._session.get_inputs()]
        length = contract.history.length
        plain = replace(contract, history=History(length, fill=contract.history.fill))
        self._flat = np.array(match_contracts(contract, plain).history)
        self._history = np.zeros((length, contract.proprio_size), np.float32)
        self._points = len(contract.scan.points())
        self._stopwatch = Stopwatch()
        self.reset()

    def _check_shapes(self, path: Path) -> None:
        contract = self.contract
        points, joints = len(contract.scan.points()), len(contract.joint_names)
        size = contract.proprio_size
        expected = {"proprio": size, "history": contract.history.length * size, "extero": points}
        expected |= {"actions": joints, "joint_targets": joints, "action_std": joints}
        entries = [*self._session.get_inputs(), *self._session.get_outputs()]
        for entry in entries:
            if list(entry.shape) != [1, expected.get(entry.name)]:
                raise ForeignPolicy(f"{path}: {entry.name} of shape {entry.shape} does not belong to its contract")
        for name in ("proprio", "extero", "actions", "joint_targets"):
            if name not in [entry.name for entry in entries]:
                raise ForeignPolicy(f"{path}: it has no input or output {name!r}")

    def reset(self) -> None:
        """Forgets history and last action: the next step is the first of an episode."""
        self._action = np.zeros(len(self.contract.joint_names), np.float32)
        self._began, self._steps = False, 0

    def act(self, readings: Mapping[str, Any]) -> Action:
        """One control step.

        Args:
            readings: `ang_vel` [3], `gravity` [3] or `quat` [4] (w, x, y, z), `command` [3], `joint_pos` [J] and
                `joint_vel` [J] in the robot's order or as a mapping from joint names, `scan` [S] in the order of
                `contract.scan.points()` (`scan_of` makes it from terrain heights). What the contract does not name is
                passed over.

        Raises:
            ValueError: Naming the reading that is missing, of another size or not finite.
        """
        begin = time.perf_counter()
        frame = self._frame(readings)
        if self._began:
            self._history[:-1] = self._history[1:]
            self._history[-1] = frame
        else:
            self._history[:] = frame
            self._began = True
        inputs = {"proprio": frame[None], "extero": self._vector(readings, "scan", self._points)[None]}
        if self._reads_history:
            inputs["history"] = self._history.reshape(-1)[self._flat][None]
        outputs = dict(zip(self._outputs, self._session.run(self._outputs, inputs), strict=True))
        self._action = outputs["actions"][0]
        self._steps += 1
        std = (outputs["action_std"][0] * self._scale)[self._out] if self.has_std else None
        action = Action(outputs["joint_targets"][0][self._out], self._action, std)
        self._stopwatch.add(time.perf_counter() - begin)
        return action

    @property
    def _outputs(self) -> list[str]:
        return ["actions", "joint_targets", *(["action_std"] if self.has_std else [])]

    def scan_of(self, root_height: float, terrain: np.ndarray) -> np.ndarray:
        """The `scan` reading from terrain heights [S] at the contract's points, in the frame of `root_height`."""
        scan = self.contract.scan
        heights = np.asarray(terrain, np.float32)
        return np.clip(np.float32(root_height) - np.float32(scan.standing_height) - heights, *scan.clip)

    def latency(self) -> Latency:
        """Latency of `act` so far."""
        return self._stopwatch.summary()

    def _frame(self, readings: Mapping[str, Any]) -> np.ndarray:
        """[P]: the proprioception in the policy's order."""
        parts = []
        for term in self.contract.proprio:
            if term.name == "clock":
                part = self._clock(self._vector(readings, "command", 3))
            elif term.name == "action":
                part = self._action[self._recalled["action"]]
            elif term.joints:
                part = self._vector(readings, term.name, len(self.joint_order))
                part = (part - self._default if term.name == "joint_pos" else part)[self._sources[term.name]]
            elif term.name == "gravity" and "gravity" not in readings and "quat" in readings:
                part = gravity_of(self._vector(readings, "quat", 4))
            else:
                part = self._vector(readings, term.name, term.size)
            parts.append(part if term.scale == 1.0 else part * np.float32(term.scale))
        return np.concatenate(parts).astype(np.float32, copy=False)

    def _clock(self, command: np.ndarray) -> np.ndarray:
        """[2]: as `LocomotionTask.clock`, which counts from the episode's start too."""
        if not np.linalg.norm(command) > STANDING_COMMAND:
            return np.zeros(2, np.float32)
        strides = self._steps / (self.contract.control_hz * self.contract.gait_period)  # of hours too: in float64
        phase = 2 * np.pi * (strides % 1.0)
        return np.array([np.sin(phase), np.cos(phase)], np.float32)

    def _vector(self, readings: Mapping[str, Any], name: str, size: int) -> np.ndarray:
        if name not in readings:
            raise ValueError(f"readings: {name} is missing")
        value = readings[name]
        if isinstance(value, Mapping):
            if absent := [joint for joint in self.joint_order if joint not in value]:
                raise ValueError(f"readings: {name} of joint {absent[0]!r} is missing")
            value = [value[joint] for joint in self.joint_order]
        vector = np.asarray(value, np.float32)
        if vector.shape != (size,):
            raise ValueError(f"readings: expected {name} of shape [{size}], got {list(vector.shape)}")
        if not np.isfinite(vector).all():
            raise ValueError(f"readings: {name} is not finite")
        return vector


def gravity_of(quat: np.ndarray) -> np.ndarray:
    """Unit vector of gravity [3] in the body frame, of quat [4] (w, x, y, z), body to world."""
    w, x, y, z = quat
    return np.array([-2 * (x * z - w * y), -2 * (y * z + w * x), 2 * (x * x + y * y) - 1], np.float32)


def _session(path: Path, data: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # a small network: threads only add jitter
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # whatever onnxruntime makes of a file that it cannot run
        raise DamagedPolicy(f"{path}: onnxruntime cannot load it: {str(error).splitlines()[0][:200]}") from error


def _contract(path: Path, metadata: Mapping[str, str]) -> Contract:
    if CONTRACT_KEY not in metadata:
        raise ForeignPolicy(f"{path}: not a policy of p3 export: it carries no {CONTRACT_KEY}")
    try:
        return Contract.from_dict(json.loads(metadata[CONTRACT_KEY]))
    except ValueError as error:
        raise ForeignPolicy(f"{path}: {error}") from error
