"""The ahead-of-time tool: on a kernel whose needs are known, and on every kernel of the package.

Compiling needs triton without its interpreter, so the compiler runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import forked

from triton_kernels import aot
from triton_kernels.proof import cases, model, occupancy, sass
from triton_kernels.proof.cases import Case

HERE = Path(__file__).parent
FIELDS = {"kernel", "arch", "shape", "config", "default", "registers", "spill_bytes", "shared_bytes", "wgmma"}
FIELDS |= {"occupancy", "bytes_moved", "compulsory_bytes", "flops"}
WORKLOADS = ["mm_train", "mc15_train", "mc50_train"]
"""With them, everything that is launched."""


def compile_in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return forked.python("-c", code, env=environment | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])})


@pytest.fixture(scope="module")
def probe() -> dict[str, list[dict]]:
    code = """
import json
from triton_kernels import aot
import aot_probe
if __name__ == "__main__":
    older = aot.compile_cases(aot_probe.collect("sm_80")[:1], "sm_80")
    print(json.dumps({"sm_90": aot.run("sm_90", quiet=True, source="aot_probe:collect"), "sm_80": older}))
"""
    done = compile_in_a_process(code)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_kernel_needs_is_read_from_its_machine_code(probe):
    tf32, ieee, *_ = probe["sm_90"]
    for record in (tf32, ieee):
        assert record.keys() >= FIELDS
        assert record["error"] is None
        assert 32 <= record["registers"] <= 255
        assert record["spill_bytes"] == 0
        assert 0 < record["occupancy"] <= 1
    assert tf32["wgmma"] is True
    assert ieee["wgmma"] is False
    # Three stages of a 64 × 32 and a 32 × 64 tile in float32.
    assert tf32["shared_bytes"] == 3 * 2 * 64 * 32 * 4
    older = probe["sm_80"][0]
    assert (older["wgmma"], older["mma"]) == (False, True)


def test_arguments_may_be_tuples(probe):
    summed = probe["sm_90"][5]
    assert (summed["error"], summed["kernel"], summed["spill_bytes"]) == (None, "sum_kernel", 0)


def test_a_spill_is_seen(probe):
    greedy = probe["sm_90"][2]
    assert greedy["spill_bytes"] > 0
    assert greedy["registers"] == 255


def test_a_block_that_does_not_fit_is_seen(probe):
    huge = probe["sm_90"][3]
    assert huge["shared_bytes"] > 227 * 1024
    assert huge["fits"] is False
    assert huge["occupancy"] == 0
    assert "no fit" in aot.table_row(huge)


def test_a_refusal_by_the_compiler_is_in_the_record(probe):
    refused = probe["sm_90"][4]
    assert refused["error"]
    assert refused["registers"] is None
    assert "did not compile" in aot.table_row(refused)


def test_only_defaults_have_to_fit_but_all_have_to_compile(probe):
    good, _, greedy, huge, refused, *_ = probe["sm_90"]
    assert aot.failures([good, greedy, huge]) == []
    assert "spills" in aot.failures([{**greedy, "default": True}])[0]
    assert "shared memory, a block may have" in aot.failures([{**huge, "default": True}])[0]
    assert "did not compile" in aot.failures([refused])[0]


def test_verdict_and_exit_code(probe, capsys):
    good, greedy = probe["sm_90"][0], probe["sm_90"][2]
    assert aot.report([good, greedy]) == 0
    assert "2 configurations, 1 of them defaults (*); 0 defaults spill" in capsys.readouterr().out
    assert aot.report([good, {**greedy, "default": True}]) == 1
    assert "1 defaults spill" in capsys.readouterr().out


def test_table_is_aligned(probe):
    header = aot.table_header()
    for record in probe["sm_90"][:3]:
        assert len(aot.table_row(record)) == len(header)


@pytest.mark.parametrize(
    ("precision", "workloads"),
    [
        ("tf32", ["mm_train"]),
        pytest.param("tf32", WORKLOADS, marks=pytest.mark.sweep),
        pytest.param("ieee", WORKLOADS, marks=pytest.mark.sweep),
    ],
)
def test_command_saves_a_list_of_records(tmp_path, precision, workloads):
    """The defaults of the package on sm_90, dots as torch's "high" and "highest": they compile, fit and do not spill.

    tf32x3 and bf16 would double the time; `python -m triton_kernels.aot` compiles them, too.
    """
    path = tmp_path / "aot.json"
    arguments = ["--arch", "sm_90", "--precision", precision, "--json", str(path)]
    if workloads != WORKLOADS:
        arguments += ["--workload", *workloads]
    code = f"""
