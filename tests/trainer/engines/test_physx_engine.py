"""The engine `physx` where nothing of NVIDIA's is installed: it says what is missing, and refuses what cannot be.

What it does on PhysX itself is checked by `make physx` (`tests/trainer/engines/physx_checks`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainer.algorithms.presets import check_engine
from trainer.engines.physx import packages
from trainer.engines.registry import make_env
from trainer.tasks.registry import TASKS

ROOT = Path(__file__).parents[3]


def test_devices_and_tasks_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="standalone PhysX runs on the CPU, got 'cuda:0'"):
        check_engine("physx", "cuda:0")
    with pytest.raises(ValueError, match="physx runs the G1's tasks, not walker-parkour"):
        check_engine("physx", "cpu", TASKS["walker-parkour"])


def test_without_isaac_lab_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("P3_ISAACLAB_SOURCES", str(tmp_path))
    with pytest.raises(ValueError, match="make physx P3_ACCEPT_OMNIVERSE_LICENSE=yes") as error:
        make_env("physx", TASKS["g1-flat"], 2)
    assert f"Isaac Lab's source is not in {tmp_path}" in str(error.value)


def test_without_ovphysx_it_says_whose_licence_that_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "isaaclab" / "source" / "isaaclab").mkdir(parents=True)
    monkeypatch.setenv("P3_ISAACLAB_SOURCES", str(tmp_path))
    monkeypatch.setenv("P3_PHYSX_PACKAGES", str(tmp_path))
    with pytest.raises(ValueError, match="under NVIDIA's licence") as error:
        packages.activate()
    assert f"ovphysx is not in {tmp_path}" in str(error.value)
    assert not [path for path in sys.path if path.startswith(str(tmp_path))]


def test_make_physx_asks_first(tmp_path: Path) -> None:
    """Without consent nothing is fetched."""
    environment = tmp_path / "environment"
    environment.mkdir()
    (environment / ".ready").touch()
    command = ["make", "physx", f"VENV={environment}", "-o", str(environment / ".ready")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "P3_ACCEPT_OMNIVERSE_LICENSE=yes" in done.stderr
    assert "nvidia-software-license-agreement" in done.stderr
    assert [path.name for path in environment.iterdir()] == [".ready"]
