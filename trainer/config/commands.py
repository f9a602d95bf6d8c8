"""Settings of the commands that judge, show and write policies; without torch, so that their help answers at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from trainer.config import EngineName


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How policies are judged."""

    latent: tuple[Literal["mean", "sample", "policy"], ...] = ("mean",)
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    terrains: tuple[str, ...] = ()
    """Terrains: plane, stairs, gaps, single_row_stones, ...; by default the last three of these on tasks with terrains,
    else the plane."""
    difficulty: tuple[float, ...] = (0.0,)
    """Difficulties of the terrains, in [0, 1], a part of the table each; the plane has none."""
    strengths: tuple[float, ...] = (0.0, 1.0)
    """Strengths of randomised friction, masses and sensor noise, a part of the table each: 0 none, 1 as in training."""
    pushes: bool = True
    """Push the robots as in training, every 5 to 10 s."""
    episodes: int = 100
    """Episodes on each terrain, at each difficulty and strength; they run in parallel."""
    seconds: float = 20.0
    """Seconds that an episode lasts."""
    engine: tuple[EngineName, ...] = ("mujoco",)
    """Simulators, whatever a policy was trained in: native MuJoCo; mjlab or physx (the G1's tasks); several, one after
    the other from the same starts, a part of the table each."""
    device: str = "cpu"
    """Device on which mjlab simulates: cpu, cuda:0, ..."""
    seed: int = 1000
    """Seed of everything random; other than the training's."""
    num_threads: int | None = None
    """Simulator threads; all cores by default."""


@dataclass(frozen=True, kw_only=True)
class EvalConfig(Protocol):
    """Judge trained policies side by side, on the same terrains, robots and random numbers."""

    checkpoints: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run directories (best.pt, else the newest checkpoint), checkpoint or policy files, or pretrained policies."""
    task: str | None = None
    """Task whose rewards and commands count; the checkpoints' own by default, if they have the same."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SETTING=VALUE")] = ()
    """Settings of that task to change, as for p3 train: max_tilt=0.8 dynamics.friction=0.2,0.4."""
    markdown: Path | None = None
    """File to write the table to as well."""
    json: Path | None = None
    """File to write the numbers to, terrain by terrain."""
    plot: Path | None = None
    """File to draw bars into (.png, .svg or .pdf)."""


@dataclass
class PlayConfig:
    """Watch a trained policy."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A run directory (best.pt, else the newest checkpoint), a checkpoint or policy file, or a pretrained policy."""
    viewer: Literal["auto", "mujoco", "browser", "none"] = "auto"
    """mujoco: a window, needs a display. browser: a page with sliders and plots, served from here, needs no display
    and no OpenGL. none: a video. auto: a video if --video is given, else the window where there is a display, else the
    page if started from a terminal and the video if not."""
    video: Path | None = None
    """Write this file, .mp4 or .gif; RUN_DIR/play.mp4 by default. Rendered off-screen by EGL or OSMesa, whichever works
    here; MUJOCO_GL=egl|osmesa|glfw chooses."""
    latent: Literal["mean", "sample", "policy"] = "mean"
    """Act at the latent's mean (as deployed), at a sample of it, or with exploration noise too."""
    seconds: float | None = None
    """How long; 10 s for a video, until it is closed or Ctrl-C for a viewer."""
    difficulty: float | None = None
    """Difficulty of the terrain, in [0, 1]; 0 by default, on terrains."""
    terrain: str | None = None
    """Name of the terrain; the task's first by default."""
    seed: int = 1000
    """Seed of the episodes."""
    port: int = 8080
    """Port of the page; the next free one if it is taken."""
    host: str = "127.0.0.1"
    """Address the page is served at: this machine alone by default, 0.0.0.0 for the whole network."""
    plain: bool = False
    """A page without shadows and reflections: many times faster in a browser without a GPU."""
    width: int = 640
    """Width of the video, pixels."""
    height: int = 480
    """Height of the video, pixels."""


@dataclass
class DiagnoseConfig:
    """Diagnose the policy of a checkpoint on real states of its task: the paper's tables and figures.

    Data efficiency, KL after one epoch's update, action distribution, Gaussianity, correlation, linearity and gradient
    noise, for single-sample, Monte Carlo and closed-form likelihoods. Everything is written to RUN_DIR/diagnose and
    into the run's report.html. Of several checkpoints each is a column, figures side by side; the directory of a P³
    run that has changed from MM to MC gives two: its checkpoint at the change, before LSFT, and its latest.
    """

    checkpoint: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Directories of runs, checkpoint files (model_N.pt) in them, policy files, or pretrained policies by name."""
    task: str | None = None
    """Roll out on another task of the same robot; the run's own by default."""
    num_envs: int | None = None
    """Fresh environments; by default the run's own, as they were when the checkpoint was written."""
    states: int = 1024
    """States kept of a rollout."""
    seed: int = 1
    """Seed of rollouts and samples: the same seed gives the same numbers."""
    out: Path | None = None
    """Where everything goes; RUN_DIR/diagnose of the last checkpoint by default."""
    num_threads: int | None = None
    """Simulator threads; all cores by default."""
    quick: bool = False
    """Few states and samples, for a first look in seconds: the numbers are rough, and say so."""


@dataclass
class ExportConfig:
    """Write a checkpoint as one self-contained ONNX file, with its contract as JSON beside it."""

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A run directory (best.pt, else the newest checkpoint), a checkpoint or policy file, or a pretrained policy."""
    output: Path | None = None
    """File to write; policy.onnx in the run directory by default, for a pretrained policy NAME-policy.onnx here."""
    std: bool = False
    """Whether to add the output action_std: what the latent's uncertainty does to the action, by moment matching."""


@dataclass
class PackConfig:
    """Write the policy of a checkpoint as one small file: weights, contract and settings.

    The file is usable wherever a checkpoint is: p3 eval, play, export, diagnose and train --init-from.
    """

    checkpoint: Annotated[Path, tyro.conf.Positional]
    """A run directory (its best.pt, else its newest checkpoint) or a checkpoint file."""
    output: Annotated[Path, tyro.conf.Positional]
    """The file, ending in .pt; its name is the policy's."""
    average: int = 1
    """How many checkpoints of the run to take the mean of the weights of: this one and those before it. Checkpoints of
    a training that goes on circle around what it tends to, so that their mean can be better than each of them."""
