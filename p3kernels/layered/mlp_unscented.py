"""The unscented transform through a whole MLP on a CPU: tiles of rows with all their points, made again backward."""

from __future__ import annotations

import torch
from torch import Tensor

from p3kernels.cpu import native
from p3kernels.layered.products import mm
from p3kernels.layered.workspace import Workspace
from p3kernels.records import Backward, Gradients, MlpCovarianceInputs, MlpCovarianceOutputs, activation_of
from p3kernels.reference.mlp_covariance import SMALLEST_VAR
from p3kernels.reference.mlp_unscented import point_directions

TILE_POINTS = 4096


class _Pass:
    """The points of one tile of R rows at a time, [2 J, R, ·]: the first J with + and the others with −."""

    def __init__(self, inputs: MlpCovarianceInputs) -> None:
        var, weights = inputs.var, inputs.weights
        self.weights, self.biases = weights, [bias.contiguous() for bias in inputs.biases]
        self.activation = activation_of(inputs)
        self.stochastic = var.shape[1]
        self.seen = weights[0][:, weights[0].shape[1] - self.stochastic :]
        self.directions = point_directions(self.stochastic, var.dtype, var.device)[:, None]
        self.tile = max(1, TILE_POINTS // (2 * self.stochastic))
        self.work = Workspace(var)

    def steps(self, var: Tensor) -> Tensor:
        """[J, R, J]: from the mean to the points."""
        std = (var + SMALLEST_VAR).sqrt_()
        return torch.mul(self.directions, std, out=self.work.take("steps", self.stochastic, *var.shape))

    def points(self, mean: Tensor, var: Tensor) -> tuple[list[Tensor], Tensor]:
        """The hidden layers' activations [2 J, R, H] and the outputs [2 J, R, A]."""
        count, rows, half = 2 * self.stochastic, len(mean), self.stochastic
        centre = mm(mean, self.weights[0].t(), bias=self.biases[0])
        pre = self.work.take("points 0", count, rows, centre.shape[1])
        mm(self.steps(var).flatten(0, 1), self.seen.t(), out=pre[:half].flatten(0, 1))
        torch.neg(pre[:half], out=pre[half:])
        if len(self.weights) == 1:
            return [], pre.add_(centre)
        native.activation_forward(self.activation, pre.flatten(0, 1), centre, pre)
        layers = [pre]
        for index, (weight, bias) in enumerate(zip(self.weights[1:], self.biases[1:], strict=True), 1):
            out = self.work.take(f"points {index}", count, rows, weight.shape[0])
            mm(layers[-1].flatten(0, 1), weight.t(), out=out.flatten(0, 1))
            if index == len(self.weights) - 1:
                return layers, out.add_(bias)
            native.activation_forward(self.activation, out.flatten(0, 1), bias[None], out)
            layers.append(out)
        raise AssertionError  # the last layer has returned


def forward(inputs: MlpCovarianceInputs) -> MlpCovarianceOutputs:
    """Mean [B, A] and covariance [B, A, A]."""
    mean, var = inputs.mean, inputs.var
    network, actions = _Pass(inputs), inputs.weights[-1].shape[0]
    out_mean, covariance = mean.new_empty(len(mean), actions), mean.new_empty(len(mean), actions, actions)
    for begin in range(0, len(mean), network.tile):
        tile = slice(begin, begin + network.tile)
        _, out = network.points(mean[tile], var[tile])
        torch.mean(out, 0, out=out_mean[tile])
        deviation = out.sub_(out_mean[tile]).transpose(0, 1)
        covariance[tile].baddbmm_(deviation.mT, deviation, beta=0, alpha=1 / len(out))
    return MlpCovarianceOutputs(out_mean, covariance)


def backward(request: Backward[MlpCovarianceInputs, MlpCovarianceOutputs]) -> Gradients:
    """The gradient of every tensor."""
    inputs, d_out_mean, d_covariance = request.inputs, request.d_outputs.mean, request.d_outputs.covariance
    mean, var, weights, biases = inputs.mean, inputs.var, inputs.weights, inputs.biases
    network, half = _Pass(inputs), var.shape[1]
    d_mean, d_var = mean.new_empty(mean.shape), var.new_empty(var.shape)
    d_weights = [weight.new_zeros(weight.shape) for weight in weights]
    d_biases = [bias.new_zeros(bias.shape) for bias in biases]
    d_seen = d_weights[0][:, weights[0].shape[1] - half :]
    for begin in range(0, len(mean), network.tile):
        tile = slice(begin, begin + network.tile)
        layers, out = network.points(mean[tile], var[tile])
        weighting = d_covariance[tile] + d_covariance[tile].mT
        # The deviations sum to 0, so the mean inside them adds nothing.
        deviation = out.sub_(out.mean(0)).transpose(0, 1)
        d_points = (deviation @ weighting + d_out_mean[tile, None]).transpose(0, 1).contiguous() / len(out)
        for index in reversed(range(1, len(weights))):
            mm(d_points.flatten(0, 1).t(), layers[index - 1].flatten(0, 1), out=d_weights[index], add=True)
            d_biases[index].add_(d_points.sum((0, 1)))
            below = network.work.take(f"d_points {index % 2}", *layers[index - 1].shape)
            mm(d_points.flatten(0, 1), weights[index], out=below.flatten(0, 1))
            native.activation_backward(network.activation, layers[index - 1], below, below)
            d_points = below
        d_centre, d_shift = d_points.sum(0), (d_points[:half] - d_points[half:]).flatten(0, 1)
        steps = network.steps(var[tile])
        mm(d_centre.t(), mean[tile], out=d_weights[0], add=True)
        d_biases[0].add_(d_centre.sum(0))
        mm(d_shift.t(), steps.flatten(0, 1), out=d_seen, add=True)
        mm(d_centre, weights[0], out=d_mean[tile])
        d_std = ((d_shift @ network.seen).view_as(steps) * network.directions).sum(0)
        torch.div(d_std, 2 * (var[tile] + SMALLEST_VAR).sqrt_(), out=d_var[tile])
    return {"mean": d_mean, "var": d_var, "weights": d_weights, "biases": d_biases}
