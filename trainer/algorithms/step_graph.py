"""A minibatch's step as one CUDA graph: launched at once, however many kernels it is.

A graph reads and writes the memory it was captured with. So the rows of a minibatch are copied to where the captured
ones were, the rollout of every update is packed into the same matrix, the learning rate is a tensor, and whatever else
a captured step depends on is in its key: with another key a new graph is captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Protocol

import torch
from torch import Tensor

Outcome = tuple[Tensor, Mapping[str, Tensor]]
"""Whether a step was taken, a 0-d bool, and its terms by name, 0-d each."""
WARM_UP = 3
"""Steps with a new key that are launched kernel by kernel, so that everything is compiled, loaded and allocated."""


class Graph(Protocol):
    """What records launches and repeats them."""

    def capture(self, function: Callable[[], None]) -> None:
        """Records what the function launches; nothing runs."""

    def replay(self) -> None:
        """Launches it all again, on the same memory."""


class CudaGraph:
    """A CUDA graph of torch."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def capture(self, function: Callable[[], None]) -> None:
        """Records what the function launches; nothing runs."""
        with torch.cuda.graph(self._graph):
            function()

    def replay(self) -> None:
        """Launches it all again, on the same memory."""
        self._graph.replay()


class StepGraph:
    """Takes steps by replaying a graph of them, where they can be captured; else one by one, and says so once.

    Args:
        make_graph: Makes an empty graph.

    Attributes:
        captures: How many graphs were captured.
        failed: Why no graph is used any more; None as long as they are.
    """

    def __init__(self, make_graph: Callable[[], Graph] = CudaGraph) -> None:
        self._make_graph = make_graph
        self._key: Hashable = None
        self._steps = 0
        self._graph: Graph | None = None
        self._rows = torch.zeros(0, dtype=torch.int64)
        self._outcome: Outcome | None = None
        self._told: set[str] = set()
        self.captures = 0
        self.failed: str | None = None

    def __call__(
        self, step: Callable[[Tensor], Outcome], rows: Tensor, key: Hashable, report: Callable[[str], None]
    ) -> Outcome:
        """The outcome of step(rows); its terms are overwritten by the next step.

        Args:
            step: Launches the same kernels on the same memory whatever the rows, as long as the key is the same.
            rows: [B]: numbers of the rows of the minibatch.
            key: What the step depends on beside its rows: sizes, addresses, numbers that are constants in kernels.
            report: Told why nothing can be captured.
        """
        if self.failed is not None:
            return step(rows)
        if key != self._key:
            self._key, self._steps, self._graph, self._outcome = key, 0, None, None
        if self._graph is None:
            self._steps += 1
            if self._steps <= WARM_UP:
                return step(rows)
            try:
                self._capture(step, rows)
            except RuntimeError as error:  # torch's, CUDA's and Triton's are all of this kind
                self.failed = str(error).strip().splitlines()[0]
                self._graph = None
                self.pass_over(self.failed, report)
                return step(rows)
        assert self._graph is not None
        assert self._outcome is not None
        self._rows.copy_(rows)
        self._graph.replay()
        taken, terms = self._outcome
        return taken.clone(), terms

    def pass_over(self, reason: str, report: Callable[[str], None]) -> None:
        """Says, once, why steps are launched kernel by kernel."""
        if reason not in self._told:
            report(f"no CUDA graph of an update's step: {reason}; its kernels are launched one by one")
        self._told.add(reason)

    def _capture(self, step: Callable[[Tensor], Outcome], rows: Tensor) -> None:
        self._rows = rows.clone()
        graph = self._make_graph()

        def captured() -> None:
            self._outcome = step(self._rows)

        graph.capture(captured)
        self._graph = graph
        self.captures += 1
