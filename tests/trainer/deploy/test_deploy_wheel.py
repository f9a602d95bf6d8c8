"""The small distribution: built from these sources, it runs without the rest of them and without torch."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def setuptools_version() -> int:
    """0 where there is none."""
    try:
        return int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return 0


@pytest.mark.skipif(setuptools_version() < 77, reason="needs setuptools 77 to build without a network")
def test_it_runs_without_torch(tmp_path):
    build = [sys.executable, str(ROOT / "tools" / "deploy_wheel.py"), str(tmp_path), "--no-build-isolation"]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("p3_deploy-*.whl")
    assert wheel.stat().st_size < 200_000
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
        archive.extractall(tmp_path / "installed")
    assert "trainer/deploy/controller.py" in names
    assert {name for name in names if name.startswith("trainer/tasks")} == {
        "trainer/tasks/__init__.py",
        "trainer/tasks/contract.py",
        "trainer/tasks/robots.py",
    }
    assert not [name for name in names if name.startswith(("trainer/robot_sim", "p3kernels"))]
    assert "torch" not in metadata.lower().replace("without torch", "")
    # In a process that finds these files alone, and in which torch and MuJoCo cannot be imported.
    code = (
        f"import sys; sys.path[0] = {str(tmp_path / 'installed')!r}\n"
        "class Absent:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('torch', 'mujoco', 'p3kernels'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from trainer.commands import deploy, replay\n"
        "from trainer.deploy import mapping, elevation, figure\n"
        "assert 'installed' in deploy.__file__, deploy.__file__\n"
        "sys.argv = ['p3-deploy', 'missing.onnx', '--interface', 'lo']; sys.exit(deploy.script())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "p3-deploy: no policy missing.onnx" in done.stderr
