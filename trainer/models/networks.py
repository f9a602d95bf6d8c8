"""The encoder and decoder of the paper's network table."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from p3kernels.backends import on_gpu
from trainer.models.dense import Entries, TapLayer, entries_of, run
from trainer.models.update_terms import fused, latent_heads


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of these widths with ELU between them, none at the end."""
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.ELU()] if index else []
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


class Latent(NamedTuple):
    """q(z | o), a diagonal Gaussian, and the velocity estimate. The proprioceptive latent comes first."""

    mean: Tensor
    """[B, Z]."""
    std: Tensor
    """[B, Z]; 0 where the latent is deterministic."""
    velocity: Tensor
    """[B, 3], or [B, 0] where none is estimated."""

    def kl_to_prior(self) -> Tensor:
        """[B, Z]: KL(q ‖ N(0, 1)) of each dimension."""
        var = self.std.square()
        return 0.5 * (self.mean.square() + var - 1.0) - self.std.log()


class Encoder(nn.Module):
    """History → latent and velocity by an MLP; height scan → latent by a CNN.

    Args:
        history_size: H·P, flattened.
        scan_shape: Rows and columns of the height scan; None without one, and then `extero_latent` has to be 0.
        proprio_latent: Size of the history's latent.
        extero_latent: Size of the scan's latent.
        hidden: Widths of the history's MLP.
        channels: Channels of the two convolutions, kernel 3, stride 2.
        scan_hidden: Width of the layer after them.
        stochastic: Whether the latent has a variance; without it the heads have no outputs for one.
        velocity_size: Columns of the velocity estimate; 0 for none.
    """

    def __init__(
        self,
        history_size: int,
        scan_shape: tuple[int, int] | None,
        proprio_latent: int = 10,
        extero_latent: int = 100,
        hidden: Sequence[int] = (256, 256),
        channels: Sequence[int] = (4, 8),
        scan_hidden: int = 128,
        *,
        stochastic: bool = True,
        velocity_size: int = 3,
    ) -> None:
        super().__init__()
        self.proprio_latent, self.extero_latent = proprio_latent, extero_latent
        self.stochastic, self.velocity_size = stochastic, velocity_size
        moments = 2 if stochastic else 1
        self.history = nn.Sequential(*mlp([history_size, *hidden]), nn.ELU())
        self.history_head = nn.Linear(hidden[-1], moments * proprio_latent + velocity_size)
        self.scan: nn.Module = nn.Identity()  # of a scan without columns
        self.scan_head: nn.Module = nn.Identity()
        if scan_shape is None:
            return
        half = tuple(_halved(size) for size in scan_shape)
        rows, columns = (_halved(size) for size in half)
        self.scan = nn.Sequential(
            _convolution(1, channels[0], scan_shape),
            nn.ELU(),
            _convolution(channels[0], channels[1], half),
            nn.ELU(),
            nn.Linear(channels[1] * rows * columns, scan_hidden),
            nn.ELU(),
        )
        self.scan_head = nn.Linear(scan_hidden, moments * extero_latent)

    def forward(self, history: Tensor, scan: Tensor) -> Latent:
        """history [B, H·P] and scan [B, rows·columns], both normalised; scan [B, 0] where there is none."""
        if torch.jit.is_scripting():
            proprio, extero = self.history_head(self.history(history)), self.scan_head(self.scan(scan))
        else:
            proprio, extero = run(history, self.history, self.history_head), run(scan, self.scan, self.scan_head)
            if self.stochastic and fused(proprio, extero):
                return Latent(*latent_heads(proprio, extero, self.proprio_latent))
        mean = torch.cat([proprio[:, : self.proprio_latent], extero[:, : self.extero_latent]], -1)
        log_var_end = proprio.shape[1] - self.velocity_size
        velocity = proprio[:, log_var_end:]
        if not self.stochastic:
            return Latent(mean, torch.zeros_like(mean), velocity)
        log_var = torch.cat([proprio[:, self.proprio_latent : log_var_end], extero[:, self.extero_latent :]], -1)
        # Bounds that training never sees; they keep a wild first step from making an infinite std.
        return Latent(mean, (0.5 * log_var).clamp(-6.0, 2.0).exp(), velocity)


