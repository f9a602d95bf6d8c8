"""The one list of what is compiled ahead of time: every different launch of the actor's passes, recorded.

`compiled` gives a launch to Triton's own specialiser and compiler, with the attributes that the JIT would derive from
the arguments; only the GPU is missing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from triton_kernels.launch import target_arch
from triton_kernels.proof import workloads
from triton_kernels.proof.actor import NUM_SAMPLES, PRECISIONS, ROLLOUT_ROWS, TRAINING_ROWS
from triton_kernels.proof.costs import Cost, cost
from triton_kernels.proof.record import Launch, address, recording
from triton_kernels.proof.workloads import Inputs


@dataclass(frozen=True)
class Case:
    """One compiled kernel that some pass launches."""

    launch: Launch
    precision: str
    shape: str
    """The problem in words: "B=24576 I=209 J=110 O=512"."""
    cost: Cost
    launches: dict[str, int]
    """How often each workload launches it."""
    default: bool = True
    """Whether this is what a user gets without asking; these must not spill."""

    @property
    def kernel(self) -> str:
        """Its name, without the leading underscore."""
        return self.launch.name

    @property
    def tensor_core(self) -> bool:
        """Whether its products are to run on tensor cores."""
        return self.launch.arguments.get("PRECISION", "ieee") != "ieee" and self.cost.products

    @property
    def half(self) -> bool:
        """Whether its products' operands are kept as float16."""
        given = self.launch.arguments.values()
        return any(isinstance(value, Tensor) and value.dtype == torch.float16 for value in given)


def passes() -> dict[str, dict[str, Callable[[], Any]]]:
    """Workload → precision → a pass on tensors without memory."""
    meta = torch.device("meta")
    train, few = Inputs.random(TRAINING_ROWS, meta), Inputs.random(ROLLOUT_ROWS, meta)
    often = ("ieee", "tf32")

    def of(run: Callable[..., Any], *arguments: Any, precisions: tuple[str, ...] = PRECISIONS) -> dict[str, Any]:
        return {precision: functools.partial(run, arguments[0], precision, *arguments[1:]) for precision in precisions}

    return {
        "mm_train": of(workloads.training, train),
        "rollout": of(workloads.rollout, few),
        "mc15_train": of(workloads.mixture, train),
        "mc50_train": of(workloads.mixture, train, 50, precisions=often),
        "mc15_rollout": of(workloads.mixture, few, precisions=often),
        "mc15_numbered": of(workloads.mixture, train, NUM_SAMPLES, True, precisions=often),
        "elementwise_train": {"ieee": lambda: workloads.elementwise(train)},
        "elementwise_rollout": {"ieee": lambda: workloads.elementwise(few)},
        "minibatch_terms": {"ieee": lambda: workloads.minibatch(train)},
    }


def launches_of(workload: str, precision: str) -> list[Launch]:
    """What one pass launches, in order."""
    with recording() as found:
        passes()[workload][precision]()
    return found


@functools.cache
def collect(arch: str) -> list[Case]:
    """Every different launch, with the configurations that `arch` is launched with."""
    found: dict[tuple[str, str], Case] = {}
    with target_arch(arch):
        for workload, by_precision in passes().items():
            for precision, run in by_precision.items():
                with recording() as launches:
                    run()
                counts = Counter((precision, _key(one)) for one in launches)
                for one in launches:
                    key = precision, _key(one)
                    case = found.setdefault(key, Case(one, precision, describe(one), cost(one), {}))
                    case.launches[workload] = counts[key]
    return list(found.values())


def _key(one: Launch) -> str:
    """Launches with equal machine code and equal sizes are one case."""
    sizes = [(n, v) for n, v in one.arguments.items() if isinstance(v, int | tuple) and not _has_tensor(v)]
    return f"{one.facts()} {one.grid} {[pair for pair in sizes if pair[0] not in _PLACES]}"


_PLACES = ("first_sample", "first_row")


def _has_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and any(isinstance(entry, Tensor) for entry in value)


_TAGS = {
    "to_heights": "heights",
    "samples": "n",
    "rows": "B",
    "entries": "M",
    "inputs": "I",
    "stochastic": "J",
    "columns": "Z",
    "outputs": "O",
    "actions": "A",
    "size": "size",
    "widths": "widths",
    "parts": "parts",
    "splits": "parts",
}


def describe(one: Launch) -> str:
    """The sizes of a launch in words."""
    a = one.arguments
    told = {tag: a[name] for name, tag in _TAGS.items() if name in a}
    if isinstance(a.get("deterministic"), int) and "inputs" in a:
        told["J"] = a["inputs"] - a["deterministic"]
    flags = [name.removeprefix("HAS_").lower() for name in ("HAS_ROWS", "FIRST", "LAST", "ROW_SUM") if a.get(name)]
    text = [f"{tag}={'-'.join(map(str, value)) if isinstance(value, tuple) else value}" for tag, value in told.items()]
    return " ".join([*text, *flags])


class _Pointer:
    """A device pointer as the specialiser looks at one: a dtype and an address."""

    def __init__(self, tensor: Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = address(tensor)

    def data_ptr(self) -> int:
        return self._address


def _as_argument(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_as_argument(entry) for entry in value)
    return _Pointer(value) if isinstance(value, Tensor) else value


def compiled(launch: Launch, arch: str) -> Any:
    """Triton's CompiledKernel of this launch on `arch` ("sm_90"), specialised as the JIT would."""
    from triton import compile as triton_compile  # noqa: PLC0415  # decides at import between compiler and interpreter
    from triton.backends.compiler import GPUTarget  # noqa: PLC0415
    from triton.compiler import ASTSource, make_backend  # noqa: PLC0415
    from triton.runtime.jit import create_function_from_signature  # noqa: PLC0415

    kernel, target = launch.kernel, GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    arguments = {name: _as_argument(value) for name, value in launch.arguments.items()}
    options = {**launch.options, "debug": False}
    bound, specialisation, _ = binder(**arguments, **options)
    _, signature, constants, attributes = kernel._pack_args(backend, options, bound, specialisation, options)
    return triton_compile(ASTSource(kernel, signature, constants, attributes), target=target, options=launch.options)
