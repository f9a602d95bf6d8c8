"""A stride by the clock: when each foot swings, and how far the joints of its leg bend for it.

The clock is a phase, given as its sine and cosine. Foot f of F swings around the phase (3/4 + f/F): a smooth bump that
is 1 in the middle of its swing and 0 while it stands. As a function of sine and cosine it is a product and a cut, so
that an exported policy has it exactly.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STANCE = 0.55
"""Share of a stride that a foot is on the ground: a little more than half, so that both are at each change."""
EDGE = math.cos(math.pi * (1 - STANCE))
"""Cosine of the phase between the middle of a swing and its end."""


def middle(foot: int, feet: int) -> float:
    """The phase, as a share of a stride, in the middle of a foot's swing."""
    return (0.75 + foot / feet) % 1.0


def directions(middles: Tensor) -> Tensor:
    """[2, N]: where the clock points in the middle of swings around the phases middles [N], as `bump` takes it."""
    angle = 2 * math.pi * middles
    return torch.stack([angle.sin(), angle.cos()]) / (1 - EDGE)


def bump(clock: Tensor, directions: Tensor) -> Tensor:
    """[..., N]: how far in its swing is what has its middle in `directions` [2, N], of clock [..., 2]; 0 to 1.

    Without a clock, where its sine and cosine are 0, nothing swings.
    """
    return torch.sub(clock @ directions, EDGE / (1 - EDGE)).clamp(min=0.0)


def by_joint(angles: tuple[float, ...], joints: tuple[str, ...], feet: tuple[str, ...]) -> tuple[float, ...]:
    """The phase in the middle of the swing of each joint's foot, whose name begins as the joint's; 0 where none bends.

    Raises:
        ValueError: A joint that bends belongs to no foot.
    """
    found = []
    for angle, joint in zip(angles, joints, strict=True):
        side = joint.partition("_")[0]
        of = [index for index, foot in enumerate(feet) if foot.partition("_")[0] == side]
        if angle and not of:
            raise ValueError(f"stride: {joint}: no foot's name begins with {side!r}; the feet are {', '.join(feet)}")
        found.append(middle(of[0], len(feet)) if angle else 0.0)
    return tuple(found)
