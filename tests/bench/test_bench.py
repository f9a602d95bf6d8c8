"""`p3 bench`: what it writes, what it refuses, and that it tells no speed-up of a wrong result. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from p3kernels.bench import command, device, memory, paper, plot, timing, traffic, verify
from p3kernels.bench.contestants import build, build_reference
from p3kernels.bench.entry import Size
from p3kernels.bench.options import OPS
from p3kernels.bench.registry import load_entry
from p3kernels.bench.results import CaseResult, ContestantResult
from p3kernels.bench.run import Plan, run_case
from trainer import cli

TINY = ["--batch", "6", "--samples", "3", "--repeats", "1", "--no-compile", "--no-memory"]
SMALL = Size(6, 3)


def size_of(op: str) -> Size:
    return SMALL if load_entry(op).over_samples else Size(SMALL.batch)


def test_every_public_op_but_the_plain_product_has_an_entry_with_its_name():
    import p3kernels

    public = {name for name in p3kernels.__all__ if name.endswith(("_moments", "_covariance", "_log_prob"))}
    assert set(OPS) == public - {"linear_moments"}
    for op in OPS:
        assert load_entry(op).name == op


def test_a_tiny_run_writes_json_and_plots(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert cli.main(["bench", *TINY, "--threads", "1", "--out", str(tmp_path / "new" / "out")]) == 0
    printed = capsys.readouterr()
    for op in OPS:
        written = tmp_path / "new" / "out" / f"{op}.json"
        assert str(written) in printed.out
        content = json.loads(written.read_text())
        assert content["op"] == op
        assert content["verified"] is True
        assert content["threads"] == 1
        assert content["command_line"].startswith("p3 bench --batch 6")
        assert {"info", "date", "backend", "device", "dtype", "memory_method"} < set(content)
        (case,) = content["cases"]
        assert (case["batch"], case["samples"]) == (6, 3 if load_entry(op).over_samples else None)
        assert case["verified"] is True
        assert "cores_used_by_others" in case
        contestants = case["contestants"]
        bound = {"bound"} if content["bound"] else set()
        assert set(contestants) == {"ours", "eager"} | bound
        assert contestants["ours"]["within_tolerance"] is True
        gradients = {f"d_{name}" for name in load_entry(op).inputs(size_of(op))}
        assert set(contestants["ours"]["errors"]) == gradients | set(load_entry(op).outputs)
        for mode in ("forward", "forward_backward"):
            assert contestants["ours"][mode]["best_ms"] > 0
            assert len(contestants["ours"][mode]["turns_ms"]) == 1
            assert case["speed_up"]["eager"][mode] > 0
            assert (case["times_bound"][mode] is None) == (not bound)
        assert written.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert f"{op}: " in printed.out
    assert "eager torch" in printed.err


def test_lists_of_sizes_are_all_measured(tmp_path):
    arguments = ["mixture_log_prob", *TINY, "--batch", "4,2,4", "--samples", "1,3", "--out", str(tmp_path)]
    assert command.main(arguments) == 0
    cases = json.loads((tmp_path / "mixture_log_prob.json").read_text())["cases"]
    assert [(case["batch"], case["samples"]) for case in cases] == [(4, 1), (4, 3), (2, 1), (2, 3)]


def test_without_matplotlib_a_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert command.main(["relu_moments", *TINY, "--out", str(tmp_path)]) == 0
    assert f"plot of relu_moments skipped: {plot.MISSING}" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["relu_moments.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "argument OPS: no benchmark of 'nonsense'; there is one of elu_moments, "),
        (["--batch", "0"], "argument --batch: expected integers >= 1 with commas between them, got '0'"),
        (["--batch", "12,"], "argument --batch: expected integers >= 1 with commas between them, got '12,'"),
        (["--samples", "five"], "argument --samples: expected integers >= 1"),
        (["--threads", "1.5"], "argument --threads: expected an integer >= 1, got '1.5'"),
        (["--repeats", "-3"], "argument --repeats: expected"),
    ],
)
def test_wrong_arguments_are_named(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main([*arguments, "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_an_out_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as stop:
        command.main(["--out", str(tmp_path / "file" / "below")])
    assert stop.value.code == 2
    assert "argument --out: cannot write to " in capsys.readouterr().err


def test_a_backend_that_cannot_run_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("P3_BACKEND", "nonsense")
    with pytest.raises(SystemExit) as stop:
        command.main(["--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "P3_BACKEND: expected one of" in capsys.readouterr().err


def test_quick_gives_way_to_what_is_said():
    def plan(*arguments: str) -> Plan:
        return command._plan(command.build_parser("p3 bench").parse_args(arguments))

    quick = plan("--quick")
    assert (quick.batches, quick.samples, quick.repeats, quick.compile) == ((1024,), (5,), 3, False)
    said = plan("--quick", "--batch", "8", "--samples", "2", "--repeats", "1")
    assert (said.batches, said.samples, said.repeats) == ((8,), (2,), 1)
    full = plan()
    assert (full.batches, full.samples, full.compile) == ((4096,), (5, 15, 50), True)
    assert [full.repeats_of(Size(4096, count)) for count in (None, 15, 50)] == [7, 7, 3]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("wrong", ["output", "gradient", "nan", "shape"])
def test_a_wrong_op_does_not_pass(op, wrong):
    entry = load_entry(op)

    def spoiled(tensors, size):
        first, *rest = entry.ours(tensors, size)
        if wrong == "output":
            first = first * 1.001
        elif wrong == "gradient":
            first = first.detach() + 1.001 * (first - first.detach())
        elif wrong == "nan":
            first = first * torch.where(torch.arange(first.numel()).view_as(first) == 1, math.nan, 1.0)
        else:
            first = first[:-1]
        return first, *rest

    verify.verify_ours(entry, size_of(op))
    with pytest.raises(verify.VerificationError, match="ours disagrees with the float64 reference"):
        verify.verify_ours(dataclasses.replace(entry, ours=spoiled), size_of(op))


def test_a_wrong_op_ends_the_command_with_1(tmp_path, monkeypatch, capsys):
    entry = load_entry("elu_moments")
    wrong = dataclasses.replace(entry, ours=lambda tensors, _: (tensors["mean"] * 1.0, tensors["var"] * 1.0))
    monkeypatch.setattr(command, "load_entry", lambda _: wrong)
    assert command.main(["elu_moments", *TINY, "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "elu_moments B=6: ours disagrees with the float64 reference: mean is off by" in printed.err
    assert "speed-up" not in printed.out
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_contestant_fails_where_eager_is_exact_and_is_told_where_it_is_not():
    entry = load_entry("mixture_log_prob")
    ours = build(entry, SMALL, "ours")
    assert all(comparison.ok for comparison in verify.verify_other(entry, build(entry, SMALL, "eager"), ours))

    exact = dataclasses.replace(entry, eager=lambda tensors, size: (entry.eager(tensors, size)[0] + 0.1,))
    wrong = build(exact, SMALL, "eager")
    with pytest.raises(verify.VerificationError, match="eager torch disagrees with ours: log_prob is off by"):
        verify.verify_other(exact, wrong, ours)

    inexact = dataclasses.replace(exact, eager_is_exact=False)
    comparisons = {comparison.tensor: comparison for comparison in verify.verify_other(inexact, wrong, ours)}
    assert not comparisons["log_prob"].ok
    assert comparisons["log_prob"].share == 1
    assert comparisons["d_means"].ok


def test_errors_are_relative_to_the_largest_element_or_to_each():
    expected = torch.tensor([1.0, 100.0])
    got = torch.tensor([1.5, 100.0])
    of_largest = verify.compare_tensor("x", got, expected, 1e-5)
    of_each = verify.compare_tensor("x", got, expected, 1e-5, relative=True)
    assert (of_largest.error, of_each.error) == (0.005, 0.5)
    assert of_largest.share == of_each.share == 0.5
    assert verify.compare_tensor("x", torch.tensor([math.nan, 100.0]), expected, 1e-5).error == math.inf
    assert verify.compare_tensor("x", got[:1], expected, 1e-5).error == math.inf
    with pytest.raises(verify.VerificationError, match="zero everywhere"):
        verify.compare_tensor("x", got, torch.zeros(2), 1e-5)


def test_the_monte_carlo_op_is_compared_on_the_noise_it_draws_itself():
    entry = load_entry("mlp_mixture_log_prob")
    drawn = build(entry, SMALL, "ours").results()[0][0]
    given = build(entry, SMALL, "ours").results({"noise": torch.randn(3, 6, 110)})[0][0]
    truth = build_reference(entry, SMALL).results()[0][0]
    torch.testing.assert_close(drawn.double(), truth, rtol=verify.OUTPUT_TOLERANCE, atol=0)
    assert not torch.allclose(drawn, given)


def test_a_contestant_that_cannot_run_is_told_and_the_rest_measured(capsys):
    def out_of_memory(tensors, size):
        raise RuntimeError("no memory for that\nand more")

    entry = dataclasses.replace(load_entry("relu_moments"), eager=out_of_memory)
    case = run_case(entry, Size(4), Plan((4,), (1,), 1, 1, compile=False, memory=False))
    assert case.contestants["eager"].skipped == "RuntimeError: no memory for that"
    assert case.as_json()["speed_up"] == {"eager": {"forward": None, "forward_backward": None}}
    assert case.ratio("ours", "bound", "forward") > 0
    assert "skipped, RuntimeError: no memory for that" in capsys.readouterr().err


def test_compile_that_fails_is_told(monkeypatch):
    def broken(function, **_):
        def call(*_):
            raise RuntimeError("no C++ compiler")

        return call

    monkeypatch.setattr(torch, "compile", broken)
    plan = Plan((4,), (1,), 1, 1, compile=True, memory=False)
    case = run_case(load_entry("relu_moments"), Size(4), plan)
    assert case.contestants["compile"].skipped == "RuntimeError: no C++ compiler"
    assert "eager" in case.contestants


def test_turns_are_interleaved_after_a_warm_up(monkeypatch):
    monkeypatch.setattr(timing, "TURN_SECONDS", 0)
    order = []
    timings = timing.interleave({name: lambda name=name: order.append(name) for name in "ab"}, repeats=3)
    assert order == ["a", "a", "b", "b", *"ababab"]
    assert all(len(result.turns_ms) == 3 for result in timings.values())
    assert timing.Timing((3.0, 1.0, 2.0), 1).best_ms == 1
    assert timing.Timing((3.0, 1.0, 2.0), 1).median_ms == 2


def test_work_of_other_processes_is_seen(monkeypatch):
    numbers = {"busy": 10.0, "own": 1.0, "wall": 100.0}
    monkeypatch.setattr(timing, "_busy_seconds", lambda: numbers["busy"])
    monkeypatch.setattr(timing.time, "process_time", lambda: numbers["own"])
    monkeypatch.setattr(timing.time, "perf_counter", lambda: numbers["wall"])
    other_work = timing.OtherWork()
    numbers.update(busy=16.0, own=4.0, wall=102.0)
    assert other_work.cores() == 1.5
    numbers.update(busy=None)
    assert other_work.cores() is None


def test_ratios_are_best_over_best():
    results = {
        name: ContestantResult(name, timings={"forward": timing.Timing(turns, 1)})
        for name, turns in {"ours": (2.0, 9.0), "eager": (6.0, 7.0), "bound": (1.0, 8.0)}.items()
    }
    case = CaseResult(Size(1), Size(1), 2, results)
    numbers = case.as_json()
    assert numbers["speed_up"] == {"eager": {"forward": 3.0, "forward_backward": None}}
    assert numbers["times_bound"] == {"forward": 2.0, "forward_backward": None}


def test_peak_memory_sees_what_a_pass_allocates():
    reason = memory.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    # One graph of 8 x 512 samples holds at least its two widest activations, before and after ELU.
    batch, samples, widest = 512, 8, 512
    peak, note = memory.peak_bytes("mlp_mixture_log_prob", "eager", Size(batch, samples), threads=1)
    assert note == ""
    assert peak >= 2 * 4 * batch * samples * widest


def test_peak_memory_that_fails_gives_the_reason():
    peak, note = memory.peak_bytes("mixture_log_prob", "bound", Size(2, 2), threads=1)
    assert peak is None
    assert "mixture_log_prob has no 'bound'" in note


def test_nothing_of_the_trainer_is_imported():
    program = (
        "import sys, p3kernels.info, p3kernels.bench.command\n"
        "assert not any(name.split('.')[0] in ('trainer', 'matplotlib') for name in sys.modules)\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=root, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


def test_no_gpu_is_said_plainly(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert cli.main(["bench", "--device", "cuda", "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "no CUDA device: this torch" in printed.err
    assert "Nothing was measured" in printed.err
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["bench", "--device", "cuda"]) == 2
    assert "no device answers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--roofline"], "--roofline: expected with --device cuda"),
        (["elu_moments", "--device", "cuda"], "--device cuda measures the actor's moments"),
        (["--device", "cuda", "--batch", "4,8"], "--batch: expected one number with --device cuda, got 4,8"),
        (["--device", "tpu"], "invalid choice: 'tpu'"),
    ],
)
def test_wrong_arguments_of_the_device_table(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_paper_table_needs_triton(monkeypatch, capsys):
    monkeypatch.setattr(paper.importlib.util, "find_spec", lambda name: None)
    assert command.main(["--device", "cuda", "--roofline"]) == 2
    assert "triton is not installed" in capsys.readouterr().err
    assert paper.ours_on_paper() == {}


def test_traffic_by_hand():
    """Bytes read and written, a launch an op; views, expansions and the second reading of one tensor are free."""
    left, right, row = torch.ones(4, 3), torch.ones(3, 5), torch.ones(1, 3)
    counted = traffic.count(lambda: left @ right)
    assert (counted.launches, counted.bytes_read, counted.bytes_written) == (1, 4 * (12 + 15), 4 * 20)
    assert counted.flops == 2 * 4 * 3 * 5
    counted = traffic.count(lambda: left.t().reshape(3, 4)[1:] * left.t()[1:])
    assert (counted.launches, counted.bytes_moved) == (1, 4 * 3 * 8)
    assert traffic.count(lambda: left * left).bytes_read == 4 * 12
    assert traffic.count(lambda: left + row.expand(4, 3)).bytes_read == 4 * (12 + 3)
    assert traffic.count(lambda: torch.empty_strided((5,), (1,))).launches == 0
    assert traffic.count(lambda: left.detach().view(12)).launches == 0


def test_traffic_of_eager_is_the_same_with_and_without_memory():
    size = Size(5)
    contestant = build(load_entry("mlp_moments"), size, "eager")
    assert contestant is not None
    contestant.forward_backward()
    counted, on_paper = traffic.count(contestant.forward_backward), traffic.eager_actor(5)
    assert counted == on_paper
    assert counted.launches > 150
    assert sum(moved for moved, _ in counted.each) == counted.bytes_moved


def test_device_table_shows_what_was_and_what_was_not_measured():
    rows = [
        device.Row("eager torch", 4.0, 4.5, 538),
        device.Row("ours, tf32", 0.5, 0.6, 11, paper_us=400.0, error=1.2e-3),
        device.Row("ours, bf16", error=0.5, skipped="wrong: error 5.0e-01 against the float64 reference"),
    ]
    header, eager, ours, wrong = device.format_rows(rows).splitlines()
    assert header.split() == ["best", "ms", "median", "ms", "x", "eager", "launches", "paper", "ms", "error"]
    assert eager.split()[2:] == ["4.000", "4.500", "1.00", "538", "-", "-"]
    assert ours.split()[2:] == ["0.500", "0.600", "8.00", "11", "0.400", "1.2e-03"]
    assert wrong.endswith("wrong: error 5.0e-01 against the float64 reference")
    assert "-" in device.format_rows(rows[1:2])


def test_a_device_contestant_that_fails_is_told():
    def broken():
        raise RuntimeError("out of memory\nlong story")

    row = device._run("ours", broken, 1, "cpu")
    assert row.skipped == "RuntimeError: out of memory"
    assert row.best_ms is None
