"""A hostile afternoon with the commands: any setting of any command is taken, or refused in words that name it.

No example starts a training, a simulator or a page: where the work would begin, `Started` is raised instead.
`make test-all` tries many more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import json
import math
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from p3kernels.bench import command
from trainer import cli
from trainer.algorithms.presets import resolve
from trainer.commands import (
    bench_run,
    deploy,
    diagnose,
    evaluate,
    export,
    gpu_check_run,
    pack,
    play,
    robot_sim,
    run_onnx,
    study,
    train_run,
)
from trainer.config import TrainConfig
from trainer.config.ranges import ranges_of
from trainer.evaluation import compare
from trainer.runs.config_file import save_config
from trainer.study import cost, scale
from trainer.viewer import browser

SETTINGS = {
    "train": TrainConfig,
    "eval": evaluate.EvalConfig,
    "play": play.PlayConfig,
    "diagnose": diagnose.DiagnoseConfig,
    "export": export.ExportConfig,
    "run-onnx": run_onnx.RunConfig,
    "pack": pack.PackConfig,
    "deploy": deploy.DeployConfig,
    "robot-sim": robot_sim.RobotSimConfig,
}
OTHERS = (study.StudyConfig, cost.CostConfig, scale.ScaleConfig)
WORDS = ("", "nan", "g1-falt", "ü", "a/../b", "\\n", "-", "--", "=", "x" * 3000, "None", "[]")
NUMBERS = ("-1", "0", "1", "2", "0.5", "1e9", "100000000", "10" * 20, "1e400", "1e-320", "nan", "inf", "-inf", "1,5")
PATHS = ("", ".", "/", "/dev/null", "/dev/full", "/nonexistent/file", "a.mp4", "a.onnx", "a.pt", "a.json", "\0")

PARSED = {
    ("bench",): {
        "--batch": NUMBERS,
        "--samples": NUMBERS,
        "--threads": NUMBERS,
        "--repeats": NUMBERS,
        "--device": WORDS,
    },
    ("bench", "--engine"): {"--num-envs": NUMBERS, "--threads": NUMBERS, "--tasks": WORDS, "--out": PATHS},
    ("bench", "--update"): {"--num-envs": NUMBERS, "--repeats": NUMBERS, "--out": PATHS},
    ("gpu-check",): {"--minutes": NUMBERS, "--out": PATHS, "--only": WORDS, "--redo": WORDS, "--one-step": WORDS},
    ("report",): {"--": PATHS},
    ("replay",): {"--policy": PATHS, "--arrays": PATHS, "--plot": PATHS},
    ("info",): {"--json": WORDS},
}
"""Commands whose settings are no dataclass, with options of theirs and what those are tried with."""


class Started(BaseException):
    """The work would have begun."""


def start(*_: Any, **__: Any) -> Any:
    raise Started


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for module, name in (
        (train_run, "run"),
        (train_run, "launch"),
        (compare, "_part"),
        (diagnose, "_gather"),
        (diagnose, "diagnose"),
        (export, "export"),
        (pack, "write_policy"),
        (run_onnx, "run"),
        (deploy, "run"),
        (robot_sim, "serve"),
        (play, "choose_gl"),
        (bench_run, "run"),
        (command, "_run"),
        (gpu_check_run, "check"),
        (gpu_check_run, "run_step"),
        (importlib.import_module("trainer.viewer.session"), "Session"),
    ):
        monkeypatch.setattr(module, name, start)


@dataclasses.dataclass
class Outcome:
    """How a command ended, and what it said."""

    code: int | str
    said: str


def p3(*arguments: str) -> Outcome:
    told, printed = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(printed):
        try:
            code: int | str = cli.main(arguments)
        except Started:
            code = "started"
        except SystemExit as stop:
            code = stop.code or 0
    return Outcome(code, told.getvalue())


def options(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Option to type, of the settings' parts too."""
    found = {}
    for name, hint in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(hint):
            found |= options(hint, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = hint
    return found


def numeric(hint: Any) -> bool:
    """Whether a type has a number in it that a range could be for."""
    if typing.get_origin(hint) is typing.Literal or hint is bool:
        return False
    return hint in (int, float) or any(map(numeric, typing.get_args(hint)))


@pytest.mark.parametrize("kind", [*SETTINGS.values(), *OTHERS], ids=lambda kind: kind.__name__)
def test_every_number_has_a_range(kind):
    """In the one table, and the defaults are within it."""

    def check(each: Any) -> None:
        hints = typing.get_type_hints(each)
        missing = [name for name, hint in hints.items() if numeric(hint) and name not in ranges_of(each)]
        assert not missing, f"{each.__name__}: no range of {missing}"
        unknown = ranges_of(each).keys() - hints.keys()
        assert not unknown, f"{each.__name__} has no setting {unknown}"
        for field in dataclasses.fields(each):
            values = field.default if isinstance(field.default, tuple) else (field.default,)
            for value in values:
                if type(value) in (int, float):
                    assert value in ranges_of(each)[field.name], field.name
        for hint in hints.values():
            if dataclasses.is_dataclass(hint):
                check(hint)

    check(kind)


@st.composite
def command_lines(draw: st.DrawFn) -> tuple[str, ...]:
    """A command with up to three of its options, each with values that may be right or not."""
    command = draw(st.sampled_from([*sorted(SETTINGS), *PARSED]))
    if isinstance(command, tuple):
        options_of = PARSED[command]
        chosen = draw(st.lists(st.sampled_from(sorted(options_of)), min_size=1, max_size=2, unique=True))
        return (*command, *(text for name in chosen for text in (name, draw(st.sampled_from(options_of[name])))))
    arguments = [command]
    if command in ("eval", "play", "diagnose", "export", "pack"):
        arguments.append(draw(st.sampled_from(("g1-flat", "g1-flat", "g1-falt", "/", "", "/dev/null"))))
    if command in ("run-onnx", "deploy", "pack"):
        arguments.append(draw(st.sampled_from(("policy.onnx", "/dev/null", "", "/", "out.pt"))))
    known = options(SETTINGS[command])
    for name in draw(st.lists(st.sampled_from(sorted(known)), max_size=3, unique=True)):
        hint = known[name]
        text = str(hint)
        option = f"--{name.replace('_', '-')}"
        if hint is bool:
            arguments.append(draw(st.sampled_from((option, option.replace("--", "--no-", 1), f"{option}=maybe"))))
            continue
        pool = NUMBERS if numeric(hint) else PATHS if "Path" in text else WORDS
        if typing.get_origin(hint) is typing.Literal:
            pool = (*typing.get_args(hint), *WORDS[:4])
        count = draw(st.integers(0, 3)) if "tuple" in text else 1
        arguments += [option, *(draw(st.sampled_from(pool)) for _ in range(count))]
    return tuple(arguments)


def assert_clean(arguments: tuple[str, ...], outcome: Outcome) -> None:
    assert outcome.code in ("started", 0, 2), outcome
    assert "Traceback" not in outcome.said
    assert "a fault of this program" not in outcome.said
    if outcome.code == 2:
        assert outcome.said.strip(), arguments


def assert_in_range(arguments: tuple[str, ...]) -> None:
    """What was taken is sound: every number is finite and in its range."""
    kind = SETTINGS.get(arguments[0])
    if kind is None:
        return
    ranges = ranges_of(kind)
    for part in ("ppo", "model", "limits"):
        hint = typing.get_type_hints(kind).get(part)
        if hint is not None:
            ranges |= {f"{part}.{name}": each for name, each in ranges_of(hint).items()}
    option = ""
    for argument in arguments[1:]:
        if argument.startswith("--"):
            option = argument.removeprefix("--").replace("-", "_")
        elif option in ranges:
            value = float(argument)
            assert math.isfinite(value), arguments
            assert value in ranges[option], arguments


def taken_or_refused_in_words(arguments: tuple[str, ...]) -> None:
    outcome = p3(*arguments)
    assert_clean(arguments, outcome)
    if outcome.code == "started":
        assert_in_range(arguments)


def swept(examples: int) -> Any:
    """The same check of so many command lines, drawn from one seed."""
    options = settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    return seed(22)(options(given(command_lines())(taken_or_refused_in_words)))


test_some_command_lines = swept(80)
test_many_command_lines = pytest.mark.sweep(swept(1200))


STUDY = ("study", "preregistered", "--dir", "runs")
P3 = ("train", "--method", "p3")
MM_CM_SHARED = ("train", "--method", "mm+cm+shared")
SMALL_ROLLOUT = ("--num-envs", "8", "--ppo.num-steps-per-env", "8")
REFUSED = {
    ("train", "--task", "g1-falt"): "--task: no task 'g1-falt' (did you mean 'g1-flat'?)",
    ("train", "--method", "share"): "(did you mean 'shared'?)",
    ("train", "--set", "terrains=stars"): "(did you mean 'stairs'?)",
    ("train", "--set", "rewards.progres=1"): "(did you mean 'progress'?)",
    ("train", "--switch-at", "5", "--method", "mm"): "--switch-at: mm has one phase",
    ("train", "--switch-at", "5"): "--switch-at: quiet has one phase",
    ("train", "--switch-on-plateau"): "--switch-on-plateau: quiet has one phase",
    ("train", "--run-dir", ""): "--run-dir: expected the name of a directory",
    ("train", "--num-threads", "0"): "--num-threads: expected at least 1, got 0",
    ("train", "--model.beta", "-1"): "--model.beta: expected at least 0, got -1.0",
    ("train", "--ppo.entropy-coef", "inf"): "--ppo.entropy-coef: expected a finite number, at least 0, got inf",
    ("train", "--ppo.value-loss-coef", "nan"): "--ppo.value-loss-coef: expected a finite number, at least 0, got nan",
    ("train", "--ppo.clip-param", "0"): "--ppo.clip-param: expected above 0 and at most 1, got 0.0",
    ("train", "--model.hidden-dims"): "--model.hidden-dims",
    ("train", "--model.hidden-dims", "64", "-3"): "--model.hidden-dims: expected at least 1, got -3",
    ("train", "--num-envs", "100000000"): "--num-envs: 100000000 environments of g1-flat would need about",
    ("train", "--nun-envs", "3"): "--num-envs",
    ("train", "--method", "mcmc"): "method: expected p3, p3(N), quiet, vae,",
    ("train", "--method", "mm+mm"): "method: expected a phase after mm that differs from it, got 'mm+mm'",
    ("train", "--method", "mm+"): "method: expected p3, p3(N),",
    ("train", "--method", "ae+mc15"): "method: expected p3, p3(N),",
    ("train", "--num-envs", "0"): "--num-envs: expected at least 1, got 0",
    ("train", "--iterations", "0"): "--iterations: expected at least 1, got 0",
    ("train", "--max-minutes", "-3"): "--max-minutes: expected a positive number, got -3",
    ("train", "--switch-at", "-1"): "--switch-at: expected at least 0, got -1",
    (*P3, "--switch-at", "1", "2"): "--switch-at: expected 1 iterations, one a change of mm+mc15, got 2",
    (*MM_CM_SHARED, "--switch-at", "3", "3"): "--switch-at: expected rising iterations, got 3 3",
    (*P3, "--switch-at", "1", "--switch-on-plateau"): "exclude each other",
    ("train", "--ppo.gamma", "1.5"): "--ppo.gamma: expected 0 to 1, got 1.5",
    ("train", "--ppo.learning-rate", "0"): "--ppo.learning-rate: expected above 0 and at most 1, got 0",
    ("train", *SMALL_ROLLOUT, "--ppo.num-mini-batches", "1000"): "1000 is more than the rollout's 64 samples",
    ("train", "--resume"): "--resume: no config.json in",
    ("eval", "g1-falt"): "(did you mean 'g1-flat'?)",
    ("eval", "g1-flat", "--terrains", "stars"): "(did you mean 'stairs'?)",
    ("eval", "g1-flat", "--json", "/proc/numbers.json"): "--json: /proc/numbers.json cannot be written",
    ("eval", "g1-flat", "--episodes", "100000000"): "--episodes: 100000000 environments of g1-flat would need about",
    ("eval", "g1-flat", "--terrains", "lava"): "--terrains: expected some of plane",
    ("eval", "g1-flat", "--strengths", "-1"): "--strengths: expected 0 to 100, got -1.0",
    ("eval", "g1-flat", "--episodes", "0"): "--episodes: expected at least 1, got 0",
    ("eval", "g1-flat", "--json", "/nowhere/n.json"): "--json: no directory /nowhere",
    ("eval", "g1-flat", "--plot", "bars.bmp"): "--plot: expected a name ending in .png",
    ("eval", "g1-flat", "--difficulty", "0", "1.7"): "--difficulty: expected 0 to 1, got 1.7",
    ("eval", "g1-flat", "--task", "g1-fla"): "did you mean 'g1-flat'",
    (*STUDY, "--arms", "mn"): "--arms: expected some of mm,",
    (*STUDY, "--seeds", "1", "1"): "--seeds: 1 more than once",
    (*STUDY, "--seeds", "2000"): "--eval-seed: 2000 is a seed of the trainings",
    (*STUDY, "--iterations", "405"): "--iterations: expected a multiple of --save-interval 10, got 405",
    (*STUDY, "--iterations", "340"): "needs 4 checkpoints of its own, expected at least 350, got 340",
    (*STUDY, "--eval-difficulties", "2"): "--eval-difficulties: expected 0 to 1",
    (*STUDY, "--num-envs", "0"): "--num-envs: expected at least 1",
    (*STUDY, "--docs", "nowhere.md"): "--docs: no page nowhere.md",
    ("run-onnx", "policy.onnx", "--command", "nan", "0", "0"): "--command: expected -10 to 10, got nan",
    ("play", "g1-flat", "--viewer", "browser", "--port", "70000"): "--port: expected at most 65535, got 70000",
    ("robot-sim", "--loss", "2"): "--loss: expected 0 to 1, got 2.0",
    ("bench", "--threads", "100000000"): "--threads: expected at most 1024, got 100000000",
    ("bench", "--engine", "--num-envs", "100000000"): "--num-envs: 100000000 environments of g1-flat would need about",
    ("bench", "--update", "--out", "/"): "--out: / is a directory, expected a file",
    ("gpu-check", "--one-step", "speed"): "no step 'speed'; the steps are environment",
}
"""Command lines and what is said to them; some were taken without a word, or ended in a traceback, before."""


@pytest.mark.parametrize("arguments", list(REFUSED), ids=" ".join)
def test_wrong_settings_are_refused_in_words_that_name_them(arguments):
    outcome = p3(*arguments)
    assert outcome.code == 2, outcome
    assert_clean(arguments, outcome)
    assert REFUSED[arguments] in " ".join(outcome.said.replace("│", " ").split()), outcome.said
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("no.such.host.invalid", "--host: 'no.such.host.invalid' is no address of this machine"),
        ("", "--host: '' is no address of this machine"),
        ("192.0.2.1", "--host: cannot serve at '192.0.2.1'"),
    ],
)
def test_an_address_that_nothing_can_listen_at(host, message):
    """Viser would wait for its own server for ever."""
    with pytest.raises(ValueError, match=message):
        browser.check_address(host, 8080)


