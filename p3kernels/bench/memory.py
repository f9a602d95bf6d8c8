"""Peak memory of one forward and backward pass, each contestant in a process of its own.

Linux keeps the high-water mark of a process's resident memory (VmHWM) and resets it on request (5 to
/proc/self/clear_refs). After one pass to load libraries, compile and fill caches, freed memory is handed back
(malloc_trim), the mark reset, and a second pass run: the peak is the mark minus the resident memory before that pass.
`getrusage` would not do: its maximum cannot be reset, and a child inherits that of the process that started it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from p3kernels.bench.contestants import NAMES, build
from p3kernels.bench.entry import Size
from p3kernels.bench.options import OPS
from p3kernels.bench.registry import load_entry

METHOD = (
    "VmHWM of a fresh process during one forward+backward, reset through /proc/self/clear_refs after a warm-up pass, "
    "minus VmRSS before it"
)
TIMEOUT_SECONDS = 900


def unavailable_reason() -> str | None:
    """Why peak memory cannot be measured here, or None."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not status.exists() or "VmHWM" not in status.read_text():
        return "this system has no VmHWM in /proc/self/status"
    try:
        clear.write_text("5")
    except OSError as error:
        return f"/proc/self/clear_refs cannot be written ({error.strerror})"
    return None


def peak_bytes(op: str, contestant: str, size: Size, threads: int) -> tuple[int | None, str]:
    """Bytes above the resident memory before the pass and "", or None and the reason."""
    command = [sys.executable, "-m", "p3kernels.bench.memory", op, contestant, str(size.batch), str(threads)]
    if size.samples is not None:
        command += ["--samples", str(size.samples)]
    return peak_bytes_of(command)


def peak_bytes_of(command: Sequence[str]) -> tuple[int | None, str]:
    """What a process that prints {"peak_bytes": ...} last has measured and "", or None and the reason."""
    root = str(Path(__file__).resolve().parents[2])  # the package as it was imported here, installed or not
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": path}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=environment
        )
    except subprocess.TimeoutExpired:
        return None, f"no result after {TIMEOUT_SECONDS} s"
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()
        return None, f"exit code {done.returncode}{': ' + last[-1] if last else ''}"
    return int(json.loads(done.stdout.splitlines()[-1])["peak_bytes"]), ""


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def _return_freed_memory() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def peak_of(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
    """In this process: bytes of a second `call` above the resident memory before it; `prepare` runs before each."""
    prepare()
    call()
    prepare()
    _return_freed_memory()
    Path("/proc/self/clear_refs").write_text("5")
    before = _status_bytes("VmRSS")
    call()
    return max(0, _status_bytes("VmHWM") - before)


def measure(op: str, contestant: str, size: Size) -> int:
    """In this process: bytes of one pass above the resident memory before it."""
    built = build(load_entry(op), size, contestant)
    if built is None:
        raise ValueError(f"contestant: {op} has no {contestant!r}")
    return peak_of(built.forward_backward)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs in the process that `peak_bytes` starts: measures and prints the peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("op", choices=OPS)
    parser.add_argument("contestant", choices=NAMES)
    parser.add_argument("batch", type=int)
    parser.add_argument("threads", type=int)
    parser.add_argument("--samples", type=int)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    peak = measure(options.op, options.contestant, Size(options.batch, options.samples))
    print(json.dumps({"peak_bytes": peak}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
