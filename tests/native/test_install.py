"""A clean machine: sdist → wheel → fresh environment, with and without a compiler, with and without Triton.

torch is not downloaded again: the fresh environments see the one of the test environment through a .pth file.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import setuptools

ROOT = Path(__file__).resolve().parents[2]
NAMES = shutil.ignore_patterns(".*", "build", "dist", "*.so", "__pycache__", "*.egg-info", "bench_*")


def not_source(folder, names):
    """What a checkout has beside its sources: `runs` at its root, which is no room of the trainer's."""
    return {*NAMES(folder, names), *(("runs",) if Path(folder) == ROOT else ())}


pytestmark = pytest.mark.skipif(
    int(setuptools.__version__.split(".")[0]) < 77,
    reason=f"setuptools {setuptools.__version__} cannot build this package (pyproject.toml asks for 77)",
)


def run(*command: object, cwd: Path, fails: bool = False, **environment: str) -> str:
    """Output of a command, without the test process's own Python path; it must succeed, or fail if it is said to."""
    scripts = str(Path(sys.executable).parent)
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    own["PATH"] = scripts + os.pathsep + own["PATH"]
    arguments = [str(part) for part in command]
    done = subprocess.run(
        arguments,
        cwd=cwd,
        env=own | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    assert (done.returncode != 0) == fails, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory) -> Path:
    """Built from a copy, so that nothing is left in the repository."""
    source = tmp_path_factory.mktemp("source") / "p3kernels"
    shutil.copytree(ROOT, source, ignore=not_source)
    code = "from setuptools import build_meta; print(build_meta.build_sdist('dist'))"
    run(sys.executable, "-c", code, cwd=source)
    (archive,) = (source / "dist").iterdir()
    return archive


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory) -> Path:
    """A folder for PYTHONPATH that makes `import torch` fail."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "torch.py").write_text("raise ImportError('a build must not need torch')\n")
    return folder


def build_wheel(sdist: Path, folder: Path, fails: bool = False, **environment: str) -> tuple[Path | None, str]:
    """A wheel from the unpacked sdist, and what the build said."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    pip = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-index"]
    said = run(*pip, "-w", folder / "wheels", tree, cwd=folder, fails=fails, **environment)
    return (None if fails else next((folder / "wheels").iterdir())), said


@pytest.fixture(scope="module")
def native_wheel(sdist, without_torch, tmp_path_factory) -> Path:
    # Not optimised and of one instruction set: what is tested of the wheel is its making and its content.
    options = {"P3_REQUIRE_NATIVE": "1", "P3_CUDA": "off", "CMAKE_ARGS": "-DP3_OPTIMISE=-O0 -DP3_IS_X86=OFF"}
    wheel, _ = build_wheel(sdist, tmp_path_factory.mktemp("native"), PYTHONPATH=str(without_torch), **options)
    return wheel


