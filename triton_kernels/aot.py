"""`python -m triton_kernels.aot`: every kernel compiled for a GPU that is not here, and what the machine code needs.

Registers and local memory are read from the cubin (`cuobjdump -res-usage`, which triton brings), shared memory from
triton's metadata, tensor-core use from the PTX. Stack and local memory count as spills in full: an upper bound, since a
stack can hold other things. Nothing is executed.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import multiprocessing
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import triton_kernels
from triton_kernels.launch import AotCase, target_arch
from triton_kernels.occupancy import LIMITS, blocks_per_sm, fits, occupancy

ARCHITECTURES = ("sm_90", "sm_80", "sm_120")
PROCESSES = 2
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")

Record = dict[str, Any]


def kernel_modules() -> list[str]:
    """The modules of this package that have `aot_cases`, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(triton_kernels.__path__, "triton_kernels."))
    return [name for name in names if not _is_tool(name) and hasattr(importlib.import_module(name), "aot_cases")]


def _is_tool(name: str) -> bool:
    return name.rpartition(".")[2] in ("aot", "launch", "occupancy", "roofline", "tune", "workloads")


@functools.cache
def collect(modules: tuple[str, ...], arch: str) -> list[AotCase]:
    """Every case of the modules, with the configurations that `arch` is launched with."""
    with target_arch(arch):
        return [case for name in modules for case in importlib.import_module(name).aot_cases()]


def compile_case(case: AotCase, arch: str) -> Record:
    """Compiles one case for `arch` and reads what it needs; a compiler's refusal is in the record's "error"."""
    record: Record = {
        "kernel": case.kernel,
        "arch": arch,
        "shape": case.shape,
        "precision": case.precision,
        "config": dict(case.config),
        "default": case.default,
        "registers": None,
        "spill_bytes": None,
        "shared_bytes": None,
        "fits": False,
        "blocks_per_sm": None,
        "occupancy": None,
        "wgmma": None,
        "mma": None,
        "tensor_core": case.tensor_core,
        "grid": case.grid,
        "bytes_moved": case.bytes_moved,
        "compulsory_bytes": case.compulsory_bytes,
        "flops": case.flops,
        "mm_launches": case.mm_launches,
        "error": None,
    }
    start = time.perf_counter()
    try:
        record |= _compiled_facts(case, arch)
    except Exception as error:  # a refusal by any of triton's passes or by ptxas is a finding, not the end
        record["error"] = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    record["compile_seconds"] = round(time.perf_counter() - start, 2)
    return record


def _compiled_facts(case: AotCase, arch: str) -> Record:
    from triton import compile as triton_compile  # noqa: PLC0415  # decides at import between compiler and interpreter
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource  # noqa: PLC0415

    target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    options = {name: case.config[name] for name in ("num_warps", "num_stages", "maxnreg") if name in case.config}
    names = list(case.function.arg_names)
    signature = {name: case.signature.get(name, "constexpr") for name in names}
    source = ASTSource(case.function, signature, dict(case.constexprs), _alignment(names, signature, case))
    compiled = triton_compile(source, target=target, options=options)
    registers, spill_bytes = resource_usage(compiled.asm["cubin"])
    shared_bytes, num_warps = compiled.metadata.shared, compiled.metadata.num_warps
    return {
        # A launch that leaves warps or stages out gets triton's own: the record says which.
        "config": {**case.config, "num_warps": num_warps, "num_stages": compiled.metadata.num_stages},
        "registers": registers,
        "spill_bytes": spill_bytes,
        "shared_bytes": shared_bytes,
        "fits": fits(arch, shared_bytes),
        "blocks_per_sm": blocks_per_sm(arch, registers, shared_bytes, num_warps),
        "occupancy": round(occupancy(arch, registers, shared_bytes, num_warps), 4),
        "wgmma": "wgmma.mma_async" in compiled.asm["ptx"],
        "mma": "mma.sync" in compiled.asm["ptx"],
    }


def _alignment(
    names: Sequence[str], signature: Mapping[str, Any], case: AotCase
) -> dict[tuple[int, ...], list[list[Any]]]:
    """What the JIT finds at run time: torch's allocations are aligned, the sizes that a case names multiples of 16."""
    aligned = []
    for index, name in enumerate(names):
        kind = signature[name]
        entries = [((index,), kind)] if isinstance(kind, str) else [((index, at), one) for at, one in enumerate(kind)]
        aligned += [place for place, one in entries if one.startswith("*") or name in case.divisible_by_16]
    return {place: [["tt.divisibility", 16]] for place in aligned}


def resource_usage(cubin: bytes) -> tuple[int, int]:
    """Registers for each thread, and bytes of stack and local memory for each thread."""
    import triton  # noqa: PLC0415

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _RESOURCES.search(text)
    if found is None:
        raise RuntimeError(f"cuobjdump -res-usage said nothing about registers: {text!r}")
    registers, stack, local = (int(number) for number in found.groups())
    return registers, stack + local


def _compile_by_index(modules: tuple[str, ...], arch: str, index: int) -> Record:
    """In a worker: a case holds a JIT function, which does not travel between processes, but its place does."""
    return compile_case(collect(modules, arch)[index], arch)