from triton_kernels import aot
if __name__ == "__main__":
    raise SystemExit(aot.main({arguments!r}))
"""
    done = compile_in_a_process(code)
    assert done.returncode == 0, done.stdout + done.stderr
    saved = json.loads(path.read_text())
    records = saved["cases"]
    defaults = [case for case in package_cases() if case.default and case.precision == precision]
    expected = {case.kernel for case in defaults if workloads == WORKLOADS or set(workloads) & set(case.launches)}
    assert {record["kernel"] for record in records} == expected
    for record in records:
        assert record.keys() >= FIELDS
        assert record["spill_bytes"] == 0
        assert record["fits"] is True
        assert record["config"].keys() >= {"num_warps", "num_stages"}
        assert (record["wgmma"] or record["mma"]) == record["tensor_core"], record
        assert record["instructions"], record
    modelled = {(one["workload"], one["precision"]) for one in saved["workloads"]}
    assert modelled >= {(name, precision) for name in workloads}
    # A change that costs shows: what is meant to cost is accepted by `python -m triton_kernels.aot --table`.
    assert model.dearer(saved["workloads"]) == []


def test_kernels_without_dots():
    """Every default on sm_90 of the kernels that no precision but "ieee" has."""
    code = """
import json
from triton_kernels import aot
from triton_kernels.proof.cases import collect
defaults = [case for case in collect("sm_90") if case.default]
dots = {case.kernel for case in defaults if case.precision == "tf32"}
chosen = {case.launch.facts(): case for case in defaults if case.kernel not in dots}
records = [aot.compile_cases([case], "sm_90")[0] for case in chosen.values()]
print(json.dumps({"records": records, "dots": sorted(dots)}))
"""
    done = compile_in_a_process(code)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert aot.failures(found["records"]) == []
    kernels = {record["kernel"] for record in found["records"]}
    assert kernels | set(found["dots"]) == {case.kernel for case in package_cases() if case.default}


@pytest.mark.parametrize(("arch", "first_kernel"), [("sm_80", 0), ("sm_120", 1)])
def test_a_sample_for_other_architectures(arch, first_kernel):
    """One default of each kernel, on one of the two; `python -m triton_kernels.aot --arch all` compiles everything."""
    code = f"""
