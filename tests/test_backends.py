"""Which backend runs, why another does not, and that importing the package does nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch
from helpers import forked

import p3kernels
from p3kernels import backends, checks
from p3kernels.backends import choose_backend, cuda_in_tritons_place


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    everything = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    return subprocess.run([sys.executable, "-c", code], env=everything, capture_output=True, text=True, check=False)


@pytest.fixture
def no_extension(monkeypatch):
    """As installed without a compiler."""
    monkeypatch.setattr(backends, "load_extension", lambda: (None, "the native extension was not built"))


def test_available_backends():
    found = p3kernels.available_backends()
    assert list(found) == ["reference", "cpu", "triton", "cuda"]
    assert found["reference"] == "available"
    assert found["cpu"] == "available"
    for name in ("triton", "cuda"):
        assert found[name] == "available" or len(found[name].split()) > 3  # a sentence


def test_default_is_the_fastest_that_can():
    assert choose_backend(None, torch.zeros(1)) == "cpu"
    assert choose_backend(None, torch.zeros(1, device="meta")) == "reference"


def test_without_the_extension_the_reference_runs(no_extension):
    assert choose_backend(None, torch.zeros(1)) == "reference"
    assert "not built" in p3kernels.available_backends()["cpu"]
    with pytest.raises(RuntimeError, match=r"backend='cpu' cannot run: the native extension was not built"):
        p3kernels.elu_moments(torch.zeros(2), torch.ones(2), backend="cpu")
    mean, var = p3kernels.relu_moments(torch.full((2,), 30.0), torch.ones(2))
    assert mean.tolist() == [30.0, 30.0]
    assert var.tolist() == [1.0, 1.0]


def test_environment_variable(monkeypatch):
    monkeypatch.setenv("P3_BACKEND", "reference")
    assert choose_backend(None, torch.zeros(1)) == "reference"
    assert choose_backend("cpu", torch.zeros(1)) == "cpu", "an argument wins over the environment"
    monkeypatch.setenv("P3_BACKEND", "")
    assert choose_backend(None, torch.zeros(1)) == "cpu"
    monkeypatch.setenv("P3_BACKEND", "fast")
    with pytest.raises(ValueError, match=r"P3_BACKEND: expected one of reference, cpu, triton, cuda.* got 'fast'"):
        p3kernels.elu_moments(torch.zeros(2), torch.ones(2))
    monkeypatch.setenv("P3_BACKEND", "cuda")
    with pytest.raises(RuntimeError, match=r"P3_BACKEND='cuda' cannot run: \w+"):
        p3kernels.elu_moments(torch.zeros(2), torch.ones(2))


def test_environment_variable_reaches_the_op(monkeypatch):
    """The two backends round float32 differently somewhere among a thousand numbers: the choice shows."""
    mean, var = torch.randn(1000), torch.rand(1000)
    by_name = {name: p3kernels.elu_moments(mean, var, backend=name)[1] for name in ("reference", "cpu")}
    assert not torch.equal(by_name["reference"], by_name["cpu"])
    for name, expected in by_name.items():
        monkeypatch.setenv("P3_BACKEND", name)
        assert torch.equal(p3kernels.elu_moments(mean, var)[1], expected)


def test_cpu_backend_refuses_another_device():
    with pytest.raises(RuntimeError, match=r"backend='cpu' cannot run: the tensors are on meta"):
        choose_backend("cpu", torch.zeros(2, device="meta"))


def test_ops_infer_shapes_on_meta():
    """Meta tensors are how a model is built without memory; the reference is plain torch and must run on them."""
    mean, var = torch.zeros(4, 3, device="meta"), torch.zeros(4, 3, device="meta")
    for out in p3kernels.elu_moments(mean, var):
        assert out.device.type == "meta"
        assert out.shape == (4, 3)


def test_import_does_nothing():
    """No extension, no Triton, no GPU query, no environment or torch setting changed."""
    code = """
import os, sys, torch
threads, dtype, environment = torch.get_num_threads(), torch.get_default_dtype(), dict(os.environ)
before, state = set(sys.modules), torch.get_rng_state()
def forbidden(*_):
    raise AssertionError("a GPU query at import")
queries = ("is_available", "device_count", "current_device")
real = {name: getattr(torch.cuda, name) for name in queries}
for name in queries:
    setattr(torch.cuda, name, forbidden)
import p3kernels
new = set(sys.modules) - before
assert "p3kernels._C" not in sys.modules
heavy = [name for name in ("triton", "trainer", "torch._dynamo", "torch._inductor") if name in new]
heavy += {name for name in new if name.startswith("triton_kernels.")} - {"triton_kernels.activation_codes"}
assert not heavy, heavy
assert not torch.cuda.is_initialized()
assert (threads, dtype) == (torch.get_num_threads(), torch.get_default_dtype())
assert environment == dict(os.environ)
assert torch.equal(state, torch.get_rng_state())
for name in queries:  # the question itself may ask, the import may not
    setattr(torch.cuda, name, real[name])