class Decoder(nn.Module):
    """Latent, velocity and action → next proprioception by an MLP; latent → height scan by a CNN.

    Args:
        proprio_size: P.
        num_actions: A.
        scan_shape: Rows and columns of the height scan; None without one, and then `extero_latent` has to be 0.
        proprio_latent: Size of the history's latent.
        extero_latent: Size of the scan's latent.
        hidden: Widths of the MLP.
        channels: Channels of the two transposed convolutions, kernel 3, stride 2.
        scan_hidden: Width of the layer before them.
        velocity_size: Columns of the velocity estimate; 0 for none.
    """

    def __init__(
        self,
        proprio_size: int,
        num_actions: int,
        scan_shape: tuple[int, int] | None,
        proprio_latent: int = 10,
        extero_latent: int = 100,
        hidden: Sequence[int] = (256, 256),
        channels: Sequence[int] = (8, 4),
        scan_hidden: int = 128,
        *,
        velocity_size: int = 3,
    ) -> None:
        super().__init__()
        self.split = (proprio_latent, extero_latent)
        self.proprio = mlp([proprio_latent + velocity_size + num_actions, *hidden, proprio_size])
        self.scan: nn.Module = nn.Identity()  # of a latent without columns
        if scan_shape is None:
            return
        half = tuple(_halved(size) for size in scan_shape)
        quarter = tuple(_halved(size) for size in half)
        self.scan = nn.Sequential(
            nn.Linear(extero_latent, scan_hidden),
            nn.ELU(),
            nn.Linear(scan_hidden, channels[0] * quarter[0] * quarter[1]),
            nn.ELU(),
            _deconvolution(channels[0], channels[1], quarter, half),
            nn.ELU(),
            _deconvolution(channels[1], 1, half, scan_shape),
        )

    def forward(self, latent: Tensor, velocity: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Next proprioception [B, P] and scan [B, rows·columns] of latent [B, Z], velocity [B, 3], action [B, A].

        Without a scan or a velocity estimate those have no columns.
        """
        proprio, extero = latent.split(self.split, -1)
        return run(torch.cat([proprio, velocity, action], -1), self.proprio), run(extero, self.scan)


def _halved(size: int) -> int:
    """What a convolution of kernel 3, stride 2, padding 1 makes of `size`."""
    return (size + 1) // 2


class _GridLayer(TapLayer):
    """A convolution over a small grid.

    The grid is 11 × 17: the matrix of the convolution is small, and convolving each image of a large batch is slow on a
    CPU. `run` has kernels for its few entries; module by module the matrix is made by convolving the unit images. The
    result is the same to rounding, the parameters are the convolution's.

    Args:
        convolution: The layer.
        shape: Channels, rows and columns of its input.
    """

    def __init__(self, convolution: nn.Conv2d | nn.ConvTranspose2d, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.convolution = convolution
        self.shape = shape
        # A copy whose weights are their own numbers tells which of them each entry of the matrix is; 0 is none.
        counting = copy.deepcopy(convolution).double().requires_grad_(False)
        assert counting.bias is not None
        counting.bias.zero_()
        counting.weight.copy_(torch.arange(1.0, counting.weight.numel() + 1).view_as(counting.weight))
        size = shape[0] * shape[1] * shape[2]
        images = counting(torch.eye(size, dtype=torch.float64).view(-1, *shape))
        self.cells = images[0, 0].numel()
        matrix = images.flatten(1).t().round().long()
        outputs, inputs = matrix.nonzero(as_tuple=True)
        weights = matrix[outputs, inputs] - 1
        # No buffers: they stay on the CPU.
        self._entries = entries_of(outputs, inputs, weights, len(matrix), size, counting.weight.numel())

    def taps(self) -> tuple[Entries, Tensor, Tensor]:
        """The entries of the matrix, the kernel, and the bias for every cell [O]."""
        bias = self.convolution.bias
        assert bias is not None
        return self._entries, self.convolution.weight, bias.repeat_interleave(self.cells)

    def forward(self, images: Tensor) -> Tensor:
        """[B, C'·rows'·columns'] of images [B, C·rows·columns], flattened."""
        size = self.shape[0] * self.shape[1] * self.shape[2]
        if images.shape[0] <= size or not _is_on_cpu(images):
            return self.convolution(images.view(-1, self.shape[0], self.shape[1], self.shape[2])).flatten(1)
        # One more unit image, of zeros: its result is the bias.
        units = torch.eye(size + 1, size, dtype=images.dtype, device=images.device)
        rows = self.convolution(units.view(-1, self.shape[0], self.shape[1], self.shape[2])).flatten(1)
        return torch.addmm(rows[size], images, rows[:size] - rows[size])


def _is_on_cpu(images: Tensor) -> bool:
    """Where a product with the matrix is the faster convolution; elsewhere it is many small kernels more."""
    if torch.jit.is_scripting():
        return images.device.type == "cpu"
    else:  # and not after it: that would be scripted, too
        return images.device.type == "cpu" and not on_gpu(images)


def _convolution(inputs: int, outputs: int, grid: tuple[int, ...]) -> _GridLayer:
    """Kernel 3, stride 2: from `grid` to its half."""
    return _GridLayer(nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), (inputs, grid[0], grid[1]))


def _deconvolution(inputs: int, outputs: int, small: tuple[int, ...], large: tuple[int, ...]) -> _GridLayer:
    """Kernel 3, stride 2: from `small` back to `large`."""
    rest = (large[0] - (2 * small[0] - 1), large[1] - (2 * small[1] - 1))
    layer = nn.ConvTranspose2d(inputs, outputs, 3, stride=2, padding=1, output_padding=rest)
    return _GridLayer(layer, (inputs, small[0], small[1]))
