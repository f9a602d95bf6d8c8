"""What every engine has to do alike, so that a task means the same in each of them."""

from __future__ import annotations

PHYSICS_DT = 0.005
"""Seconds of a physics step."""
