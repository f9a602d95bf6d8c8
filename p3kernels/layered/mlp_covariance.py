"""Mean and covariance through a whole MLP on a CPU, by statistical linearisation.

Rows of the batch go through in tiles: the action's rows [tile, A, H] exist for one tile at a time, and the backward
pass makes them again, so memory does not grow with the batch beyond inputs and outputs. Matrix products are torch's;
between them one native pass a layer does the units, another the gradients of the action's rows. The curvature that
the last hidden layer's units share is a few products of [tile, H, H].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.layered.products import mm
from p3kernels.layered.workspace import Workspace
from p3kernels.records import Backward, Gradients, MlpCovarianceInputs, MlpCovarianceOutputs, activation_of
from p3kernels.reference.mlp_covariance import SMALLEST_VAR

TILE_ROWS = 2048
"""Rows of a matrix product: batch rows times actions or tangents, whichever are more."""


@dataclass
class _Layer:
    """A hidden layer's units on one tile of R rows."""

    pre: Tensor
    """[1 + K, R, H]: pre-activation means without the bias, and tangents."""
    pre_rest: Tensor
    """[R, H]: the variance beside that of the tangents; of the first layer all of it."""
    out: Tensor
    """[1 + K, R, H], of the last hidden layer [1, R, H]: means and tangents behind the activation."""
    rest: Tensor | None
    """[R, H]: the variance beside that of the tangents; of the last hidden layer nobody asks."""
    gain: Tensor
    residual: Tensor
    curvature: Tensor | None
    """There for the last hidden layer alone."""

    @property
    def tangents(self) -> Tensor:
        """[R, K, H], before the activation."""
        return self.pre[1:].transpose(0, 1)


