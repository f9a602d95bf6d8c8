"""Launch hygiene: guard, addressing, buckets, tables; and that importing kernels asks nothing of a GPU or a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from triton_kernels import launch
from triton_kernels.proof.cases import passes
from triton_kernels.proof.record import recording

DEFAULT = {"BLOCK_M": 64, "num_warps": 4, "num_stages": 2}


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """A shipped table and a user's table of the test's own."""
    shipped, measured = tmp_path / "shipped.json", tmp_path / "measured.json"
    monkeypatch.setattr(launch, "SHIPPED_TABLE", shipped)
    monkeypatch.setenv("P3_TUNED", str(measured))
    launch.forget_tables()
    yield shipped, measured
    launch.forget_tables()


def test_interpreted(monkeypatch):
    assert launch.interpreted() is True
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    assert launch.interpreted() is False


def test_guard_does_nothing_for_cpu_tensors(monkeypatch):
    def forbidden(*_: object) -> None:
        raise AssertionError("a GPU was asked for")

    monkeypatch.setattr(torch.cuda, "device", forbidden)
    with launch.on_device(torch.zeros(1)):
        pass


def test_guard_takes_the_tensors_device(monkeypatch):
    seen = []

    class Guard:
        def __init__(self, device):
            seen.append(device)

    class OnSecondGpu(torch.Tensor):
        is_cuda = True
        device = torch.device("cuda", 1)

    monkeypatch.setattr(torch.cuda, "device", Guard)
    launch.on_device(torch.zeros(1).as_subclass(OnSecondGpu))
    assert seen == [torch.device("cuda", 1)]


@pytest.mark.parametrize(
    ("rows", "bucket"), [(0, 16), (1, 16), (16, 16), (17, 32), (4096, 4096), (24576, 32768), (10**9, 65536)]
)
def test_row_bucket(rows, bucket):
    assert launch.row_bucket(rows) == bucket


def test_needs_int64():
    """The offset of the last element decides, not the number of elements: an expanded row has offsets of 0."""
    meta = torch.empty(2**21, 2**10, device="meta")
    assert meta.numel() == 2**31
    assert launch.needs_int64(meta) is False
    assert launch.needs_int64(torch.empty(2**21, 2**10 + 1, device="meta")) is True
    assert launch.needs_int64(torch.zeros(1).expand(2**33)) is False
    assert launch.needs_int64(torch.empty(2, 2, device="meta").as_strided((2, 2), (2**31, 1))) is True
    assert launch.needs_int64(None, torch.empty(0, 2**40, device="meta")) is False


def test_default_where_no_table_has_the_key(tables):
    found = launch.tuned("fwd", (209, 512, 32768), DEFAULT)
    assert found == DEFAULT
    found["BLOCK_M"] = 1
    assert DEFAULT["BLOCK_M"] == 64, "the caller's default is not handed out"


def test_shipped_table(tables):
    shipped, measured = tables
    shipped.write_text(json.dumps({"sm_90": {"fwd(209, ieee)": {"BLOCK_M": 128}}, "sm_80": {"fwd(209, ieee)": {}}}))
    measured.write_text(json.dumps({"any GPU (sm_90)": {"fwd(209, ieee)": {"BLOCK_M": 256}}}))
    assert launch.tuned("fwd", (209, "ieee"), DEFAULT) == {**DEFAULT, "BLOCK_M": 128}, "without a GPU, the H100's"
    assert launch.tuned("fwd", (210, "ieee"), DEFAULT) == DEFAULT
    with launch.target_arch("sm_80"):
        assert launch.tuned("fwd", (209, "ieee"), DEFAULT) == DEFAULT
    with launch.target_arch("sm_120"):
        assert launch.tuned("fwd", (209, "ieee"), DEFAULT) == DEFAULT


def test_users_own_measurement_wins_on_its_gpu(tables, monkeypatch):
    shipped, measured = tables
    shipped.write_text(json.dumps({"sm_90": {"fwd(209)": {"BLOCK_M": 128, "num_warps": 8}}}))
    measured.write_text(json.dumps({"NVIDIA H100 (sm_90)": {"fwd(209)": {"BLOCK_M": 32}}}))
    monkeypatch.setattr(launch, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_device_facts", lambda index: ("NVIDIA H100 (sm_90)", "sm_90"))
    assert launch.tuned("fwd", (209,), DEFAULT) == {"BLOCK_M": 32, "num_warps": 8, "num_stages": 2}
    monkeypatch.setattr(launch, "_device_facts", lambda index: ("NVIDIA H200 (sm_90)", "sm_90"))
    assert launch.tuned("fwd", (209,), DEFAULT) == {"BLOCK_M": 128, "num_warps": 8, "num_stages": 2}
    with launch.target_arch("sm_90"):
        assert launch.tuned("fwd", (209,), DEFAULT)["BLOCK_M"] == 128, "a proof is of what is shipped"


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_a_broken_cache_is_no_cache(tables, monkeypatch, content):
    tables[1].write_text(content)
    monkeypatch.setattr(launch, "_has_gpu", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "_device_facts", lambda index: ("NVIDIA H100 (sm_90)", "sm_90"))
    assert launch.tuned("fwd", (209,), DEFAULT) == DEFAULT


def test_cache_path(monkeypatch, tmp_path):
    monkeypatch.setenv("P3_TUNED", "/a/b.json")
    assert str(launch.cache_path()) == "/a/b.json"
    monkeypatch.delenv("P3_TUNED")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert launch.cache_path() == tmp_path / "p3kernels" / "tuned.json"


def test_shipped_table_is_well_formed():
    table = json.loads(launch.SHIPPED_TABLE.read_text())
    assert set(table) == {"provenance", "sm_80", "sm_90", "sm_120"}
    assert "never timed" in table["provenance"]
    for arch in ("sm_80", "sm_90", "sm_120"):
        for name, config in table[arch].items():
            assert name.endswith(")"), name
            assert all(isinstance(value, int) and value > 0 for value in config.values()), name


def test_importing_kernels_does_nothing():
    """No GPU query and no file read: every kernel file only defines."""
    code = """
