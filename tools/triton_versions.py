"""Which versions of Triton compile the kernels: `python tools/triton_versions.py 3.4.0 3.9.0 --record FILE`.

Each version is installed into a temporary folder (half a gigabyte, removed afterwards) and compiles one default
configuration of every kernel for every architecture, without a GPU. The record is what pyproject's range stands on:
tests/test_triton_versions.py holds it to the oldest and the newest version that pyproject allows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPILE = """
import json, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton_kernels.proof.cases import collect

TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.bool: "*i1"}
TYPES |= {torch.int64: "*i64", torch.int32: "*i32"}

def kind(value):
    if isinstance(value, tuple):
        return tuple(map(kind, value))
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if value is None:
        return "constexpr"
    return "fp32" if isinstance(value, float) else "i32" if -(2**31) <= value < 2**31 else "i64"

def compiled(launch, arch):
    # Without the JIT's specialisation, whose functions have other names in every version.
    signature, constants = {}, {}
    for parameter in launch.kernel.params:
        value = launch.arguments[parameter.name]
        signature[parameter.name] = "constexpr" if parameter.is_constexpr else kind(value)
        if signature[parameter.name] == "constexpr":
            constants[parameter.name] = value
    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    triton.compile(ASTSource(launch.kernel, signature, constants, {}), target=target, options=launch.options)

found = {}
for arch in sys.argv[1:]:
    chosen = {}
    for case in collect(arch):
        if case.default and case.precision in ("ieee", "tf32"):
            chosen.setdefault((case.kernel, case.precision), case)
    for (kernel, precision), case in chosen.items():
        try:
            compiled(case.launch, arch)
            error = None
        except Exception as refusal:
            error = f"{type(refusal).__name__}: {refusal}"
        found[f"{kernel}, {precision}, {arch}"] = error
        print(arch, kernel, precision, error or "compiled", file=sys.stderr, flush=True)
print(json.dumps({"triton": triton.__version__, "compiled": found}))
"""


def install(version: str, folder: Path) -> None:
    """Triton alone, into a folder of its own."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder), f"triton=={version}"], check=True)


def compile_with(folder: Path, architectures: Sequence[str]) -> dict[str, Any]:
    """What a Triton in `folder` makes of the kernels; {"error": …} where it does not even begin."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    environment.pop("TRITON_INTERPRET", None)
    with tempfile.TemporaryDirectory() as cache:  # what another version compiled proves nothing
        environment["TRITON_CACHE_DIR"] = cache
        command = [sys.executable, "-c", COMPILE, *architectures]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        return {"error": f"exit code {done.returncode}"}
    return json.loads(done.stdout.splitlines()[-1])


def resolved(version: str) -> str:
    """A version as it is; "oldest" of pyproject's range, "newest" that pip finds."""
    if version == "oldest":
        return f"{oldest_allowed()}.0"
    if version != "newest":
        return version
    command = [sys.executable, "-m", "pip", "index", "versions", "triton", "--disable-pip-version-check"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return said.split("(")[1].split(")")[0]


def oldest_allowed() -> str:
    """The floor of the range in pyproject: "3.4" of "triton>=3.4"."""
    found = re.search(r'"triton>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert found is not None
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every version compiled every kernel, else 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="+", help='of triton, as pip names them; "oldest" and "newest" allowed')
    parser.add_argument("--arch", nargs="+", default=["sm_80", "sm_90", "sm_120"], help="(%(default)s)")
    parser.add_argument("--installed", type=Path, help="a folder with one folder a version, instead of pip")
    parser.add_argument("--record", type=Path, help="add the results to this file")
    options = parser.parse_args(arguments)
    everything = True
    for version in map(resolved, options.versions):
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if options.installed is None else options.installed / version
            if options.installed is None:
                install(version, folder)
            result = compile_with(folder, options.arch)
        refused = {case: error for case, error in result.get("compiled", {}).items() if error}
        count = len(result.get("compiled", {}))
        print(f"triton {version}: {result.get('error') or f'{count - len(refused)} of {count} compiled'}", flush=True)
        for case, error in refused.items():
            print(f"  {case}: {error.splitlines()[0]}", flush=True)
        everything = everything and not refused and "error" not in result
        if options.record is not None:
            _add(options.record, version, options.arch, result, refused)
    return 0 if everything else 1


def _add(
    path: Path, version: str, architectures: Sequence[str], result: dict[str, Any], refused: dict[str, str]
) -> None:
    record = json.loads(path.read_text()) if path.exists() else {}
    kernels = sorted({case.split(",")[0] for case in result.get("compiled", {})})
    lines = {case: error.splitlines()[0][:200] for case, error in refused.items()}
    record[version] = {
        "architectures": list(architectures),
        "kernels": kernels,
        "cases": len(result.get("compiled", {})),
        "refused": lines if "error" not in result else {"everything": result["error"]},
    }
    ordered = dict(sorted(record.items(), key=lambda item: [int(part) for part in item[0].split(".")]))
    path.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
