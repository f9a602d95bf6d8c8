"""The device that is checked: a GPU, or CPU tensors with Triton's interpreter, on which the same list of cases runs."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from p3kernels import backends


class Device(Protocol):
    """What the steps ask of a device."""

    kind: str
    """"cuda" or "cpu"."""
    small: bool
    """Whether only small sizes are worth running."""

    def unavailable(self) -> str | None:
        """Why nothing can be checked here, or None."""

    def facts(self) -> dict[str, Any]:
        """The device, its driver and clocks."""

    def place(self, index: int = 0) -> torch.device:
        """Where the tensors go."""

    def count(self) -> int:
        """How many of them there are."""

    def backends(self) -> dict[str, str]:
        """The backends with kernels for GPUs: name → "available" or the reason why not."""

    def side_stream(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The results of the call, made on another stream than the current one."""

    def replayed(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The results of the call, captured in a CUDA graph and replayed twice."""


class Gpu:
    """The GPUs that torch sees."""

    kind, small = "cuda", False

    def unavailable(self) -> str | None:
        """Why nothing can be checked here, or None."""
        if torch.version.cuda is None:
            return f"this torch ({torch.__version__}) is built without CUDA"
        if not torch.cuda.is_available():
            return f"torch is built for CUDA {torch.version.cuda}, but no device answers (nvidia-smi tells more)"
        return None

    def facts(self) -> dict[str, Any]:
        """The device, its driver and clocks."""
        properties = torch.cuda.get_device_properties(0)
        return {
            "gpu": properties.name,
            "capability": f"sm_{properties.major}{properties.minor}",
            "gpus": torch.cuda.device_count(),
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
            "cuda_of_torch": torch.version.cuda,
            "nvidia_smi": _nvidia_smi(),
        }

    def place(self, index: int = 0) -> torch.device:
        """Where the tensors go."""
        return torch.device("cuda", index)

    def count(self) -> int:
        """How many of them there are."""
        return torch.cuda.device_count()

    def backends(self) -> dict[str, str]:
        """The backends with kernels for GPUs: name → "available" or the reason why not."""
        return {name: backends.backend_reason(name, 0) for name in ("triton", "cuda")}

    def side_stream(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The results of the call, made on another stream than the current one."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results = function()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        return results

    def replayed(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """The results of the call, captured in a CUDA graph and replayed twice."""
        self.side_stream(function)  # compiles, and lets the allocator find its sizes, before the capture
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = function()
        for tensor in results:
            tensor.zero_()  # what the replay does not write shows
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        return results


class Interpreter:
    """CPU tensors: Triton's kernels run in its interpreter (TRITON_INTERPRET=1), and nothing else of a GPU is there."""

    kind, small = "cpu", True

    def unavailable(self) -> str | None:
        """Why nothing can be checked here, or None."""
        return None if backends.interpreting() else "on CPU tensors only triton's interpreter runs: TRITON_INTERPRET=1"

    def facts(self) -> dict[str, Any]:
        """The one fact to record: there is no GPU."""
        return {"gpu": "none: CPU tensors, triton's interpreter", "capability": "none", "gpus": 0}

    def place(self, index: int = 0) -> torch.device:
        """Where the tensors go."""
        return torch.device("cpu")

    def count(self) -> int:
        """The number of devices: one."""
        return 1

    def backends(self) -> dict[str, str]:
        """The backends that can be checked: Triton alone."""
        return {"triton": backends.backend_reason("triton"), "cuda": "the CUDA kernels need a GPU"}

    def side_stream(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Not on a CPU."""
        raise NotImplementedError("a CPU has no streams")

    def replayed(self, function: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Not on a CPU."""
        raise NotImplementedError("a CPU has no CUDA graphs")


DEVICES: dict[str, type[Gpu] | type[Interpreter]] = {"cuda": Gpu, "cpu": Interpreter}

_ASKED = "name,driver_version,vbios_version,pstate,clocks.sm,clocks.max.sm,clocks.mem,clocks.max.mem,temperature.gpu"
_ASKED += ",power.draw,power.limit,persistence_mode,utilization.gpu,memory.used,memory.total"


def _nvidia_smi() -> list[dict[str, str]] | str:
    """What nvidia-smi says of each GPU, or why it says nothing."""
    if shutil.which("nvidia-smi") is None:
        return "nvidia-smi is not on the PATH"
    command = ["nvidia-smi", f"--query-gpu={_ASKED}", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        return f"nvidia-smi failed: {(done.stderr or done.stdout).strip()[:300]}"
    rows = [line.split(", ") for line in done.stdout.strip().splitlines()]
    return [dict(zip(_ASKED.split(","), row, strict=False)) for row in rows]
