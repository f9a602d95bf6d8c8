"""Tasks and robots of another package, by entry point: found by name, imported when asked for."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from helpers import forked
from helpers.trainer.small_runs import FEW_UPDATES

import trainer.engines.mjcf
from trainer import cli
from trainer.runs.policy import load_candidate
from trainer.tasks import TASKS, find_task

ROOT = Path(__file__).resolve().parents[3]
MODULE = """
from dataclasses import replace
from pathlib import Path

from trainer.tasks.robots import WALKER
from trainer.tasks.walker import WALKER_PARKOUR

BIPED = replace(WALKER, name="biped", mjcf=str(Path(__file__).with_name("biped.xml")))
STROLL = replace(WALKER_PARKOUR, name="biped-stroll", robot=BIPED, terrains=(), command_x=(0.2, 0.4))


def stairs():
    return replace(STROLL, name="biped-stairs", terrains=("stairs",))


NOT_A_TASK = 3
"""
ENTRIES = """[p3.tasks]
biped-stroll = my_biped.tasks:STROLL
biped-stairs = my_biped.tasks:stairs
biped-number = my_biped.tasks:NOT_A_TASK
biped-alias = my_biped.tasks:STROLL
biped-nowhere = my_biped.missing:STROLL
"""


def install(folder, package="my_biped", entries=ENTRIES, module=MODULE):
    """A package as pip would leave it: its code and its metadata."""
    (folder / package).mkdir(parents=True)
    (folder / package / "__init__.py").touch()
    (folder / package / "tasks.py").write_text(module)
    shutil.copy(Path(trainer.engines.mjcf.__file__).with_name("walker.xml"), folder / package / "biped.xml")
    metadata = folder / f"{package}-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package.replace('_', '-')}\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder = tmp_path / "site"
    install(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(TASKS, "_loaded", {})
    yield folder
    for name in [name for name in sys.modules if name.startswith("my_biped")]:
        del sys.modules[name]


def test_names_are_known_without_an_import(site):
    assert "biped-stroll" in TASKS
    assert {"g1-flat", "biped-stroll", "biped-nowhere"} <= set(TASKS)
    assert "my_biped.tasks" not in sys.modules
    assert find_task("g1-flat").robot.name == "g1"
    assert "my_biped.tasks" not in sys.modules
    assert find_task("biped-stroll").command_x == (0.2, 0.4)
    assert find_task("biped-stairs").terrains == ("stairs",)
    assert TASKS["biped-stairs"] is TASKS["biped-stairs"]


@pytest.mark.usefixtures("site")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("biped-strol", "no task 'biped-strol' (did you mean 'biped-stroll'?)"),
        (
            "biped-number",
            "task biped-number of the package my-biped (my_biped.tasks:NOT_A_TASK): expected a TaskConfig",
        ),
        ("biped-alias", "its TaskConfig is called 'biped-stroll'; expected the entry point's name"),
        ("biped-nowhere", "cannot be loaded: ModuleNotFoundError: No module named 'my_biped.missing'"),
    ],
)
def test_what_is_wrong_with_them_is_named(tmp_path, capsys, name, message):
    with pytest.raises(ValueError, match="task") as error:
        find_task(name)
    assert message in str(error.value)
    assert cli.main(["train", "--task", name, "--run-dir", str(tmp_path / "run")]) == 2
    assert message in capsys.readouterr().err


def test_two_packages_with_one_name_are_both_named(site, monkeypatch, tmp_path):
    install(tmp_path / "other", "my_other", "[p3.tasks]\nbiped-stroll = my_other.tasks:STROLL\n")
    monkeypatch.syspath_prepend(str(tmp_path / "other"))
    with pytest.raises(
        ValueError, match=r"several packages bring one: the package my-other .* and the package my-biped"
    ):
        find_task("biped-stroll")


def training(task, run):
    """The command line of the shortest training."""
    size = ["--num-envs", "4", *FEW_UPDATES, "--ppo.num-steps-per-env", "4", "--model.hidden-dims", "8"]
    run_options = ["--num-threads", "1", "--no-tensorboard", "--iterations", "1", "--run-dir", str(run)]
    return ["train", "--task", task, "--method", "mm", *size, *run_options]


def test_a_robot_of_one_s_own_is_trained_judged_and_refused_elsewhere(site, tmp_path, capsys):
    """In a process of its own, as a user has it."""
    run = tmp_path / "run"
    environment = {"PYTHONPATH": f"{ROOT}:{site}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = forked.python("-m", "trainer", *training("biped-stairs", run), env=environment)
    assert done.returncode == 0, done.stderr
    assert load_candidate(run).contract.robot == "biped"
    assert cli.main(["eval", str(run), "--episodes", "1", "--seconds", "0.1", "--num-threads", "1"]) == 0
    assert cli.main(["train", "--task", "biped-stroll", "--engine", "mjlab", "--run-dir", str(tmp_path / "x")]) == 2
    assert "--engine: mjlab runs the G1's tasks, not biped-stroll" in capsys.readouterr().err
    (site / "my_biped" / "biped.xml").unlink()
    assert cli.main(["train", "--task", "biped-stroll", "--run-dir", str(tmp_path / "y"), "--processes", "1"]) == 2
    assert "robot biped: no MJCF file" in capsys.readouterr().err


def test_a_run_directory_without_its_package_says_so(site, tmp_path, monkeypatch, capsys):
    run = tmp_path / "run"
    assert cli.main(training("biped-stroll", run)) == 0
    (run / "tasks.py").write_text("raise SystemExit('code of a run directory ran')")
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(site)])
    monkeypatch.setattr(TASKS, "_loaded", {})
    assert cli.main(["eval", str(run)]) == 2
    assert "--task: no task 'biped-stroll'; the tasks are g1-flat" in capsys.readouterr().err
