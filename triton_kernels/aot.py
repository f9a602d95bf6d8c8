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
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from triton_kernels.proof import model, sass
from triton_kernels.proof.occupancy import LIMITS, blocks_per_sm, fits, occupancy
from triton_kernels.proof.sass import Code

if TYPE_CHECKING:
    from triton_kernels.proof.cases import Case  # imports triton, which need not be installed

ARCHITECTURES = ("sm_90", "sm_80", "sm_120")
PROCESSES = 2
_RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")

Record = dict[str, Any]


def compile_cases(cases: Sequence[Case], arch: str) -> list[Record]:
    """Records of cases that share their machine code: compiled once."""
    facts: Record = {name: None for name in ("registers", "spill_bytes", "shared_bytes", "blocks_per_sm", "occupancy")}
    facts |= {"fits": False, "wgmma": None, "mma": None, "error": None}
    code = None
    start = time.perf_counter()
    try:
        found, code = _compiled_facts(cases[0], arch)
        facts |= found
    except Exception as error:  # a refusal by any of triton's passes or by ptxas is a finding, not the end
        facts["error"] = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    facts["compile_seconds"] = round(time.perf_counter() - start, 2)
    return [_record(case, arch, code) | facts for case in cases]


def _record(case: Case, arch: str, code: Code | None) -> Record:
    """What is counted of a case; "instructions" are those of all warps, None where the loops were not understood."""
    warps = case.launch.grid * case.launch.options.get("num_warps", 4)
    instructions = special = None
    if code is not None:
        trips = sass.fitted(case.cost.trips, len(code.loops)) if case.cost.trips else (1.0,) * len(code.loops)
        if trips is not None:
            instructions, special = (
                warps * code.instructions(trips, kind, case.cost.straight) for kind in ("", "MUFU")
            )
    return {
        "kernel": case.kernel,
        "arch": arch,
        "shape": case.shape,
        "precision": case.precision,
        "config": dict(case.launch.config),
        "default": case.default,
        "tensor_core": case.tensor_core,
        "grid": case.launch.grid,
        "launches": dict(case.launches),
        "bytes_moved": case.cost.bytes_moved,
        "compulsory_bytes": case.cost.compulsory_bytes,
        "l2_bytes": case.cost.l2_bytes,
        "flops": case.cost.flops,
        "products": case.cost.products,
        "half": case.half,
        "activations": case.cost.activations,
        "instructions": instructions,
        "special": special,
    }


def _compiled_facts(case: Case, arch: str) -> tuple[Record, Code]:
    from triton_kernels.proof.cases import compiled  # noqa: PLC0415

    kernel = compiled(case.launch, arch)
    registers, spill_bytes = resource_usage(kernel.asm["cubin"])
    shared_bytes, num_warps = kernel.metadata.shared, kernel.metadata.num_warps
    code = sass.parse(sass.disassemble(kernel.asm["cubin"]))
    return {
        # A launch that leaves warps or stages out gets triton's own: the record says which.
        "config": {**case.launch.config, "num_warps": num_warps, "num_stages": kernel.metadata.num_stages},
        "registers": registers,
        "spill_bytes": spill_bytes,
        "shared_bytes": shared_bytes,
        "fits": fits(arch, shared_bytes),
        "blocks_per_sm": blocks_per_sm(arch, registers, shared_bytes, num_warps),
        "occupancy": round(occupancy(arch, registers, shared_bytes, num_warps), 4),
        "wgmma": "wgmma.mma_async" in kernel.asm["ptx"],
        "mma": "mma.sync" in kernel.asm["ptx"],
        "code_instructions": len(code.names),
        "code_loops": len(code.loops),
    }, code


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


PACKAGE = "triton_kernels.proof.cases:collect"
"""Where the cases of the package come from: a function of the architecture, by module and name."""


