"""Matrix products: our own on every instruction set, torch's where they are not ours, and the setting that decides."""

from __future__ import annotations

import os
import types
from itertools import product

import pytest
import torch
from helpers import forked

from p3kernels.backends import load_extension
from p3kernels.layered import products

SIZES = ((1, 1, 1), (5, 3, 0), (0, 4, 4), (4, 0, 4), (12, 32, 7), (13, 33, 257), (131, 29, 128), (96, 530, 61))
"""M, N, K: of tiles, blocks, their rests, and nothing."""

CHILD = """
import itertools, sys, torch
from p3kernels.backends import load_extension
from p3kernels.layered import products
extension, reason = load_extension()
if extension is None:
    print(reason)
    sys.exit(3)
cases = torch.load(sys.argv[1])
results = {"isa": extension.isa(), "own": products.own_products()}
for threads in (1, 2):
    torch.set_num_threads(threads)
    for name, (a, b, bias, out, add) in cases.items():
        out = None if out is None else out.clone(memory_format=torch.preserve_format)
        results[name, threads] = products.mm(a, b, bias=bias, out=out, add=add)
torch.save(results, sys.argv[2])
"""


def laid_out(matrix: torch.Tensor, layout: str) -> torch.Tensor:
    """The same numbers by rows, by columns, or as every second row of a wider matrix."""
    if layout == "columns":
        return matrix.t().contiguous().t()
    if layout == "strided":
        return torch.full((2 * matrix.shape[0], matrix.shape[1] + 3), torch.nan, dtype=matrix.dtype)[
            ::2, : matrix.shape[1]
        ].copy_(matrix)
    return matrix


def cases(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    found = {}
    layouts = ("rows", "columns", "strided")
    for rows, columns, inner in SIZES:
        for left, right in product(layouts, layouts):
            a, b = laid_out(normal(rows, inner), left), laid_out(normal(inner, columns), right)
            for start in ("alone", "bias", "into", "add"):
                bias = normal(columns) if start == "bias" else None
                out = laid_out(normal(rows, columns), left) if start in ("into", "add") else None
                found[f"{rows} {columns} {inner} {left} {right} {start}"] = (a, b, bias, out, start == "add")
    return found


def in_child(tmp_path, inputs, **environment: str) -> dict:
    torch.save(inputs, tmp_path / "inputs.pt")
    files = tmp_path / "inputs.pt", tmp_path / "results.pt"
    done = forked.python("-c", CHILD, *files, env={**os.environ, **environment})
    if done.returncode == 3 and "is not one this CPU and build can run" in done.stdout:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(tmp_path / "results.pt")


@pytest.fixture
def native():
    extension, reason = load_extension()
    if extension is None:
        pytest.skip(reason)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("isa", ["plain", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_layout_on_every_instruction_set(isa, dtype, tmp_path):
    """To K + 1 roundings of the sum of the terms' sizes, and the same bits with two threads."""
    inputs = cases(dtype)
    results = in_child(tmp_path, inputs, P3_CPU_ISA=isa, P3_CPU_PRODUCTS="p3")
    assert results["isa"] == isa
    assert results["own"]
    for name, (a, b, bias, out, add) in inputs.items():
        started = bias.double() if bias is not None else out.double() if add else torch.zeros(())
        expected = a.double() @ b.double() + started
        sizes = a.double().abs() @ b.double().abs() + started.abs()
        got = results[name, 1]
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert ((got.double() - expected).abs() <= (a.shape[1] + 1) * torch.finfo(dtype).eps * sizes).all(), name
        assert torch.equal(got, results[name, 2]), name


@pytest.mark.usefixtures("native")
def test_a_row_has_the_same_bits_among_any_others(monkeypatch):
    monkeypatch.setattr(products, "own_products", lambda: True)
    a, b = torch.randn(200, 300), torch.randn(300, 70)
    whole = products.mm(a, b)
    for begin, end in ((0, 1), (5, 18), (100, 200)):
        assert torch.equal(products.mm(a[begin:end], b), whole[begin:end])


@pytest.mark.usefixtures("native")
def test_a_nan_and_an_infinity_arrive(monkeypatch):
    monkeypatch.setattr(products, "own_products", lambda: True)
    a, b = torch.ones(3, 4), torch.ones(4, 2)
    a[1, 2], a[2, 0] = torch.nan, torch.inf
    got = products.mm(a, b)
    assert torch.equal(got[0], torch.full((2,), 4.0))
    assert got[1].isnan().all()
    assert got[2].isposinf().all()


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("a", "b", "rest"),
    [
        (torch.ones(3, 4), torch.ones(5, 2), {}),
        (torch.ones(3, 4), torch.ones(4, 2).double(), {}),
        (torch.ones(3, 4), torch.ones(4, 2), {"bias": torch.ones(3)}),
        (torch.ones(3, 4), torch.ones(4, 2), {"out": torch.ones(2, 2), "add": True}),
        (torch.ones(3, 4, 1), torch.ones(4, 2), {}),
    ],
    ids=["shapes", "dtypes", "bias", "out", "dimensions"],
)
def test_what_does_not_fit_is_torchs_error(monkeypatch, own, a, b, rest):
    """The kernel would read beyond the matrices, or one dtype as the other."""
    monkeypatch.setattr(products, "own_products", lambda: own)
    with pytest.raises(RuntimeError, match=r"size|shape|dtype|matri"):
        products.mm(a, b, **rest)


def test_other_dtypes_are_torchs(monkeypatch):
    monkeypatch.setattr(products, "own_products", lambda: True)
    a, b = torch.randn(5, 7).bfloat16(), torch.randn(7, 3).bfloat16()
    assert torch.equal(products.mm(a, b), torch.mm(a, b))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("wanted", "own"), [("p3", True), ("torch", False)])
def test_the_setting_decides(wanted, own, tmp_path):
    inputs = {"one": (torch.ones(2, 3), torch.ones(3, 2), None, None, False)}
    results = in_child(tmp_path, inputs, P3_CPU_PRODUCTS=wanted)
    assert results["own"] is own
    assert torch.equal(results["one", 1], torch.full((2, 2), 3.0))


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ((None, "the native extension was not built"), "was not built"),
        ((types.SimpleNamespace(), "available"), "built before there were products"),
    ],
)
def test_products_that_are_not_there_cannot_be_asked_for(monkeypatch, found, why):
    monkeypatch.setattr(products, "load_extension", lambda: found)
    monkeypatch.delenv("P3_CPU_PRODUCTS", raising=False)
    undecorated = products.own_products.__wrapped__
    assert not undecorated()
    monkeypatch.setenv("P3_CPU_PRODUCTS", "p3")
    with pytest.raises(RuntimeError, match=f"P3_CPU_PRODUCTS=p3: .*{why}"):
        undecorated()


@pytest.mark.usefixtures("native")
def test_another_setting_is_an_error():
    code = "import torch\nfrom p3kernels.layered.products import mm\nmm(torch.ones(2, 2), torch.ones(2, 2))"
    done = forked.python("-c", code, env={**os.environ, "P3_CPU_PRODUCTS": "mkl"})
    assert done.returncode == 1
    assert "ValueError: P3_CPU_PRODUCTS: expected p3 or torch, got mkl" in done.stderr
