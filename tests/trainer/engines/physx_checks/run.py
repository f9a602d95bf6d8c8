"""Runs the checks of the engine `physx`, each file in a process of its own (`make physx`), and keeps two records.

`docs/data/physx.json` says which checks passed, with which versions. What was measured stays in `build/physx`: the
licence of NVIDIA's PhysX may not allow to publish it (`docs/engines.md`).
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any

from trainer.engines.physx.packages import check, isaaclab_folder, physx_folder

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
RECORD, MEASURED = ROOT / "docs" / "data" / "physx.json", ROOT / "build" / "physx"


def main() -> int:
    """0 if nothing failed."""
    check()
    MEASURED.mkdir(parents=True, exist_ok=True)
    RECORD.parent.mkdir(exist_ok=True)
    outcomes, failed = {}, False
    for file in sorted(HERE.glob("check_*.py")):
        begin = time.monotonic()
        found, code = _run(file)
        failed |= code != 0
        words = [one["outcome"] for one in found.values()]
        said = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words)) or "crashed"
        print(f"{file.stem}: {said}, {time.monotonic() - begin:.0f} s", flush=True)
        outcomes[file.stem] = found
    versions = _versions()
    _write(MEASURED / "measured.json", {"versions": versions, "checks": outcomes})
    told = {file: {name: _told(one) for name, one in found.items()} for file, found in outcomes.items()}
    _write(RECORD, {"versions": versions, "checks": told})
    print(f"which checks passed: {RECORD}; what they measured: {MEASURED / 'measured.json'}")
    return int(failed)


def _run(file: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """What the checks of a file found, and pytest's code."""
    record = MEASURED / f"{file.stem}.json"
    record.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "on_physx", "--tb=short"]
    command += ["--import-mode=prepend", "-o", "python_files=check_*.py", "--disable-warnings", str(file)]
    paths = os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    environment = {**os.environ, **threads, "PYTHONPATH": paths, "P3_PHYSX_RECORD": str(record)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-6000:], done.stderr[-3000:], sep="\n", file=sys.stderr)
    found = json.loads(record.read_text(encoding="utf-8")) if record.is_file() else {}
    return found, done.returncode


def _told(outcome: dict[str, Any]) -> dict[str, Any]:
    return {"says": outcome["says"], "outcome": outcome["outcome"]}


def _versions() -> dict[str, str]:
    found = {name: version(name) for name in ("torch", "mujoco", "mjlab", "warp-lang", "rsl-rl-lib")}
    for folder, names in ((physx_folder(), ("ovphysx",)), (isaaclab_folder(), ("isaaclab", "usd-core", "gymnasium"))):
        for package in distributions(path=[str(folder)]):
            if package.name in names:
                found[package.name] = package.version
    libc = " ".join(platform.libc_ver())
    return {
        **dict(sorted(found.items())),
        "python": platform.python_version(),
        "system": f"{platform.machine()}, {libc}",
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