@functools.cache
def groups_of(source: str, arch: str) -> list[list[Case]]:
    """The cases of a source, those that share their machine code together."""
    module, _, function = source.partition(":")
    found: dict[str, list[Case]] = {}
    for case in getattr(importlib.import_module(module), function)(arch):
        found.setdefault(case.launch.facts(), []).append(case)
    return list(found.values())


def _compile_by_index(source: str, arch: str, index: int) -> list[Record]:
    """In a worker: a case holds a JIT function, which does not travel between processes, but its place does."""
    return compile_cases(groups_of(source, arch)[index], arch)


def run(
    arch: str,
    kernel: str | None = None,
    precisions: Sequence[str] | None = None,
    workload: str | None = None,
    quiet: bool = False,
    source: str = PACKAGE,
) -> list[Record]:
    """Compiles the cases of `source` for `arch`, two at a time, and prints each as it comes.

    Args:
        arch: One of `ARCHITECTURES`.
        kernel: Only kernels whose name contains this.
        precisions: Only these of the dots.
        workload: Only what this workload launches.
        quiet: Print nothing.
        source: Where the cases come from.
    """
    groups = groups_of(source, arch)

    def wanted(case: Case) -> bool:
        return (
            (kernel is None or kernel in case.kernel)
            and (precisions is None or case.precision in precisions)
            and (workload is None or workload in case.launches)
        )

    chosen = [index for index, group in enumerate(groups) if any(wanted(case) for case in group)]
    records: list[Record] = []
    if not quiet:
        names = {groups[index][0].kernel for index in chosen}
        print(f"{arch}: {len(chosen)} configurations of {len(names)} kernels", flush=True)
        print(table_header(), flush=True)
    context = multiprocessing.get_context("spawn")  # a forked child would share the compiler's threads
    with ProcessPoolExecutor(min(PROCESSES, max(len(chosen), 1)), mp_context=context) as pool:
        futures = {index: pool.submit(_compile_by_index, source, arch, index) for index in chosen}
        for place, future in futures.items():
            found = [r for case, r in zip(groups[place], future.result(), strict=True) if wanted(case)]
            records += found
            if not quiet:
                print(table_row(found[0]), flush=True)
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
    parser.add_argument("--json", type=Path, metavar="PATH", help="save the records: cases and workloads")
    parser.add_argument("--kernel", metavar="NAME", help="only kernels whose name contains this")
    parser.add_argument("--precision", action="append", metavar="NAME", help="only these dots; may be repeated")
    parser.add_argument("--workload", metavar="NAME", help="only what this one launches: mm_train, mc15_train, ...")
    parser.add_argument("--table", action="store_true", help=f"write the modelled limits to {model.TABLE.name}")
    parser.add_argument("--steps", action="store_true", help="print the model launch by launch, too")
    options = parser.parse_args(arguments)
    reason = unavailable()
    if reason is not None:
        print(f"{parser.prog}: {reason}", file=sys.stderr)
        return 2
    if options.json is not None and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: no directory {options.json.resolve().parent}")
    records: list[Record] = []
    for arch in ARCHITECTURES if options.arch == "all" else (options.arch,):
        records += run(arch, options.kernel, options.precision, options.workload)
    if not records:
        print(f"{parser.prog}: nothing matches --kernel, --precision and --workload", file=sys.stderr)
        return 2
    on_hopper = [record for record in records if record["arch"] == model.ARCH]
    whole = model.workloads(on_hopper) if options.kernel is None else []
    if options.workload is not None:
        whole = [one for one in whole if one["workload"] == options.workload]
    if options.json is not None:
        options.json.write_text(json.dumps({"cases": records, "workloads": whole}, indent=1) + "\n")
    if options.table:
        model.write_table(whole)
    if whole:
        print(f"\nLeast time on an H100 SXM by each limit: modelled, not measured\n{model.table(whole)}")
    for one in whole if options.steps else ():
        print(f"\n{one['workload']}, {one['precision']}\n{model.steps_table(one)}")
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
