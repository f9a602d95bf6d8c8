"""Settings of the studies of one update; without torch, so that their help answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

COST = "time and peak memory of one PPO update by each method, as ratios to the VAE's"
BASE = "vae"
METHODS = (BASE, "mc(5)", "mc(15)", "mc(50)", "mm", "cm", "ae", "spr", "simple-actor-critic")
SCALE = "memory and least time of an update at 4096 environments on an H100, counted, beside the paper's table"


@dataclass
class CostConfig:
    """Time and peak memory of one PPO update by each method: paper-size networks, random data of the G1's sizes."""

    methods: tuple[str, ...] = METHODS
    """Methods, as --method of p3 train names them; vae, to which all are compared, among them."""
    num_envs: int = 256
    """Environments, 24 steps each; the paper's 4096 needs hours for N = 50 on a CPU."""
    repeats: int = 3
    """The best of so many updates, after a warm-up, all methods in turn."""
    memory: bool = True
    """With --no-memory: time alone."""
    out: Path | None = None
    """Also write the numbers here, as JSON."""
    docs: Path | None = None
    """Merge the section into this Markdown page."""


@dataclass
class ScaleConfig:
    """Count what one PPO update needs, by running it small and scaling it up, and tell what that is on an H100."""

    methods: tuple[str, ...] = METHODS
    """Methods, as --method of p3 train names them; simple-actor-critic, from which the differences are, among them."""
    num_envs: int = 4096
    """Environments, 24 steps each, to scale to."""
    counted: tuple[int, int] = (48, 64)
    """Environments of the updates that are run and counted; at least 48."""
    out: Path | None = None
    """Also write the counts here, as JSON."""
    docs: Path | None = None
    """Merge the section into this Markdown page."""
