"""Builds the native extension by calling CMake; everything else about the package is in pyproject.toml.

Without a C++ compiler, or where the build fails, the package installs without the extension: the reference backend
works, `p3 info` says what is missing. P3_REQUIRE_NATIVE=1 makes that an error. P3_NATIVE=off leaves the extension to
`python setup.py build_ext --inplace`, which `make` runs beside the installation of packages.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    """One extension, `p3kernels._C`, whose sources only CMakeLists.txt knows."""

    def build_extension(self, ext: Extension) -> None:
        """Configures and builds in build_temp, then puts the module where setuptools expects it."""
        if os.environ.get("P3_NATIVE") == "off":
            return
        target = Path(self.get_ext_fullpath(ext.name)).resolve()
        try:
            self._build(target)
        except (OSError, ImportError, subprocess.CalledProcessError) as error:
            reason = f"{error.cmd[0]} failed" if isinstance(error, subprocess.CalledProcessError) else str(error)
            if os.environ.get("P3_REQUIRE_NATIVE") == "1":
                raise SystemExit(
                    f"p3kernels: P3_REQUIRE_NATIVE=1, but the native CPU kernels were not built: {reason}"
                ) from error
            print(f"p3kernels: installing without the native CPU kernels: {reason}", file=sys.stderr)

    def _build(self, target: Path) -> None:
        import pybind11  # noqa: PLC0415  a build requirement, absent from an installed machine

        build = Path(self.build_temp).resolve() / "cmake"
        build.mkdir(parents=True, exist_ok=True)
        configure = [
            "cmake",
            "-S",
            str(ROOT),
            "-B",
            str(build),
            "-G",
            "Ninja",
            "-DCMAKE_BUILD_TYPE=Release",
            f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={target.parent}",
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
            f"-DP3_CUDA={os.environ.get('P3_CUDA', 'auto')}",
            *shlex.split(os.environ.get("CMAKE_ARGS", "")),
        ]
        subprocess.run(configure, check=True)
        subprocess.run(["cmake", "--build", str(build)], check=True)

    def get_outputs(self) -> list[str]:
        """Only what was built: an install without the extension is a valid one."""
        return [path for path in super().get_outputs() if Path(path).exists()]


# optional: setuptools then does not insist on a file that a machine without a compiler could not make.
setup(ext_modules=[Extension("p3kernels._C", sources=[], optional=True)], cmdclass={"build_ext": CMakeBuild})
