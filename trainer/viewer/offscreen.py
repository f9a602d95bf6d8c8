"""Which OpenGL draws without a window here: EGL, on a GPU or in software, else OSMesa, in software."""

from __future__ import annotations

import os
import subprocess
import sys

CANDIDATES = ("egl", "osmesa")
_PROBE = """\
import mujoco
renderer = mujoco.Renderer(mujoco.MjModel.from_xml_string("<mujoco/>"), 16, 16)
renderer.render()
renderer.close()
"""
_ADVICE = (
    "On Debian and Ubuntu: apt-get install libegl1 libgl1 (EGL; the driver of an NVIDIA GPU brings its own), or "
    "apt-get install libosmesa6 (OSMesa). Without any of them: --viewer browser, which draws in the browser"
)


class NoOffscreenGL(OSError):
    """Nothing here draws without a window; the message says what to install."""


def choose_gl() -> str | None:
    """Sets MUJOCO_GL to what works here, unless it is already set, and returns it; None where MuJoCo knows itself.

    To be called before MuJoCo is imported: it reads the variable then, once. Each candidate is tried in a process of
    its own, because a failed EGL is not to be trusted with the rest of this one.

    Raises:
        NoOffscreenGL: Nothing works, or what MUJOCO_GL already asks for does not.
    """
    asked = os.environ.get("MUJOCO_GL")
    if asked:
        trouble = why_not(asked)
        if trouble:
            raise NoOffscreenGL(f"MUJOCO_GL={asked} does not draw without a window here: {trouble}. {_ADVICE}")
        return asked
    if not sys.platform.startswith("linux"):
        return None
    troubles = []
    for name in CANDIDATES:
        trouble = why_not(name)
        if not trouble:
            os.environ["MUJOCO_GL"] = name
            return name
        troubles.append(f"{name} ({trouble})")
    raise NoOffscreenGL(f"no OpenGL draws without a window here: neither {' nor '.join(troubles)}. {_ADVICE}")


def why_not(name: str) -> str:
    """Why MUJOCO_GL=`name` cannot draw an image here; empty if it can."""
    # PyOpenGL has a variable of its own, which would contradict ours.
    inherited = {key: value for key, value in os.environ.items() if key != "PYOPENGL_PLATFORM"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env=inherited | {"MUJOCO_GL": name},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it hangs"
    if done.returncode == 0:
        return ""
    # Errors while the interpreter takes down what was half made come after the one that says why.
    said = done.stderr.split("Exception ignored")[0].strip()
    return said.splitlines()[-1] if said else f"exit code {done.returncode}"
