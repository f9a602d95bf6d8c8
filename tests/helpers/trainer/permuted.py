"""The same policy as someone else would have trained it: other orders of joints, terms, frames and scan points."""

from __future__ import annotations

import copy
import dataclasses
import random

import torch

from trainer.tasks.contract import Contract, match_contracts

_BY_JOINT = ("joint_names", "default_pos", "stiffness", "damping", "effort", "action_scale", "stride", "stride_middle")


def permuted_contract(contract, seed=0, order="newest_first", layout="term_major"):
    """A contract of the same robot in other orders; each term by joint has an order of its own."""
    shuffle = random.Random(seed)
    joints = shuffle.sample(range(len(contract.joint_names)), len(contract.joint_names))
    terms = [
        dataclasses.replace(term, joints=tuple(shuffle.sample(term.joints, len(term.joints))))
        for term in shuffle.sample(contract.proprio, len(contract.proprio))
    ]
    fields = {field: tuple(getattr(contract, field)[i] for i in joints) for field in _BY_JOINT}
    history = dataclasses.replace(contract.history, order=order, layout=layout)
    scan = dataclasses.replace(contract.scan, x=contract.scan.x[::-1], y=contract.scan.y, fastest="y")
    return dataclasses.replace(contract, proprio=tuple(terms), history=history, scan=scan, **fields)


def permuted_checkpoint(content, theirs):
    """A checkpoint whose network reads and acts in the orders of contract `theirs`.

    Its encoder has to read frame by frame, as the scan's convolution has to read a grid: histories keep their layout
    and scans their grid, which `theirs` must leave as they are.
    """
    ours = Contract.from_dict(content["contract"])
    moved = match_contracts(theirs, ours)
    assert moved.scan == tuple(range(len(moved.scan)))
    content = copy.deepcopy(content)
    weights = content["algorithm"]["actor_state_dict"]
    proprio, history = list(moved.proprio), list(moved.history)
    action = [ours.joint_names.index(name) for name in theirs.joint_names]
    for name in ("_mean", "_var", "_std"):
        weights[f"proprio_normalizer.{name}"] = weights[f"proprio_normalizer.{name}"][:, proprio]
    weights["encoder.history.0.weight"] = weights["encoder.history.0.weight"][:, history]
    first = weights["mlp.0.weight"]
    weights["mlp.0.weight"] = torch.cat([first[:, proprio], first[:, len(proprio) :]], 1)
    last = max(int(name.split(".")[1]) for name in weights if name.startswith("mlp."))
    for name in (f"mlp.{last}.weight", f"mlp.{last}.bias", "log_std"):
        weights[name] = weights[name][action]
    content["contract"] = theirs.to_dict()
    return content
