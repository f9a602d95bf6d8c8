"""docs/versions.md: which versions of what this package needs were run, and with what.

    python tools/versions_table.py            # write the page from what is installed and docs/data/versions.json
    python tools/versions_table.py --run      # first run the examples with each version of rsl_rl, fetched by pip
    python tools/versions_table.py --torch DIR  # first run some test files with the torch and triton of that folder:
                                                # pip install --target DIR torch triton, from the index of your device

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
OTHER_TORCH = {
    "ops": "tests/ops/test_elu_moments.py tests/ops/test_mlp_moments.py tests/ops/test_mixture_log_prob.py",
    "`torch.func`": "tests/test_transforms.py",
    "estimators": "tests/estimators/test_estimators.py",
    "PPO": "tests/trainer/algorithms/test_p3_ppo.py",
    "Triton, interpreted": "tests/triton/test_mlp_moments.py tests/triton/test_mixture_log_prob.py",
}
"""What another version of torch runs of the tests, by the column of its table."""
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
    parser.add_argument("--torch", type=Path, metavar="DIR", help="run tests with this folder's torch and triton")
    options = parser.parse_args()
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else {}
    if options.run:
        records["rsl_rl"] = {version: _with_rsl_rl(version) for version in RSL_RL}
    if options.torch is not None:
        records.setdefault("torch", {}).update(_with_torch(options.torch.resolve()))
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


def _with_torch(folder: Path) -> dict[str, dict[str, str]]:
    """Version of the folder's torch to its triton and, by column, how the tests ended with both."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}

    def ended(command: list[str], **more: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment | more, capture_output=True, text=True, check=False
        )
        return (done.stdout.strip().splitlines() or [done.stderr.strip()[-200:]])[-1]

    torch = ended(["-c", "import torch; print(torch.__version__)"])
    found = {"triton": ended(["-c", "import triton; print(triton.__version__)"])}
    for column, files in OTHER_TORCH.items():
        interpreted = {"TRITON_INTERPRET": "1"} if column.startswith("Triton") else {}
        found[column] = ended(["-m", "pytest", "-q", "-x", *files.split()], **interpreted).split(" in ")[0].strip("= ")
        print(f"torch {torch}, {column}: {found[column]}", flush=True)
    return {torch: found}


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
    others = [
        f"| {version} | {' | '.join(found.get(column, 'not run') for column in ('triton', *OTHER_TORCH))} |"
        for version, found in records.get("torch", {}).items()
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
            "## Other versions of torch",
            "",
            "Tests that were run with them, each with its triton (`python tools/versions_table.py --torch DIR`). One",
            "build of the extension served all, for it neither includes nor links torch. They ran on a CPU; in place",
            "of the CUDA libraries that wheels for CUDA ask for, gigabytes of them, stood empty ones.",
            "",
            f"| torch | triton | {' | '.join(OTHER_TORCH)} |",
            f"|---|---|{'---|' * len(OTHER_TORCH)}",
            *others,
            "",
            "## Not run",
            "",
            "- The other tests with another torch than the pinned one. Other versions of Triton compiled the kernels:",
            "  [record](data/triton_versions.json), [hardware](hardware.md).",
            "- Isaac Sim. Isaac Lab 2.3.2.post1 was checked against its sources and stepped on standalone PhysX:",
            "  [engines](engines.md).",
            "- Any GPU: [hardware](hardware.md).",
            "",
        ]
    )


if __name__ == "__main__":
    main()
