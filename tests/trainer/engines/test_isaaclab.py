"""The Isaac Lab engine without Isaac Sim: its checks against Isaac Lab's real sources, in processes of their own.

`make isaaclab` fetches the sources; without them these tests are skipped. The checks are in `isaaclab_checks`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from trainer.engines.physx.packages import isaaclab_folder, isaaclab_paths

ROOT = Path(__file__).parents[3]
CHECKS = Path(__file__).with_name("isaaclab_checks")
SOURCES = isaaclab_folder()
PATHS = [*isaaclab_paths()[:-1], ROOT, SOURCES]

needs_sources = pytest.mark.skipif(
    not PATHS[0].is_dir(), reason=f"no sources of Isaac Lab in {SOURCES}: `make isaaclab` (Python 3.11, a network)"
)


def _environment(*first: Path) -> dict[str, str]:
    paths = os.pathsep.join(map(str, (*first, *PATHS)))
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "WARP_CACHE_PATH": str(SOURCES / "warp-cache")}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What failed, by file of checks."""
    record = tmp_path_factory.mktemp("isaaclab") / "outcomes.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "on_stubs", "--tb=short"]
    command += ["--show-capture=no", "-o", "python_files=check_*.py", f"--junitxml={record}", str(CHECKS)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(CHECKS), capture_output=True, text=True, check=False)
    assert record.is_file(), done.stdout[-5000:] + done.stderr[-5000:]
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(record).iter("testcase"):
        wrong = [f"{case.get('name')}: {part.text}" for part in case if part.tag != "system-out"]
        found.setdefault(case.get("classname", "").rpartition(".")[2], []).extend(wrong)
    return found


@needs_sources
@pytest.mark.parametrize("checks", sorted(path.stem for path in CHECKS.glob("check_*.py")))
def test_against_the_sources(outcomes: dict[str, list[str]], checks: str) -> None:
    assert checks in outcomes
    assert not outcomes[checks], "\n".join(outcomes[checks])


@needs_sources
def test_types_against_the_sources(tmp_path: Path) -> None:
    """No symbol, keyword or attribute that Isaac Lab has not; a file of such mistakes shows that they are seen."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from isaaclab.assets import Articulation\n"
        "from isaaclab.sensors import RayCasterCfg, RayCasterConfig\n"
        "RayCasterCfg(prim_pth='x')\n"
        "def read(robot: Articulation): return robot.data.joint_poss\n"
    )
    settings = {"include": [str(ROOT / "trainer/engines/isaaclab"), str(wrong)], "extraPaths": [str(p) for p in PATHS]}
    settings |= {"typeCheckingMode": "basic", "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(
        [*command, "-p", str(tmp_path)], env=_environment(), capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    errors = [(Path(d["file"]).name, d["message"]) for d in report["generalDiagnostics"] if d["severity"] == "error"]
    seen = [message for file, message in errors if file == wrong.name]
    assert [any(word in message for message in seen) for word in ("RayCasterConfig", "prim_pth", "joint_poss")] == [
        True
    ] * 3
    assert [error for error in errors if error[0] != wrong.name] == []
    assert report["summary"]["filesAnalyzed"] >= 11


def test_without_isaac_sim_the_launcher_says_what_is_missing() -> None:
    command = [sys.executable, "-m", "trainer.engines.isaaclab.train", "--task", "P3-Flat-G1-v0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Isaac Lab 2.3.2 with Isaac Sim 5.1 is not installed" in done.stderr
    assert "pip install 'p3kernels[isaaclab]'" in done.stderr
