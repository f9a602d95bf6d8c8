"""docs/versions.md: which versions of what this package needs were run, and with what.

    python tools/versions_table.py            # write the page from what is installed and docs/data/versions.json
    python tools/versions_table.py --run      # first run the examples with each version of rsl_rl, fetched by pip

The checks of a row are commands that ended without an error; a version that is not in the table was not run.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "docs/data/versions.json", ROOT / "docs/versions.md"
RSL_RL = ("5.0.1", "5.4.2", "5.5.1")
CONFIGS = ("p3", "blind")
PACKAGES = {
    "torch": ("`torch>=2.7`", "everything"),
    "triton": ("`triton>=3.3`", "every kernel in the interpreter, and compiled for sm_80, sm_90 and sm_120"),
    "rsl-rl-lib": ("`>=5.0.1,<6`", "training, and as a plug-in of its own runner (below)"),
    "tensordict": ("any", "training"),
    "mujoco": ("`~=3.11.0`", "engine `mujoco`"),
    "mjlab": ("`~=1.6.0`", "engine `mjlab`, on a CPU"),
    "mujoco-warp": ("by mjlab", "engine `mjlab`, on a CPU"),
    "onnxruntime": ("`>=1.18`", "exported policies"),
    "cyclonedds": ("`>=0.10.5`", "`p3 deploy` and `p3 robot-sim`"),
    "viser": ("`>=1.1,<2`", "the page of `p3 play`"),
    "numpy": ("any", "everything"),
}
"""Package to what pyproject.toml asks for, and what of us runs with it."""


def main() -> None:
    """Runs what is asked for, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="run the examples with each version of rsl_rl and record it")
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    if parser.parse_args().run:
        records["rsl_rl"] = {version: _with_rsl_rl(version) for version in RSL_RL}
    records["installed"] = {name: _installed(name) for name in PACKAGES}
    records["python"] = platform.python_version()
    RECORDS.write_text(json.dumps(records, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


def _with_rsl_rl(version: str) -> dict[str, str]:
    """Config of the example to how it ended, with this version of rsl_rl before the installed one."""
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
        subprocess.run([*pip, f"rsl-rl-lib=={version}"], check=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([folder, str(ROOT)])}
        for config in CONFIGS:
            options = ["--config", f"examples/rsl_rl/{config}.yaml", "--iterations", "3", "--log-dir", f"{folder}/run"]
            done = subprocess.run(
                [sys.executable, "examples/rsl_rl/train.py", *options],
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            results[config] = "ran" if done.returncode == 0 else f"failed: {done.stderr.splitlines()[-1]}"
    return results


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def page(records: dict[str, Any]) -> str:
    """The page, as Markdown."""
    rows = [
        f"| {name} | {asked} | {records['installed'].get(name) or 'not installed'} | {what} |"
        for name, (asked, what) in PACKAGES.items()
    ]
    runs = [
        f"| {version} | {found.get('p3', 'not run')} | {found.get('blind', 'not run')} |"
        for version, found in records.get("rsl_rl", {}).items()
    ]
    return "\n".join(
        [
            "# Versions",
            "",
            "What this package was run with. `python tools/versions_table.py` writes this page from what is installed,",
            "and with `--run` runs the examples with each version of rsl_rl first; `constraints.txt` pins these.",
            "",
            f"Python {records['python']}; `requires-python` is 3.10.",
            "",
            "| package | asked for | run with | what runs with it |",
            "|---|---|---|---|",
            *rows,
            "",
            "## rsl_rl's own runner",
            "",
            "`examples/rsl_rl/train.py` (train, save, load, export to TorchScript and ONNX) with its `OnPolicyRunner`:",
            "",
            "| rsl_rl | `p3.yaml` | `blind.yaml`, without scan and velocity |",
            "|---|---|---|",
            *runs,
            "",
            "## Not run",
            "",
            "- torch newer than the one above: its wheels bring gigabytes of CUDA packages, and it was not tried. The",
            "  extension neither includes nor links torch, so one build serves every version. Other versions of Triton",
            "  compiled the kernels and executed none: [record](data/triton_versions.json), [hardware](hardware.md).",
            "- Isaac Sim. Isaac Lab 2.3.2.post1 was checked against its sources and stepped on standalone PhysX:",
            "  [engines](engines.md).",
            "- Any GPU: [hardware](hardware.md).",
            "",
        ]
    )


if __name__ == "__main__":
    main()