p3kernels.available_backends()
assert "p3kernels._C" in sys.modules, "the first question loads it"
print("quiet")
"""
    done = python(code)
    assert done.stdout.strip() == "quiet", done.stderr
    assert done.stderr == ""


def test_public_names():
    for name in p3kernels.__all__:
        assert getattr(p3kernels, name) is not None
    assert set(p3kernels.__all__) >= {
        "MomentMatching",
        "MonteCarlo",
        "available_backends",
        "elu_moments",
        "leaky_relu_moments",
        "linear_elu_moments",
        "linear_moments",
        "mixture_log_prob",
        "mlp_mixture_log_prob",
        "mlp_moments",
        "relu_moments",
    }


def test_threads_come_from_torch():
    """No second pool of threads fights torch's: the kernels use the OpenMP runtime that is loaded."""
    extension, reason = backends.load_extension()
    assert extension is not None, reason
    assert "omp" in extension.thread_source()


def test_triton_says_what_it_needs():
    """Here, without an interpreter: a sentence about the GPU or about triton, never an import error."""
    code = "import p3kernels; print(p3kernels.available_backends()['triton'])"
    environment = {**os.environ, "TRITON_INTERPRET": "0", "CUDA_VISIBLE_DEVICES": ""}
    assert "no CUDA device" in forked.python("-c", code, env=environment).stdout
    hidden = "import sys; sys.modules['triton'] = None; " + code
    assert "triton is not installed" in python(hidden, TRITON_INTERPRET="1").stdout


def test_a_triton_that_is_too_old_is_told_of(monkeypatch):
    monkeypatch.setattr(backends, "_version_of", lambda package: "3.3.1")
    available, reason = backends.load_triton.__wrapped__()
    assert (available, reason) == (False, "triton 3.3.1 is older than 3.4, the oldest that compiles the kernels")
    assert backends._numbers("3.10.0+cu128") == (3, 10, 0)


def test_triton_on_cpu_tensors_only_in_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backends, "backend_reason", lambda name, index=None: "available")
    with pytest.raises(RuntimeError, match=r"'triton' cannot run: the tensors are on cpu.*TRITON_INTERPRET=1"):
        choose_backend("triton", torch.zeros(2))
    with pytest.raises(RuntimeError, match=r"'triton' cannot run: the tensors are on meta, not on a CUDA device$"):
        choose_backend("triton", torch.zeros(2, device="meta"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choose_backend("triton", torch.zeros(2)) == "triton"
    assert choose_backend(None, torch.zeros(2)) == "cpu", "the interpreter is for proof, never chosen by itself"


@pytest.mark.parametrize(
    ("dtype", "available", "expected"),
    [
        (torch.float32, ("triton", "cuda"), "triton"),
        (torch.bfloat16, ("triton",), "triton"),
        (torch.float64, ("triton", "cuda"), "reference"),
        (torch.float32, ("cuda",), "cuda"),
        (torch.float32, (), "reference"),
    ],
)
def test_default_on_a_gpu(monkeypatch, dtype, available, expected):
    """Triton where it can run, else CUDA; float64, which they have not, stays with the reference."""

    monkeypatch.setattr(backends, "backend_reason", lambda name, index=None: "available" if name in available else "no")
    monkeypatch.setattr(backends, "_tell_of_the_reference", lambda gpu: None)
    assert choose_backend(None, torch.zeros(1, dtype=dtype).as_subclass(OnGpu)) == expected


class OnGpu(torch.Tensor):
    """Says that it is on the second GPU."""

    device = torch.device("cuda", 1)


@pytest.fixture
def t4_and_a100(monkeypatch):
    """As on a machine whose first GPU is older than the kernels, with triton and the CUDA kernels installed."""
    capabilities = [(7, 5), (8, 0)]
    kernels = type("Kernels", (), {"runs_on": "cuda"})
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capabilities[gpu])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda gpu: ("Tesla T4", "NVIDIA A100")[gpu])
    monkeypatch.setattr(backends, "load_cuda", lambda: (kernels, "available"))
    monkeypatch.setattr(backends, "load_triton", lambda: (True, "available"))
    backends._too_old.cache_clear()
    backends._tell_of_the_reference.cache_clear()
    yield capabilities
    backends._too_old.cache_clear()
    backends._tell_of_the_reference.cache_clear()


def test_an_old_gpu_is_told_of(t4_and_a100):
    found = p3kernels.available_backends()
    for name in ("triton", "cuda"):
        assert found[name].startswith("Tesla T4 (sm_75) is older than sm_80")