def no_compiler(folder: Path) -> dict[str, str]:
    """An environment in which CMake finds no compiler: its own tools on the PATH, and nothing else."""
    tools = folder / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja"):
        (tools / name).symlink_to(
            shutil.which(name, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        )
    return {"PATH": str(tools), "CXX": "/nonexistent/c++", "CC": "/nonexistent/cc"}


@pytest.fixture(scope="module")
def pure_wheel(sdist, tmp_path_factory) -> tuple[Path, str]:
    wheel, said = build_wheel(sdist, tmp_path_factory.mktemp("pure"), **no_compiler(tmp_path_factory.mktemp("tools")))
    return wheel, said


def installed(wheel: Path, folder: Path) -> Path:
    """The Python of a fresh environment with the wheel in it, and with the test environment's torch in sight."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
    run(*pip, "--no-compile", wheel, cwd=folder.parent)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "torch_of_the_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


USE = """
import pathlib, sys, torch, p3kernels
assert pathlib.Path(sys.prefix) in pathlib.Path(p3kernels.__file__).parents, p3kernels.__file__
mean, var = torch.randn(100, requires_grad=True), torch.rand(100)
backend = sys.argv[1]
outputs = p3kernels.elu_moments(mean, var, backend=backend if backend != "None" else None)
expected = p3kernels.elu_moments(mean, var, backend="reference")
for output, value in zip(outputs, expected, strict=True):
    torch.testing.assert_close(output, value)
outputs[0].sum().backward()
assert mean.grad.count_nonzero() > 0
print(p3kernels.__version__, p3kernels.available_backends())
"""


def test_sdist_has_every_source(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    for pattern in (
        "CMakeLists.txt",
        "setup.py",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "csrc/**/*",
        "p3kernels/**/*.py",
    ):
        for path in ROOT.glob(pattern):
            if path.is_file() and path.suffix in (".py", ".h", ".cpp", ".cu", ".txt", ".toml", ".md", ""):
                assert str(path.relative_to(ROOT)) in names


def test_native_wheel_knows_nothing_of_torch(native_wheel):
    """Built where torch cannot be imported, and the library does not link it."""
    with zipfile.ZipFile(native_wheel) as wheel:
        (library,) = (name for name in wheel.namelist() if name.startswith("p3kernels/_C."))
        content = wheel.read(library)
        assert not [name for name in wheel.namelist() if name.split("/")[0] in ("tests", "csrc", "docs")]
    for foreign in (b"libtorch", b"libc10", b"libgomp.so", b"libomp.so"):
        assert foreign not in content


def test_wheel_has_types_and_policies(native_wheel):
    """What a user without this repository needs: types for a checker, policies, models and tuned tiles."""
    with zipfile.ZipFile(native_wheel) as wheel:
        names = set(wheel.namelist())
    for path in (
        *(f"{package}/py.typed" for package in ("p3kernels", "trainer", "triton_kernels")),
        "trainer/engines/mjcf/walker.xml",
        "triton_kernels/tuned.json",
        *(str(path.relative_to(ROOT)) for path in (ROOT / "trainer/pretrained").iterdir() if path.suffix != ".pyc"),
    ):
        assert path in names
    assert native_wheel.name.startswith("p3kernels-0.2.0-")


def test_native_wheel_in_a_fresh_environment(native_wheel, tmp_path):
    python = installed(native_wheel, tmp_path / "venv")
    info = "from trainer import cli\nassert cli.main(['info']) == 0\n"
    said = run(python, "-W", "error", "-c", USE + info, "cpu", cwd=tmp_path)
    assert "'cpu': 'available'" in said
    assert re.search(r"^  p3kernels +0\.2\.0$", said, re.MULTILINE)
    said = run(tmp_path / "venv" / "bin" / "p3", "eval", "g1-falt", cwd=tmp_path, fails=True)
    assert "did you mean 'g1-flat'?" in said


def test_wheel_without_a_compiler(pure_wheel, tmp_path):
    wheel, said = pure_wheel
    lines = [line.strip() for line in said.splitlines() if "without the native CPU kernels" in line]
    assert len(lines) == 1, said
    assert lines[0].startswith("p3kernels: ")
    python = installed(wheel, tmp_path / "venv")
    refused = "p3kernels.elu_moments(torch.zeros(2), torch.ones(2), backend='cpu')\n"
    said = run(python, "-W", "error", "-c", USE + refused, "None", cwd=tmp_path, fails=True)
    assert "'reference': 'available'" in said
    assert "'cpu': 'the native extension was not built" in said
    assert "RuntimeError: backend='cpu' cannot run: the native extension was not built" in said


def test_a_native_build_can_be_insisted_on(sdist, tmp_path):
    _, said = build_wheel(sdist, tmp_path / "tree", fails=True, P3_REQUIRE_NATIVE="1", **no_compiler(tmp_path))
    assert "P3_REQUIRE_NATIVE=1, but the native CPU kernels were not built" in said


def test_works_without_triton(tmp_path):
    """Triton is an extra: where it cannot be imported, the package and its CPU kernels still work."""
    code = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
import torch, p3kernels
mean, var = p3kernels.elu_moments(torch.full((3,), 50.0), torch.ones(3), backend="cpu")
assert mean.tolist() == [50.0] * 3 and var.tolist() == [1.0] * 3
assert p3kernels.available_backends()["triton"] != "available"
assert "triton" not in sys.modules
print("works")
"""
    assert run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(ROOT)).strip() == "works"
