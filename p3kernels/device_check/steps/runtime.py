"""How the ops behave inside a program: streams, CUDA graphs, torch.compile, a second GPU, the same bits every time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from p3kernels.device_check.compare import on, relative, results, same_bits
from p3kernels.device_check.ops import OPS, TOLERANCES, Op
from p3kernels.device_check.step import Case, Finding, Skip, Task
from p3kernels.device_check.steps.values import Cases, on_backend

Call = Callable[[], list[Tensor]]


def runtime_of(backend: str) -> Cases:
    """The step of a backend."""
    return functools.partial(on_backend, backend, _cases)


def _cases(task: Task, backend: str) -> Iterator[Case]:
    checks = {
        "the same bits on every run": _repeated,
        "on a side stream": _side_stream,
        "replayed from a CUDA graph": _replayed,
        "under torch.compile": _compiled,
        "on the second GPU": _second_gpu,
    }
    for op in OPS:
        if backend in op.kernels:
            for name, check in checks.items():
                yield Case(f"{op.name} {name}", functools.partial(check, op, task, backend))


def _call(op: Op, task: Task, backend: str, index: int = 0) -> Call:
    """Forward and backward at the largest size that the device is for; inputs are made once."""
    size = "prime" if task.device.small else "actor"
    inputs = on(op.make(size, torch.float32), task.device.place(index))
    return lambda: list(results(op, inputs, backend).values())


def _same(got: list[Tensor], expected: list[Tensor]) -> Finding:
    difference = same_bits(got, expected)
    return Finding(difference is None, difference or f"{len(got)} tensors, bit for bit")


def _repeated(op: Op, task: Task, backend: str) -> Finding:
    call = _call(op, task, backend)
    expected = [tensor.clone() for tensor in call()]
    for _ in range(1 if task.device.small else 9):
        finding = _same(call(), expected)
        if not finding.passed:
            return finding
    return finding


def _side_stream(op: Op, task: Task, backend: str) -> Finding:
    call = _call(op, task, backend)
    try:
        return _same(list(task.device.side_stream(call)), call())
    except NotImplementedError as why:
        raise Skip(str(why)) from None


def _replayed(op: Op, task: Task, backend: str) -> Finding:
    call = _call(op, task, backend)
    expected = [tensor.clone() for tensor in call()]
    try:
        return _same(list(task.device.replayed(call)), expected)
    except NotImplementedError as why:
        raise Skip(str(why)) from None


def _compiled(op: Op, task: Task, backend: str) -> Finding:
    """Without gradients and with them: the graph has our operator in it, whole."""
    size = "prime" if task.device.small else "actor"
    inputs = on(op.make(size, torch.float32), task.device.place())
    torch.compiler.reset()
    compiler = "aot_eager" if task.device.small else "inductor"

    def both(tensors: dict[str, Tensor]) -> list[Tensor]:
        leaves = {name: tensor.clone().requires_grad_(name not in op.constant) for name, tensor in tensors.items()}
        function = torch.compile(lambda x: op.outputs(x, backend), fullgraph=True, backend=compiler)
        outputs = function(leaves)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return [*outputs, *torch.autograd.grad([out.sum() for out in outputs], wanted)]

    def plainly(tensors: dict[str, Tensor]) -> list[Tensor]:
        leaves = {name: tensor.clone().requires_grad_(name not in op.constant) for name, tensor in tensors.items()}
        outputs = op.outputs(leaves, backend)
        wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return [*outputs, *torch.autograd.grad([out.sum() for out in outputs], wanted)]

    error = max(relative(got, value) for got, value in zip(both(inputs), plainly(inputs), strict=True))
    allowed = TOLERANCES["ieee"][1]
    return Finding(error <= allowed, f"differs from eager by {error:.1e} (allowed {allowed:.0e})", {"error": error})


def _second_gpu(op: Op, task: Task, backend: str) -> Finding:
    if task.device.count() < 2:
        raise Skip("there is one GPU")
    got, expected = _call(op, task, backend, 1)(), _call(op, task, backend, 0)()
    if any(tensor.device.index != 1 for tensor in got):
        return Finding(False, "results are not on the GPU of the inputs")
    error = max(relative(one, other) for one, other in zip(got, expected, strict=True))
    return Finding(error <= TOLERANCES["ieee"][1], f"differs from the first by {error:.1e}", {"error": error})