class TestResume:
    """A resumed run goes on with its own settings; what contradicts them is refused, each by its name."""

    @pytest.fixture
    def run(self, tmp_path) -> Path:
        folder = tmp_path / "run"
        folder.mkdir()
        config = resolve(TrainConfig(task="walker-parkour", method="mm", num_envs=8, processes=1, run_dir=folder))
        save_config(config, folder / "config.json")
        return folder

    def test_contradictions(self, run):
        given = ("--task", "g1-flat", "--ppo.gamma", "0.9", "--seed", "2", "--method", "mm")
        outcome = p3("train", "--run-dir", str(run), "--resume", *given)
        assert outcome.code == 2
        assert "it has --task walker-parkour, not g1-flat; --seed 1, not 2; --ppo.gamma 0.99, not 0.9" in outcome.said
        assert "--method" not in outcome.said

    @pytest.mark.parametrize("given", [(), ("--iterations", "999"), ("--task", "walker-parkour", "--num-envs", "8")])
    def test_what_is_the_same_or_new(self, run, given):
        assert p3("train", "--run-dir", str(run), "--resume", *given).code == "started"

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("seed", "one", "seed: expected int, got 'one'"),
            ("tensorboard", 3, "tensorboard: expected bool, got 3"),
            ("iterations", [1], "iterations: expected int | None, got [1]"),
            ("method", None, "method: expected str, got None"),
        ],
    )
    def test_wrong_types_in_its_file(self, run, name, value, message):
        path = run / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
        outcome = p3("train", "--run-dir", str(run), "--resume")
        assert outcome.code == 2
        assert message in outcome.said
