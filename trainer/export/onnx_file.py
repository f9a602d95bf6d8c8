"""A checkpoint as one ONNX file with all that a robot needs, compared with torch before it is written.

The graph is stateless, as is the field's convention: raw observation groups in, the history among them, actions and
joint targets out. `trainer.deploy.Policy` keeps the history and puts the groups together from named readings.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from p3kernels import mlp_moments
from p3kernels.nn import mlp_layers
from p3kernels.version import __version__
from trainer.deploy.package import CHECKSUM_KEY, CONTRACT_KEY, NO_CHECKSUM, seal
from trainer.export.moments import ActionStd
from trainer.models.p3_actor import DeployedPolicy
from trainer.runs.files import replace_file
from trainer.runs.policy import Candidate
from trainer.tasks.contract import Contract
from trainer.tasks.stride import bump, directions

if TYPE_CHECKING:
    import onnx

OPSET = 18
TOLERANCE = 1e-5
"""Largest |onnx − torch| / max(1, |torch|) that is allowed, for every output."""
_ROWS = 128


class ParityError(ValueError):
    """The exported graph does not compute what torch computes."""


class ExportedPolicy(nn.Module):
    """Raw observation groups → actions, joint targets and, where asked for, the action's std.

    Args:
        candidate: The policy; its networks are copied.
        std: Add the latent-induced std of the action, by moment matching.

    Raises:
        ValueError: `std` of a policy whose latent is no distribution.
    """

    deployed: Any
    """As the actor's `as_jit` gives it."""
    scale: Tensor
    offset: Tensor
    stride: Tensor
    swings: Tensor

    def __init__(self, candidate: Candidate, std: bool) -> None:
        super().__init__()
        contract = candidate.contract
        self.deployed = candidate.actor.as_jit()
        self.clip = contract.action_clip
        self.register_buffer("scale", torch.tensor(contract.action_scale))
        self.register_buffer("offset", torch.tensor(contract.default_pos))
        self.register_buffer("stride", torch.tensor(contract.stride))
        self.register_buffer("swings", directions(torch.tensor(contract.stride_middle)))
        self._clock = _columns(contract, "clock") if contract.gait_period else None
        self.action_std: ActionStd | None = None
        if std:
            if not isinstance(self.deployed, DeployedPolicy) or not self.deployed.encoder.stochastic:
                raise ValueError(f"--std: the latent of {candidate.config.method} has no distribution")
            self.action_std = ActionStd(self.deployed.mlp)

    def forward(self, *groups: Tensor) -> tuple[Tensor, ...]:
        """[1, A] each, of the groups [1, ·] that the policy reads."""
        action = self.deployed(*groups).clamp(-self.clip, self.clip)
        targets = self.offset + self.scale * action
        if self._clock is not None:
            clock = groups[self.input_names.index("proprio")][:, self._clock]
            targets = targets + self.stride * bump(clock, self.swings)
        outputs = (action, targets)
        if self.action_std is None:
            return outputs
        context, latent_mean, latent_std = self.deployed.encode(*groups)
        return (*outputs, self.action_std(torch.cat([context, latent_mean], -1), latent_std.square()))

    @property
    def input_names(self) -> list[str]:
        """Names of the observation groups, in the order of `forward`."""
        return list(self.deployed.input_names)

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs, in the order in which `forward` returns them."""
        return ["actions", "joint_targets", *(["action_std"] if self.action_std is not None else [])]


def export(candidate: Candidate, output: Path, *, std: bool = False) -> float:
    """Writes the policy to `output` and its contract beside it, if onnxruntime computes from it what torch does.

    Returns:
        The largest error, as `TOLERANCE` is meant.

    Raises:
        ParityError: The error is larger than that; nothing was written.
        ValueError: `std` of a policy without a latent distribution.
        OSError: It could not be written.
    """
    policy = ExportedPolicy(candidate, std).eval()
    metadata = _metadata(candidate, policy)
    data = seal(_with_metadata(_graph(policy), metadata).SerializeToString())
    error = parity(data, policy, candidate)
    if not error <= TOLERANCE:
        raise ParityError(f"{output} was not written: onnxruntime differs from torch by {error:.2e} > {TOLERANCE:.0e}")
    replace_file(output, data)
    replace_file(contract_path(output), _beside(candidate.contract, metadata, policy, error).encode())
    return error


def contract_path(output: Path) -> Path:
    """Where the contract of an exported policy is written."""
    return output.with_suffix(".json")


def parity(data: bytes, policy: ExportedPolicy, candidate: Candidate) -> float:
    """The largest |onnx − torch| / max(1, |torch|) of all outputs, on observations around the normaliser's statistics.

    torch's std comes from `p3kernels.mlp_moments`, not from the exported module.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for row in _observations(policy, candidate):
        found = session.run(policy.output_names, {name: value.numpy() for name, value in row.items()})
        with torch.inference_mode():
            expected = list(policy(*row.values()))
            if policy.action_std is not None:
                expected[-1] = _reference_std(policy, tuple(row.values()))
        for ours, theirs in zip(expected, found, strict=True):
            reference = ours.numpy()
            errors = np.abs(theirs - reference) / np.maximum(1.0, np.abs(reference))
            worst = max(worst, float(np.where(np.isfinite(errors), errors, np.inf).max()))
    return worst