import json
from triton_kernels import aot
from triton_kernels.proof.cases import collect
first = {{case.kernel: case for case in reversed(collect({arch!r}))}}
chosen = [first[kernel] for kernel in sorted(first)[{first_kernel}::2]]
print(json.dumps([aot.compile_cases([case], {arch!r})[0] for case in chosen]))
"""
    done = compile_in_a_process(code)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)
    assert records
    assert aot.failures(records) == []


def package_cases() -> list[Case]:
    return cases.collect("sm_90")


def test_cases_of_the_package_are_honest():
    found = package_cases()
    assert found
    for case in found:
        assert 0 < case.cost.compulsory_bytes <= case.cost.bytes_moved, case
        assert case.cost.l2_bytes > 0
        assert case.cost.flops > 0
        assert case.launch.grid > 0
        assert case.launches
    assert {case.precision for case in found} == {"ieee", "tf32x3", "tf32", "bf16"}


def test_no_compiler_no_tool(monkeypatch, capsys):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert aot.main([]) == 2
    assert "TRITON_INTERPRET=1 is set" in capsys.readouterr().err
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(aot.importlib.util, "find_spec", lambda name: None)
    assert aot.main([]) == 2
    assert "triton is not installed" in capsys.readouterr().err


def test_wrong_path_is_named_before_anything_compiles(monkeypatch, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SystemExit):
        aot.main(["--json", "/nowhere/aot.json"])
    assert "--json: no directory /nowhere" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "blocks"),
    [
        ("sm_90", 32, 0, 4, 16),  # all 64 warps
        ("sm_90", 128, 0, 4, 4),  # 65536 / (128 · 32 · 4)
        ("sm_90", 129, 0, 4, 3),  # 129 registers take 136
        ("sm_90", 32, 100 * 1024, 4, 2),  # 228 KiB / 101 KiB
        ("sm_90", 255, 227 * 1024, 8, 1),
        ("sm_90", 32, 228 * 1024, 4, 0),
        ("sm_80", 32, 163 * 1024, 4, 1),
        ("sm_120", 32, 0, 1, 24),
        ("sm_120", 32, 99 * 1024, 4, 1),
    ],
)
def test_blocks_on_an_sm(arch, registers, shared, warps, blocks):
    assert occupancy.blocks_per_sm(arch, registers, shared, warps) == blocks
    expected = blocks * warps / occupancy.LIMITS[arch].warps
    assert occupancy.occupancy(arch, registers, shared, warps) == expected


CODE = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_1:
        /*0010*/                   LDG.E R2, [R4] ;
.L_x_2:
        /*0020*/              @!P0 BRA `(.L_x_3) ;
        /*0030*/                   CALL.REL.NOINC `($__internal_0_$slowpath) ;
.L_x_3:
        /*0040*/                   MUFU.RCP R3, R2 ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/               @P2 BRA `(.L_x_1) ;
        /*0070*/                   EXIT ;
.L_x_4:
        /*0080*/                   BRA `(.L_x_4) ;
        /*0090*/                   NOP ;
$__internal_0_$slowpath:
        /*00a0*/                   RET.REL.NODEC R2 `(kernel) ;
"""


def test_instructions_of_nested_loops():
    """5 times round the outer loop, 20 in all round the inner one; the slow path and what it calls do not count."""
    code = sass.parse(CODE)
    assert len(code.loops) == 2
    assert code.instructions((5, 20)) == 2 + 5 * 2 + 20 * 3
    assert code.instructions((5, 20), "MUFU") == 20
    with pytest.raises(ValueError, match="the code has 2 loops, 1 were expected"):
        code.instructions((5,))


def test_a_loop_at_the_end_of_the_code():
    """It leaves in the middle and ends with the branch back, right before the filler."""
    end = """
.L_x_1:
        /*0000*/                   LDG.E R2, [R4] ;
        /*0010*/              @!P0 EXIT ;
        /*0020*/                   BRA `(.L_x_1) ;
.L_x_2:
        /*0030*/                   BRA `(.L_x_2) ;
        /*0040*/                   NOP ;
"""
    assert sass.parse(end).instructions((7,)) == 7 * 3


def test_two_loops_that_the_compiler_made_one():
    assert sass.fitted((3, 12), 2) == (3, 12)
    assert sass.fitted((3, 12), 1) == (12,)
    assert sass.fitted((7, 3, 12), 2) == (7, 12)
    assert sass.fitted((3, 4), 1) is None


def test_alignment_is_that_of_the_tensors(probe):
    """The JIT asks each pointer, also inside a tuple: one that begins 3 bfloat16 into its allocation has other code."""
    aligned, shifted = probe["sm_90"][5:7]
    assert aligned["code_instructions"] < shifted["code_instructions"]


def test_what_costs_more_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(model, "TABLE", tmp_path / "model.json")
    one = {"workload": "mm_train", "precision": "tf32", "launches": 10, "dram_bytes": 1, "l2_bytes": 1, "flops": 1}
    one |= {"instructions_per_activation": 500.0, "least_us": 9.0, **{limit: 9.0 for limit in model.LIMITS}}
    model.write_table([one])
    assert model.dearer([one]) == []
    assert model.dearer([{**one, "l2_us": 9.5}]) == ["mm_train, tf32: l2_us 9.5, accepted were 9.0"]
    assert model.dearer([{**one, "precision": "bf16"}]) == ["mm_train, bf16: not in model.json"]