import builtins, pathlib, pkgutil, importlib, torch, triton, triton.language
import triton_kernels
def forbidden(*_, **__):
    raise AssertionError("a GPU query or a table read at import")
for name in ("is_available", "device_count", "current_device", "get_device_capability", "get_device_properties"):
    setattr(torch.cuda, name, forbidden)
pathlib.Path.read_text = forbidden
triton.runtime.driver.__class__.active = property(forbidden)
for module in pkgutil.walk_packages(triton_kernels.__path__, "triton_kernels."):
    importlib.import_module(module.name)
print("quiet")
"""
    for interpret in ("0", "1"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": interpret}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "quiet", done.stderr


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_120"])
def test_every_shipped_entry_is_asked_for_and_differs(arch, monkeypatch):
    """An entry that no launch of the actor asks for is one that a changed key left behind."""
    shipped = json.loads(launch.SHIPPED_TABLE.read_text())[arch]
    with launch.target_arch(arch), launch.recorded() as asked, recording():
        for by_precision in passes().values():
            for run in by_precision.values():
                run()
    assert set(shipped) <= set(asked)
    monkeypatch.setattr(launch, "_shipped", dict)
    with launch.target_arch(arch), launch.recorded() as defaults, recording():
        for by_precision in passes().values():
            for run in by_precision.values():
                run()
    for name, config in shipped.items():
        for key, value in config.items():
            assert key in asked[name], name
            assert defaults[name][key] != value, f"{name}: {key} is what the launcher takes anyway"


class OutOfResources(Exception):
    """As Triton's, by name."""


@pytest.fixture
def no_memory_of_tiles():
    launch._shrunk.clear()
    yield
    launch._shrunk.clear()


def test_smaller():
    """Stages first: the grid stays; then the largest block, its chunk with it; never one that covers a dimension."""
    config = {"BLOCK_ROWS": 32, "BLOCK_A": 64, "CHUNK_ROWS": 32, "num_warps": 4, "num_stages": 2}
    fewer = launch.smaller(config)
    assert fewer == {**config, "num_stages": 1}
    assert launch.smaller(fewer) == {**fewer, "BLOCK_ROWS": 16, "CHUNK_ROWS": 16}
    assert launch.smaller({**fewer, "BLOCK_ROWS": 16, "CHUNK_ROWS": 16}) is None


def test_what_does_not_fit_shrinks_until_it_does(tables, no_memory_of_tiles):
    tried = []

    @launch.fitting
    def launcher(rows: int) -> int:
        config = launch.tuned("fwd", (rows,), DEFAULT)
        tried.append(config)
        if config["BLOCK_M"] * config["num_stages"] > 32:
            raise OutOfResources
        return config["BLOCK_M"]

    assert launcher(7) == 32
    assert [(one["BLOCK_M"], one["num_stages"]) for one in tried] == [(64, 2), (64, 1), (32, 1)]
    assert launcher(7) == 32
    assert len(tried) == 4, "what fits is remembered"
    assert list(launch.shrunk()) == ["fwd(7)"]


def test_what_can_never_fit_is_the_callers_problem(tables, no_memory_of_tiles):
    @launch.fitting
    def launcher() -> None:
        launch.tuned("fwd", (), DEFAULT)
        raise OutOfResources

    with pytest.raises(OutOfResources):
        launcher()


@pytest.mark.parametrize("name", ["mlp_moments", "mlp_mixture_log_prob"])
def test_results_do_not_depend_on_the_tiles(name, monkeypatch, no_memory_of_tiles):
    """Every configuration as small as it gets, as on a GPU with little shared memory."""
    from helpers.device_cases import MlpMixtureLogProbCases, MlpMomentsCases

    cases = {"mlp_moments": MlpMomentsCases, "mlp_mixture_log_prob": MlpMixtureLogProbCases}[name]()
    inputs = cases.make_inputs(cases.sizes["large"], torch.float32)
    expected, tuned = cases.call(inputs), launch.tuned

    def smallest(*arguments):
        config = tuned(*arguments)
        while (less := launch.smaller(config)) is not None:
            config = less
        return config

    for module in list(sys.modules.values()):
        if module.__name__.startswith("triton_kernels") and getattr(module, "tuned", None) is tuned:
            monkeypatch.setattr(module, "tuned", smallest)
    for got, value in zip(cases.call(inputs), expected, strict=True):
        assert_close(got, value, rtol=1e-5, atol=1e-5)