def run(
    modules: Sequence[str],
    arch: str,
    kernel: str | None = None,
    precisions: Sequence[str] | None = None,
    only_defaults: bool = False,
    quiet: bool = False,
) -> list[Record]:
    """Compiles the cases of `modules` for `arch`, two at a time, and prints each as it comes.

    Args:
        modules: Importable names with `aot_cases`.
        arch: One of `ARCHITECTURES`.
        kernel: Only kernels whose name contains this.
        precisions: Only these of the dots.
        only_defaults: Only what a user gets without asking.
        quiet: Print nothing.
    """
    names = tuple(modules)
    cases = collect(names, arch)
    chosen = [
        index
        for index, case in enumerate(cases)
        if (kernel is None or kernel in case.kernel)
        and (precisions is None or case.precision in precisions)
        and (case.default or not only_defaults)
    ]
    records: list[Record] = []
    if not quiet:
        print(f"{arch}: {len(chosen)} configurations of {len({cases[i].kernel for i in chosen})} kernels", flush=True)
        print(table_header(), flush=True)
    context = multiprocessing.get_context("spawn")  # a forked child would share the compiler's threads
    with ProcessPoolExecutor(min(PROCESSES, max(len(chosen), 1)), mp_context=context) as pool:
        futures = [pool.submit(_compile_by_index, names, arch, index) for index in chosen]
        for future in futures:
            records.append(future.result())
            if not quiet:
                print(table_row(records[-1]), flush=True)
    return records


_COLUMNS = (
    f"{'kernel':<36} {'shape':<44} {'dots':<6} {'blocks':<16} {'warps':>5} {'stages':>6} {'regs':>5} {'spill':>5} "
    f"{'shared':>7} {'occup.':>6} {'tensor core':<11} {'MB moved':>9} {'/least':>6} {'GFLOP':>8}"
)


def table_header() -> str:
    """The table's first line."""
    return _COLUMNS


def table_row(record: Record) -> str:
    """One record as a line of the table; * marks a default."""
    config = record["config"]
    blocks = "x".join(str(value) for name, value in config.items() if name.startswith("BLOCK"))
    name = ("* " if record["default"] else "  ") + record["kernel"]
    start = (
        f"{name:<36} {record['shape']:<44} {record['precision']:<6} {blocks:<16} "
        f"{config.get('num_warps', ''):>5} {config.get('num_stages', ''):>6}"
    )
    if record["error"]:
        return f"{start} did not compile: {record['error'].splitlines()[0]}"
    core = "wgmma" if record["wgmma"] else "mma.sync" if record["mma"] else "-"
    occupied = f"{record['occupancy']:.0%}" if record["fits"] else "no fit"
    ratio = record["bytes_moved"] / max(record["compulsory_bytes"], 1)
    return (
        f"{start} {record['registers']:>5} {record['spill_bytes']:>5} {record['shared_bytes']:>7} {occupied:>6} "
        f"{core:<11} {record['bytes_moved'] / 1e6:>9.2f} {ratio:>6.2f} {record['flops'] / 1e9:>8.3f}"
    )


def failures(records: Sequence[Record]) -> list[str]:
    """What keeps a configuration from running, and spills of a default one, a line each."""
    found = []
    for record in records:
        what = f"{record['arch']} {record['kernel']} {record['shape']} {record['precision']} {record['config']}"
        if record["error"]:
            found.append(f"{what}: did not compile: {record['error']}")
        elif record["default"] and not record["fits"]:
            limit = LIMITS[record["arch"]].shared_bytes_per_block
            found.append(f"{what}: {record['shared_bytes']} bytes of shared memory, a block may have {limit}")
        elif record["default"] and record["spill_bytes"] > 0:
            found.append(f"{what}: spills {record['spill_bytes']} bytes")
    return found


def unavailable() -> str | None:
    """Why nothing can be compiled here, or None."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed; pip install 'p3kernels[triton]' (Linux)"
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "TRITON_INTERPRET=1 is set: kernels are interpreted, there is nothing to compile; unset it"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all well; 1: a default configuration spills or does not fit, or one does not compile; 2: cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m triton_kernels.aot",
        description="Compiles every configuration of every kernel for a GPU that need not be here; executes nothing.",
    )
    parser.add_argument("--arch", choices=(*ARCHITECTURES, "all"), default="sm_90", help="compile for (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="save the records, one a configuration")
    parser.add_argument("--kernel", metavar="NAME", help="only kernels whose name contains this")
    parser.add_argument("--precision", action="append", metavar="NAME", help="only these dots; may be repeated")
    parser.add_argument("--only-defaults", action="store_true", help="only what is launched without asking")
    parser.add_argument("--roofline", action="store_true", help="the least time on an H100; compiles nothing")
    options = parser.parse_args(arguments)
    if options.roofline:
        from triton_kernels.roofline import main as roofline  # noqa: PLC0415  # which imports this module

        return roofline([])
    reason = unavailable()
    if reason is not None:
        print(f"{parser.prog}: {reason}", file=sys.stderr)
        return 2
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: no directory {options.json.resolve().parent}")
    modules = kernel_modules()
    records: list[Record] = []
    for arch in ARCHITECTURES if options.arch == "all" else (options.arch,):
        records += run(modules, arch, options.kernel, options.precision, options.only_defaults)
    if options.json is not None:
        options.json.write_text(json.dumps(records, indent=1) + "\n")
    if not records:
        print(f"{parser.prog}: nothing matches --kernel and --precision", file=sys.stderr)
        return 2
    return report(records)


def report(records: Sequence[Record]) -> int:
    """Prints the verdict; returns the exit code."""
    found = failures(records)
    defaults = [record for record in records if record["default"]]
    spilling = sum(1 for record in defaults if record["spill_bytes"])
    print(
        f"\n{len(records)} configurations, {len(defaults)} of them defaults (*); {spilling} defaults spill; "
        f"compiled, never executed on hardware"
    )
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
