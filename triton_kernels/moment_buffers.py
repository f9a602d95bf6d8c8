"""What a pass of moments keeps for its gradient, in one buffer: packed operands, activations, and what made them.

The weight and its transpose of every layer, rounded, rows padded; the network's inputs alike, with a gap between the
deterministic and the stochastic ones; the output moments of every hidden layer; the state of every activated layer: its
pre-activation moments or, where products round anyway, the activation's derivatives in 16 bits each.

Matrices whose size is a multiple of 16 bytes come first, so every one of them is aligned, and no place of the buffer
is left unwritten between them: eager and traced passes keep the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from triton_kernels.pack import Matrix, padded, storage

Moments = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Layout:
    """Where everything lies, in elements of float32."""

    rows: int
    widths: Sequence[int]
    """I of the first and O of every layer."""
    stochastic: int
    """J of the first layer."""
    activated: int
    """How many layers have an activation, from the first on."""

    @property
    def deterministic(self) -> int:
        """Inputs of the first layer that have no variance."""
        return self.widths[0] - self.stochastic

    @property
    def hidden(self) -> int:
        """How many layers' outputs are kept: the last one's is the caller's."""
        return min(self.activated, len(self.widths) - 2)

    @property
    def gap(self) -> int:
        """Columns of zeros behind the deterministic inputs."""
        return padded(self.deterministic) - self.deterministic

    @property
    def input_widths(self) -> tuple[int, int]:
        """Widths of the packed mean and var."""
        var = padded(self.stochastic)
        return padded(self.deterministic) + var, var

    def shapes(self) -> list[tuple[int, int]]:
        """Shape of every matrix: weights and transposes, mean and var, hidden layers' outputs, states."""
        found = []
        for layer, outputs in enumerate(self.widths[1:]):
            inputs = self.input_widths[0] if layer == 0 else padded(self.widths[layer])
            found += [(outputs, inputs), (inputs, padded(outputs))]
        found += [(self.rows, width) for width in self.input_widths]
        for layers in (self.hidden, self.activated):
            for outputs in self.widths[1 : layers + 1]:
                found += [(self.rows, outputs)] * 2
        return found

    def dtypes(self, precision: str) -> list[torch.dtype]:
        """Dtype of each of `shapes`: states are float32, operands what the products take."""
        return [storage(precision)] * 2 * (len(self.widths) + self.hidden) + [torch.float32] * 2 * self.activated

    def sizes(self, precision: str) -> list[int]:
        """Elements of float32 that each of `shapes` takes."""
        return [
            height * width if dtype == torch.float32 else (height * width + 1) // 2
            for (height, width), dtype in zip(self.shapes(), self.dtypes(precision), strict=True)
        ]

    def places(self, precision: str) -> list[int]:
        """Where each of `shapes` begins."""
        sizes = self.sizes(precision)
        found, at = [0] * len(sizes), 0
        for index in sorted(range(len(sizes)), key=lambda index: sizes[index] % 4 != 0):
            found[index] = at
            at += sizes[index]
        return found

    def size(self, precision: str) -> int:
        """Elements of the buffer."""
        return sum(self.sizes(precision))


class Buffers:
    """Views of a buffer of `Layout.size` elements."""

    def __init__(self, layout: Layout, buffer: Tensor, precision: str) -> None:
        self.layout, self.precision = layout, precision
        layers = len(layout.widths) - 1
        described = zip(layout.places(precision), layout.shapes(), layout.dtypes(precision), strict=True)
        found = [_view(buffer, at, height, width, dtype) for at, (height, width), dtype in described]
        self.weights: list[Tensor] = found[0 : 2 * layers : 2]
        self.turned: list[Tensor] = found[1 : 2 * layers : 2]
        pairs: list[Moments] = [(found[k], found[k + 1]) for k in range(2 * layers, len(found), 2)]
        self.inputs = pairs[0]
        self.outputs, self.states = pairs[1 : 1 + layout.hidden], pairs[1 + layout.hidden :]

    def matrices(self, mean: Tensor, var: Tensor, weights: Sequence[Tensor]) -> list[Matrix]:
        """What has to be packed before a pass."""
        split, gap = self.layout.deterministic, self.layout.gap
        found = []
        for layer, weight in enumerate(weights):
            where, far = (split, gap) if layer == 0 else (0, 0)
            found.append(Matrix(weight, self.weights[layer], column_split=where, column_gap=far, marked=True))
            found.append(Matrix(weight.t(), self.turned[layer], row_split=where, row_gap=far, marked=True))
        found.append(Matrix(mean, self.inputs[0], column_split=split, column_gap=gap))
        return [*found, Matrix(var, self.inputs[1])]


def _view(buffer: Tensor, at: int, height: int, width: int, dtype: torch.dtype) -> Tensor:
    first = at * 4 // dtype.itemsize
    return buffer.view(dtype)[first : first + height * width].view(height, width)
