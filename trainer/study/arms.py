"""The planned studies: ways to train ("arms"), on which seeds and at which size; without torch, for `p3 study --help`.

An arm trains from random weights, or continues the moment-matching run of its seed, the trunk, from one and the same
checkpoint. A branch that goes on with moment matching is the run from random weights, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    name: str
    """In tables and in the names of files; `mm+X` continues the trunk with X."""
    options: tuple[str, ...]
    """Options of `p3 train`, beyond the study's own."""
    branch: bool = False
    """Continues the trunk of its seed."""

    @property
    def command(self) -> str:
        """The arm's options, as tables show them."""
        return " ".join(self.options)


def scratch(name: str, *options: str) -> Arm:
    """From random weights; the name is its method where no options are given."""
    return Arm(name, options or ("--method", name))


def branch(name: str, *options: str) -> Arm:
    """Continues the trunk, with the method `name` where no options are given."""
    return Arm(f"mm+{name}", options or ("--method", name), branch=True)


def _noise(coef: float, target: float | None = None) -> tuple[str, ...]:
    held = () if target is None else ("--model.latent-noise-target", f"{target:g}")
    return ("--method", "mm", "--model.latent-noise-coef", f"{coef:g}", *held)


MM = Arm("mm", ("--method", "mm"), branch=True)
"""The trunk continued as it was: moment matching from the first iteration to the last."""
RECOMMENDED = ("quiet", ("--method", "quiet"))
"""Name and options of the method that the pilot recommends, fixed before the study's first run began
(docs/preregistration.md); the pilot's own arm of it is `mm+noise0.005`."""


@dataclass(frozen=True)
class Contrast:
    """A planned comparison of two arms, on the same seeds."""

    first: str
    second: str
    question: str


@dataclass(frozen=True)
class Plan:
    """A planned study."""

    name: str
    title: str
    summary: str
    arms: tuple[Arm, ...]
    seeds: tuple[int, ...]
    contrasts: tuple[Contrast, ...] = ()
    """Tested with Holm's correction over all of them and both measures; a study without any only describes."""

    def contrasts_of(self, arms: Sequence[str]) -> tuple[Contrast, ...]:
        """The contrasts between these arms."""
        return tuple(one for one in self.contrasts if one.first in arms and one.second in arms)


STUDY_SEEDS = (101, 102, 103, 104, 105, 106, 107, 108)
_P3, _RECOMMENDED = branch("mc15"), branch(RECOMMENDED[0], *RECOMMENDED[1])
PLANS = {
    plan.name: plan
    for plan in (
        Plan(
            name="pilot",
            title="Pilot: ways to continue a moment-matching run",
            summary="continue MM runs in eleven ways, and the Σλ term from the start: for tuning, on seeds of its own",
            arms=(
                MM,
                branch("noise0.005", *_noise(0.005)),
                branch("noise0.02", *_noise(0.02)),
                branch("noise0.05", *_noise(0.05)),
                branch("held0.1", *_noise(0.02, 0.1)),
                branch("held0.3", *_noise(0.02, 0.3)),
                branch("mc15"),
                branch("mc15-dual3", "--method", "mc15", "--ppo.dual-clip", "3"),
                branch("mc15-common"),
                branch("shared"),
                branch("cm"),
                scratch("noise0.02", *_noise(0.02)),
                scratch("held0.1", *_noise(0.02, 0.1)),
                scratch("held0.3", *_noise(0.02, 0.3)),
            ),
            seeds=(11, 12, 13, 14),
        ),
        Plan(
            name="preregistered",
            title="The pre-registered study",
            summary="Part A, branches of one MM run, and Part B, from random weights: three planned contrasts",
            arms=(
                MM,
                _P3,
                branch("mc15-common"),
                branch("shared"),
                _RECOMMENDED,
                scratch("vae-stored"),
                scratch("vae"),
                scratch(RECOMMENDED[0], *RECOMMENDED[1]),
                scratch("ae"),
            ),
            seeds=STUDY_SEEDS,
            contrasts=(
                Contrast(MM.name, "vae-stored", "Does moment matching train better than the single stored sample?"),
                Contrast(_P3.name, MM.name, "What does LSFT, the paper's change to Monte Carlo, give over going on?"),
                Contrast(_RECOMMENDED.name, _P3.name, "Does the recommended continuation replace LSFT?"),
            ),
        ),
        Plan(
            name="table",
            title="The paper's MuJoCo table on the walker",
            summary="the paper's methods side by side; shares runs with the pre-registered study",
            arms=(
                _P3,
                MM,
                scratch("mc50"),
                scratch("mc5"),
                scratch("vae"),
                scratch("z-mean"),
                scratch("ae"),
                scratch("spr"),
                scratch("simple-actor-critic"),
            ),
            seeds=STUDY_SEEDS[:3],
        ),
    )
}


@dataclass(frozen=True)
class Judging:
    """The measure: success on fixed tiles that no training saw, over the last checkpoints of a run."""

    difficulties: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6)
    """Difficulties of the courses: stairs, gaps and stones, in equal parts."""
    episodes: int = 64
    """Episodes at each difficulty."""
    seconds: float = 20.0
    """Length of an episode; the task's, which the slowest command needs for its course."""
    seed: int = 2000
    """Seed of tiles, starts, dynamics, noise, commands and pushes: the same for every checkpoint."""
    checkpoints: int = 4
    """How many of a run's last, `save_interval` iterations apart; their numbers are averaged."""


@dataclass(frozen=True)
class Size:
    """How large the runs of a study are.

    Raises:
        ValueError: Naming the option that cannot be.
    """

    task: str = "walker-parkour"
    num_envs: int = 256
    iterations: int = 410
    """Iterations of every run in all, 6,144 steps each."""
    trunk: int = 310
    """Iterations before a branch."""
    save_interval: int = 10
    eval_interval: int = 25
    """Iterations between evaluations while training, at difficulty 0.2, for the steps to 50 % success; 0 for none."""
    judging: Judging = field(default_factory=Judging)
    options: tuple[str, ...] = ()
    """Options of `p3 train`, for every run."""

    def __post_init__(self) -> None:
        judging, needed = self.judging, self.judging.checkpoints * self.save_interval
        for name, value in (("save-interval", self.save_interval), ("eval-checkpoints", judging.checkpoints)):
            if value < 1:
                raise ValueError(f"--{name}: expected at least 1, got {value}")
        for name, value in (("iterations", self.iterations), ("trunk", self.trunk)):
            if value < 1 or value % self.save_interval:
                raise ValueError(f"--{name}: expected a multiple of --save-interval {self.save_interval}, got {value}")
        if self.iterations - self.trunk < needed:
            raise ValueError(
                f"--iterations: a branch of --trunk {self.trunk} needs {judging.checkpoints} checkpoints of its own,"
                f" expected at least {self.trunk + needed}, got {self.iterations}"
            )
        if judging.seconds <= 0 or judging.episodes < 1 or not judging.difficulties:
            raise ValueError("--eval-seconds, --eval-episodes and --eval-difficulties: expected positive numbers")
        if not all(0 <= difficulty <= 1 for difficulty in judging.difficulties):
            raise ValueError(f"--eval-difficulties: expected numbers in [0, 1], got {judging.difficulties}")

    @property
    def judged(self) -> tuple[int, ...]:
        """Iterations whose checkpoints are judged, of branches and of runs from random weights alike."""
        count, every = self.judging.checkpoints, self.save_interval
        return tuple(self.iterations - every * (count - 1 - index) for index in range(count))