def test_an_old_gpu_gets_the_reference_and_one_line_why(t4_and_a100, recwarn):
    class OnT4(OnGpu):
        device = torch.device("cuda", 0)

    warnings.simplefilter("always")  # UserWarnings of the package are errors in tests
    old, new = torch.zeros(1).as_subclass(OnT4), torch.zeros(1).as_subclass(OnGpu)
    assert [choose_backend(None, old), choose_backend(None, old)] == ["reference", "reference"]
    (told,) = recwarn
    assert "run as plain torch (backend 'reference') on cuda:0. triton: Tesla T4 (sm_75)" in str(told.message)
    with pytest.raises(RuntimeError, match=r"backend='triton' cannot run: Tesla T4 \(sm_75\) is older than sm_80"):
        choose_backend("triton", old)
    assert choose_backend(None, new) == "triton", "the GPU of the tensor decides, not the current one"
    assert choose_backend("cuda", new) == "cuda"


def test_one_launch_is_preferred_where_nobody_asked(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backends, "backend_reason", lambda name, index=None: "available")
    assert cuda_in_tritons_place("triton", None, lambda: True) == "cuda"
    assert cuda_in_tritons_place("triton", None, lambda: False) == "triton"
    assert cuda_in_tritons_place("triton", "triton", lambda: True) == "triton"
    assert cuda_in_tritons_place("cpu", None, lambda: True) == "cpu"
    monkeypatch.setenv("P3_BACKEND", "triton")
    assert cuda_in_tritons_place("triton", None, lambda: True) == "triton"


def test_cuda_kernels_say_why_they_do_not_run(monkeypatch):
    class Extension:
        without_cuda = "there was no nvcc"

    monkeypatch.setattr(backends, "load_extension", lambda: (Extension, "available"))
    monkeypatch.setattr(backends, "load_cuda", backends.load_cuda.__wrapped__)
    assert p3kernels.available_backends()["cuda"] == "no CUDA kernels: there was no nvcc"
    Extension.cuda = type("Kernels", (), {"runs_on": "cuda"})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device answers torch" in p3kernels.available_backends()["cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(backends, "_gpu_reason", lambda index: None)
    assert p3kernels.available_backends()["cuda"] == "available"
    with pytest.raises(RuntimeError, match=r"backend='cuda' cannot run: the tensors are on cpu, not on a CUDA device"):
        choose_backend("cuda", torch.zeros(2))


def test_interpreter_must_be_chosen_before_triton_is_imported():
    code = """
import os, triton.language, p3kernels
os.environ["TRITON_INTERPRET"] = "1"
print(p3kernels.available_backends()["triton"])
"""
    pytest.importorskip("triton")
    done = forked.python("-c", code, env={**os.environ, "TRITON_INTERPRET": "0"})
    assert "set it before Python starts" in done.stdout
    ready = "import p3kernels; print(p3kernels.available_backends()['triton'])"
    assert python(ready, TRITON_INTERPRET="1").stdout.strip() == "available"


def test_dtypes_of_the_triton_backend():
    half, double = torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float64)
    checks.check_tensor("mean", half, backend="triton")
    checks.check_like("weight", torch.zeros(2), "mean", half, backend="triton")
    with pytest.raises(TypeError, match=r"mean: the triton backend expects float32 or bfloat16, got float64 \(.*ref"):
        checks.check_tensor("mean", double, backend="triton")
    with pytest.raises(TypeError, match=r"mean: the triton backend expects float32 or bfloat16, got float16$"):
        checks.check_tensor("mean", half.half(), backend="triton")
    checks.check_tensor("mean", double, backend="cpu")
    with pytest.raises(TypeError, match=r"mean: expected float32 or float64, got bfloat16"):
        checks.check_tensor("mean", half, backend="cpu")
    with pytest.raises(TypeError, match=r"weight: expected the dtype of mean, float64, got float32"):
        checks.check_like("weight", torch.zeros(2), "mean", double)


@pytest.mark.parametrize(("setting", "expected"), [("highest", "ieee"), ("high", "tf32"), ("medium", "bf16")])
def test_dot_precision_follows_torch(setting, expected):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(setting)
        assert checks.dot_precision(None, "triton") == expected
        assert checks.dot_precision("tf32x3", "triton") == "tf32x3"
        assert checks.dot_precision(None, "cpu") == checks.dot_precision("ieee", "reference") == "ieee"
        compiled = torch.compile(
            lambda x: x + len(checks.dot_precision(None, "triton")), fullgraph=True, backend="eager"
        )
        assert compiled(torch.zeros(1)).item() == len(expected)
    finally:
        torch.set_float32_matmul_precision(before)


def test_wrong_dot_precision():
    with pytest.raises(ValueError, match=r"precision: expected one of ieee, tf32x3, tf32, bf16 or None, got 'fp8'"):
        checks.dot_precision("fp8", "triton")
    with pytest.raises(ValueError, match=r"precision: 'tf32' is only for the triton backend, got the cpu backend"):
        checks.dot_precision("tf32", "cpu")