class _Network:
    """The parameters, in the forms in which the passes need them."""

    def __init__(self, inputs: MlpCovarianceInputs) -> None:
        weights, directions = inputs.weights, inputs.directions
        assert directions is not None
        self.weights, self.biases = weights, [bias.contiguous() for bias in inputs.biases]
        self.activation = activation_of(inputs)
        self.stochastic, self.hidden, self.actions = directions.shape[0], len(weights) - 1, weights[-1].shape[0]
        self.columns = slice(weights[0].shape[1] - self.stochastic, None)
        # What the variances and the action's rows see of a layer: of the first its stochastic columns.
        self.seen = [weights[0][:, self.columns], *weights[1:]]
        self.squares = [weight.square() for weight in self.seen[:-1]]
        self.across = directions.t()[:, None]
        self.tangents = self.across.shape[0]
        self.tile = max(1, TILE_ROWS // max(self.actions, self.tangents + 1))

    def units(self, work: Workspace, mean: Tensor, var: Tensor) -> list[_Layer]:
        """Every hidden layer's units, from the inputs on; the tangents of the inputs are left in `work`."""
        rows, layers = mean.shape[0], list[_Layer]()
        for index in range(self.hidden):
            weight, last = self.weights[index], index == self.hidden - 1
            width, count = weight.shape[0], 1 + self.tangents
            pre = work.take(f"pre {index}", count, rows, width)
            pre_rest = work.take(f"pre_rest {index}", rows, width)
            if index == 0:
                mm(mean, weight.t(), out=pre[0])
                mm(var, self.squares[0].t(), out=pre_rest)
                inputs = work.take("inputs", self.tangents, rows, self.stochastic)
                torch.mul(self.across, (var + SMALLEST_VAR).sqrt_(), out=inputs)
                mm(inputs.flatten(0, 1), self.seen[0].t(), out=pre[1:].flatten(0, 1))
            else:
                below = layers[-1]
                assert below.rest is not None
                mm(below.out.flatten(0, 1), weight.t(), out=pre.flatten(0, 1))
                mm(below.rest, self.squares[index].t(), out=pre_rest)
            out = work.take(f"out {index}", 1 if last else count, rows, width)
            rest = None if last else work.take(f"rest {index}", rows, width)
            gain, residual = (work.take(f"{name} {index}", rows, width) for name in ("gain", "residual"))
            curvature = work.take("curvature", rows, width) if last else None
            native.units_forward(
                self.activation,
                pre,
                self.biases[index],
                pre_rest,
                index == 0,
                out,
                rest,
                gain,
                residual,
                curvature,
            )
            layers.append(_Layer(pre, pre_rest, out, rest, gain, residual, curvature))
        return layers

    def shared_curvature(self, work: Workspace, layer: _Layer) -> tuple[Tensor, Tensor]:
        """The last hidden layer's c [R, H, H] along the tangents, and S = ½ h_i h_j c_ij², 0 on the diagonal."""
        assert layer.curvature is not None
        rows, width = layer.curvature.shape
        tangents, h = layer.tangents, layer.curvature
        correlated = torch.bmm(tangents.mT, tangents, out=work.take("correlated", rows, width, width))
        # (h_i c_ij) (c_ij h_j): neither h_i h_j nor c_ij² need be within range.
        shared = torch.mul(correlated, h[:, :, None], out=work.take("shared", rows, width, width))
        shared.mul_(correlated * h[:, None]).mul_(0.5)
        shared.diagonal(dim1=1, dim2=2).zero_()
        return correlated, shared

    def rows(self, work: Workspace, layers: Sequence[_Layer], covariance: Tensor | None, var: Tensor) -> list[Tensor]:
        """∂action/∂x [R, A, ·] of the inputs and of every hidden layer's units; fills `covariance` [R, A, A].

        Without a covariance to fill, every layer's rows are kept apart; with one, only the present layer's exist.
        """
        count, keep = var.shape[0], covariance is None
        rows = work.take(f"rows {self.hidden}", count, *self.seen[-1].shape)
        rows.copy_(self.seen[-1].expand_as(rows))
        kept = [rows]
        if covariance is not None and self.hidden > 0:
            _, shared = self.shared_curvature(work, layers[-1])
            torch.bmm(rows @ shared, rows.mT, out=covariance)
        for index in reversed(range(self.hidden)):
            layer, width = layers[index], rows.shape[2]
            scaled = work.take("scaled", count, self.actions, width)
            if covariance is not None:
                torch.mul(rows, layer.residual[:, None], out=scaled)
                covariance.baddbmm_(scaled, rows.mT)
            torch.mul(rows, layer.gain[:, None], out=scaled)
            below = self.seen[index]
            rows = work.take(f"rows {index if keep else index % 2}", count, self.actions, below.shape[1])
            mm(scaled.flatten(0, 1), below, out=rows.flatten(0, 1))
            kept.append(rows)
        if covariance is not None:
            scaled = torch.mul(rows, var[:, None], out=work.take("scaled", *rows.shape))
            covariance.baddbmm_(scaled, rows.mT, beta=int(self.hidden > 0))
        return kept[::-1]


def forward(inputs: MlpCovarianceInputs) -> MlpCovarianceOutputs:
    """Mean [B, A] and covariance [B, A, A]."""
    mean, var, weights = inputs.mean, inputs.var, inputs.weights
    network, work = _Network(inputs), Workspace(mean)
    out_mean = mean.new_empty(mean.shape[0], network.actions)
    covariance = mean.new_empty(mean.shape[0], network.actions, network.actions)
    for begin in range(0, mean.shape[0], network.tile):
        tile = slice(begin, begin + network.tile)
        layers = network.units(work, mean[tile], var[tile])
        top = layers[-1].out[0] if layers else mean[tile]
        mm(top, weights[-1].t(), bias=network.biases[-1], out=out_mean[tile])
        network.rows(work, layers, covariance[tile], var[tile])
    return MlpCovarianceOutputs(out_mean, covariance)


class _TiledGradients:
    """What a backward pass adds up over the tiles, and the tile's part of it."""

    def __init__(self, network: _Network, mean: Tensor, var: Tensor) -> None:
        self.network, self.work = network, Workspace(mean)
        self.mean, self.var = mean.new_empty(mean.shape), var.new_empty(var.shape)  # contiguous, whatever the inputs
        self.weights = [weight.new_zeros(weight.shape) for weight in network.weights]
        self.squares = [square.new_zeros(square.shape) for square in network.squares]
        self.biases = [bias.new_zeros(bias.shape) for bias in network.biases]
        self.seen = [self.weights[0][:, network.columns], *self.weights[1:]]

    def tile(self, tile: slice, d_out_mean: Tensor, d_covariance: Tensor, mean: Tensor, var: Tensor) -> None:
        """Adds the gradients of one tile."""
        layers, weighting = self.network.units(self.work, mean, var), d_covariance + d_covariance.mT
        from_rows, self.var[tile] = self._rows(layers, weighting, var)
        from_curvature = self._shared_curvature(layers[-1], weighting) if layers else None
        self._units(layers, from_rows, from_curvature, d_out_mean, mean, var, tile)

    def _shared_curvature(self, layer: _Layer, weighting: Tensor) -> tuple[Tensor, Tensor]:
        """d_curvature [R, H] and d_tangents [R, K, H] of the last hidden layer; adds to the last weights' gradient."""
        assert layer.curvature is not None
        h, weight = layer.curvature, self.network.weights[-1]
        correlated, shared = self.network.shared_curvature(self.work, layer)
        weighted = weighting @ weight
        self.weights[-1].add_(torch.bmm(weighted, shared).sum(0))
        d_shared = torch.matmul(weight.t(), weighted, out=self.work.take("d_shared", *shared.shape)).mul_(0.5)
        d_shared.diagonal(dim1=1, dim2=2).zero_()
        d_shared.mul_(correlated)
        d_tangents = torch.bmm(layer.tangents * h[:, None], d_shared).mul_(2 * h[:, None])
        return torch.bmm(d_shared.mul_(correlated), h[:, :, None]).squeeze(2), d_tangents

    def _rows(
        self, layers: Sequence[_Layer], weighting: Tensor, var: Tensor
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Back through the action's rows, from the inputs to the outputs: d_gain, d_residual of each layer; d_var."""
        network, work = self.network, self.work
        rows = network.rows(work, layers, None, var)
        count, actions = rows[0].shape[:2]
        d_rows = torch.bmm(weighting, rows[0], out=work.take("d_rows 0", *rows[0].shape))
        d_var = 0.5 * torch.einsum("bah,bah->bh", d_rows, rows[0])
        d_rows.mul_(var[:, None])
        gradients = []
        for index, layer in enumerate(layers):
            width = layer.gain.shape[1]
            d_scaled = work.take(f"d_rows {(index + 1) % 2}", count, actions, width)
            mm(d_rows.flatten(0, 1), network.seen[index].t(), out=d_scaled.flatten(0, 1))
            weighted = torch.bmm(weighting, rows[index + 1], out=work.take("scaled", count, actions, width))
            d_gain, d_residual = (work.take(f"d_{name} {index}", count, width) for name in ("gain", "residual"))
            native.rows_backward(rows[index + 1], d_scaled, weighted, layer.gain, layer.residual, d_gain, d_residual)
            mm(weighted.flatten(0, 1).t(), d_rows.flatten(0, 1), out=self.seen[index], add=True)
            gradients.append((d_gain, d_residual))
            d_rows = d_scaled
        self.seen[-1].add_(d_rows.sum(0))
        return gradients, d_var

    def _units(
        self,
        layers: Sequence[_Layer],
        from_rows: Sequence[tuple[Tensor, Tensor]],
        from_curvature: tuple[Tensor, Tensor] | None,
        d_out_mean: Tensor,
        mean: Tensor,
        var: Tensor,
        tile: slice,
    ) -> None:
        """Back through the units, from the outputs to the inputs."""
        network, work = self.network, self.work
        mm(d_out_mean.t(), layers[-1].out[0] if layers else mean, out=self.weights[-1], add=True)
        self.biases[-1].add_(d_out_mean.sum(0))
        d_out, d_rest = (d_out_mean @ network.weights[-1])[None], None
        for index in reversed(range(network.hidden)):
            layer, (d_gain, d_residual), last = layers[index], from_rows[index], index == network.hidden - 1
            d_curvature, d_tangents = from_curvature if last and from_curvature is not None else (None, None)
            d_pre = work.take("d_pre", *layer.pre.shape)
            d_pre_rest = work.take("d_pre_rest", *layer.pre_rest.shape)
            native.units_backward(
                network.activation,
                layer.pre,
                network.biases[index],
                layer.pre_rest,
                index == 0,
                d_out,
                d_rest,
                d_gain,
                d_residual,
                d_curvature,
                d_pre,
                d_pre_rest,
            )
            if d_tangents is not None:
                d_pre[1:].add_(d_tangents.transpose(0, 1))
            self.biases[index].add_(d_pre[0].sum(0))
            weight, square = network.weights[index], network.squares[index]
            if index > 0:
                below = layers[index - 1]
                assert below.rest is not None
                mm(d_pre.flatten(0, 1).t(), below.out.flatten(0, 1), out=self.weights[index], add=True)
                mm(d_pre_rest.t(), below.rest, out=self.squares[index], add=True)
                d_out = work.take("d_out", d_pre.shape[0], len(mean), weight.shape[1])
                mm(d_pre.flatten(0, 1), weight, out=d_out.flatten(0, 1))
                d_rest = mm(d_pre_rest, square, out=work.take("d_rest", len(mean), weight.shape[1]))
                continue
            inputs = work.take("inputs", network.tangents, *var.shape)
            mm(d_pre[0].t(), mean, out=self.weights[0], add=True)
            mm(d_pre[1:].flatten(0, 1).t(), inputs.flatten(0, 1), out=self.seen[0], add=True)
            mm(d_pre_rest.t(), var, out=self.squares[0], add=True)
            mm(d_pre[0], weight, out=self.mean[tile])
            mm(d_pre_rest, square, out=self.var[tile], add=True)
            d_inputs = (d_pre[1:].flatten(0, 1) @ network.seen[0]).view_as(inputs)
            d_std = (d_inputs * network.across).sum(0)
            self.var[tile].addcdiv_(d_std, (var + SMALLEST_VAR).sqrt_(), value=0.5)
        if not layers:
            mm(d_out_mean, network.weights[-1], out=self.mean[tile])

    def finish(self) -> Gradients:
        """The gradient of every tensor, once all tiles are added."""
        for seen, d_seen, d_square in zip(self.network.seen, self.seen, self.squares, strict=False):
            d_seen.addcmul_(seen, d_square, value=2)
        return {"mean": self.mean, "var": self.var, "weights": self.weights, "biases": self.biases}


def backward(request: Backward[MlpCovarianceInputs, MlpCovarianceOutputs]) -> Gradients:
    """The gradient of every tensor but the directions."""
    inputs, d_outputs = request.inputs, request.d_outputs
    mean, var, network = inputs.mean, inputs.var, _Network(inputs)
    gradients = _TiledGradients(network, mean, var)
    for begin in range(0, mean.shape[0], network.tile):
        tile = slice(begin, begin + network.tile)
        gradients.tile(tile, d_outputs.mean[tile], d_outputs.covariance[tile], mean[tile], var[tile])
    return gradients.finish()
