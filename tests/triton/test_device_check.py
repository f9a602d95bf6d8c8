"""The cases of `p3 gpu-check` in the interpreter: they pass, and a kernel that is wrong does not."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from p3kernels.device_check.compare import LAYOUTS, against_reference, unaligned
from p3kernels.device_check.device import Interpreter
from p3kernels.device_check.ops import OPS
from p3kernels.device_check.step import Skip, Task
from p3kernels.device_check.steps import kernels, sanitizer
from p3kernels.device_check.steps.runtime import runtime_of
from p3kernels.device_check.steps.values import values_of

CPU = torch.device("cpu")


@pytest.fixture
def task(tmp_path):
    return Task(Interpreter(), tmp_path, 60.0)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_op_is_true_to_the_reference(op, task):
    cases = {case.name: case for case in values_of("triton")(task)}
    for name in (f"{op.name}, odd, float32", f"{op.name}, odd, float32, ieee", "linear_elu_moments, prime, unaligned"):
        if name in cases and name.startswith(f"{op.name}, "):
            finding = cases[name].run()
            assert finding.passed, finding.detail


def test_the_list_has_every_kind_of_case(task):
    names = [case.name for case in values_of("triton")(task)]
    assert len(set(names)) == len(names)
    for op in OPS:
        of_op = [name for name in names if name.startswith(f"{op.name}, ")]
        for kind in ("one", "odd", "prime", "empty", "bfloat16", *LAYOUTS, *(("tf32", "bf16") if op.products else ())):
            assert any(f", {kind}" in name for name in of_op), (op.name, kind)


def test_what_is_wrong_is_noticed():
    op = next(op for op in OPS if op.name == "relu_moments")

    def wrong(mean, var, *, backend):
        out_mean, out_var = op.call(mean, var, backend=backend)
        return out_mean, out_var * (1.001 if backend == "triton" else 1.0)

    finding = against_reference(dataclasses.replace(op, call=wrong), op.make("odd", torch.float32), CPU, "triton")
    assert not finding.passed
    assert "output 1 is off by 1.0e-03" in finding.detail


def test_unaligned_is_unaligned():
    tensor = unaligned(torch.arange(12.0).view(3, 4))
    assert tensor.is_contiguous()
    assert tensor.data_ptr() % 16 == 4
    assert torch.equal(tensor, torch.arange(12.0).view(3, 4))


def test_runtime_cases_run_where_they_can(task):
    """Those of relu_moments: same bits and torch.compile; the others need a GPU and say so."""
    cases = {case.name: case for case in runtime_of("triton")(task)}
    for kind in ("the same bits on every run", "under torch.compile"):
        finding = cases[f"relu_moments {kind}"].run()
        assert finding.passed, finding.detail
    for kind in ("on a side stream", "replayed from a CUDA graph", "on the second GPU"):
        with pytest.raises(Skip):
            cases[f"relu_moments {kind}"].run()


def test_what_only_a_gpu_has_is_left_out(task):
    for cases in (kernels.cases, sanitizer.cases, values_of("cuda")):
        with pytest.raises(Skip):
            cases(task)


def test_the_sanitizers_script_runs(capsys, monkeypatch):
    monkeypatch.setattr(sanitizer, "OPS", [op for op in OPS if op.name in ("relu_moments", "gaussian_head")])
    assert sanitizer.main(["triton"]) == 0
    assert "every op on triton: done" in capsys.readouterr().out