def _reference_std(policy: ExportedPolicy, groups: tuple[Tensor, ...]) -> Tensor:
    context, latent_mean, latent_std = policy.deployed.encode(*groups)
    layers = mlp_layers(policy.deployed.mlp)
    mean = torch.cat([context, latent_mean], -1)
    return mlp_moments(mean, latent_std.square(), layers.weights, layers.biases, layers.activation)[1].sqrt()


def _observations(policy: ExportedPolicy, candidate: Candidate) -> list[dict[str, Tensor]]:
    """Rows [1, ·] of every group: half as they come, half four times as wide."""
    generator = torch.Generator().manual_seed(0)
    contract, actor = candidate.contract, candidate.actor
    frames = contract.history.length
    rows = []
    for index in range(_ROWS):
        width = 1.0 if index % 2 else 4.0
        row = {}
        for name in policy.input_names:
            normalizer = actor.scan_normalizer if name == "extero" else actor.proprio_normalizer
            size = len(contract.scan.points()) if name == "extero" else contract.proprio_size
            mean, spread = (
                getattr(normalizer, "_mean", torch.zeros(size)),
                getattr(normalizer, "_std", torch.ones(size)),
            )
            repeated = frames if name == "history" else 1
            noise = torch.randn(repeated, size, generator=generator)
            row[name] = (mean + width * spread * noise).reshape(1, -1)
        rows.append(row)
    return rows


def _graph(policy: ExportedPolicy) -> onnx.ModelProto:
    """The traced policy; what the exporter says on its way is passed on only if it fails."""
    example = tuple(policy.deployed.get_dummy_inputs())
    said = io.StringIO()
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                policy,
                example,
                input_names=policy.input_names,
                output_names=policy.output_names,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        logger.setLevel(level)
    assert program is not None
    return program.model_proto


def _with_metadata(model: onnx.ModelProto, metadata: Mapping[str, str]) -> onnx.ModelProto:
    # The exporter's own notes name files of the machine it ran on.
    del model.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    model.producer_name, model.producer_version = "p3kernels", __version__
    model.graph.name = "p3_policy"
    for key, value in {**metadata, CHECKSUM_KEY: NO_CHECKSUM}.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    return model


def _metadata(candidate: Candidate, policy: ExportedPolicy) -> dict[str, str]:
    """mjlab's keys and its commas, with all digits; then ours."""
    contract = candidate.contract
    terms = contract.proprio
    frames = contract.history.length if "history" in policy.input_names else 0
    infinite = "-inf;inf"
    return {
        "run_path": candidate.name,
        "joint_names": _commas(contract.joint_names),
        "joint_stiffness": _commas(contract.stiffness),
        "joint_damping": _commas(contract.damping),
        "default_joint_pos": _commas(contract.default_pos),
        "command_names": "command",
        "observation_names": _commas([*(term.name for term in terms), "extero"]),
        "observation_terms_scale": _commas([*(term.scale for term in terms), 1.0]),
        "observation_terms_flatten_history_dim": _commas(["True"] * (len(terms) + 1)),
        "observation_terms_history_length": _commas([*(frames for _ in terms), 0]),
        "observation_terms_clip": _commas([*(infinite for _ in terms), ";".join(map(repr, contract.scan.clip))]),
        "action_scale": _commas(contract.action_scale),
        "control_hz": repr(contract.control_hz),
        "exploration_std": _commas(candidate.actor.action_std.tolist()),
        "p3_task": candidate.config.task,
        "p3_method": candidate.config.method,
        CONTRACT_KEY: json.dumps(contract.to_dict()),
    }


def _columns(contract: Contract, name: str) -> slice:
    """The columns of a term of the proprioception."""
    names = [term.name for term in contract.proprio]
    first = sum(term.size for term in contract.proprio[: names.index(name)])
    return slice(first, first + contract.proprio[names.index(name)].size)


def _commas(values: Sequence[Any]) -> str:
    return ",".join(value if isinstance(value, str) else repr(value) for value in values)


def _beside(contract: Contract, metadata: Mapping[str, str], policy: ExportedPolicy, error: float) -> str:
    inputs = zip(policy.input_names, policy.deployed.get_dummy_inputs(), strict=True)
    joints = len(contract.joint_names)
    content = {
        "contract": contract.to_dict(),
        "onnx": {
            "opset": OPSET,
            "inputs": {name: list(value.shape) for name, value in inputs},
            "outputs": {name: [1, joints] for name in policy.output_names},
            "max_error": error,
        },
        "metadata": {key: value for key, value in metadata.items() if key != CONTRACT_KEY},
    }
    return json.dumps(content, indent=2) + "\n"
