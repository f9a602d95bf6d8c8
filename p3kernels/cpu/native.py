"""The native kernels, called with tensors: contiguous CPU tensors of one dtype in, addresses out."""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from p3kernels.activations import Activation
from p3kernels.backends import load_extension


def _run(name: str, like: Tensor, *arguments: Any) -> None:
    """Calls the kernel of a dtype with tensors as addresses, None as no address, and torch's number of threads."""
    extension, reason = load_extension()
    if extension is None:
        raise RuntimeError(f"backend 'cpu' cannot run: {reason}")
    function = getattr(extension, f"{name}_{'float32' if like.dtype == torch.float32 else 'float64'}", None)
    if function is None:
        raise RuntimeError(f"backend 'cpu' cannot run: the native extension has no {name}; it is older, build it again")
    function(*map(_plain, arguments), torch.get_num_threads())


def _plain(argument: Any) -> Any:
    if argument is None:
        return 0
    return argument.data_ptr() if isinstance(argument, Tensor) else argument


def moments_forward(
    activation: Activation, mean: Tensor, var: Tensor, bias: Tensor | None, out_mean: Tensor, out_var: Tensor
) -> None:
    """out = moments of activation(x + bias), x ~ N(mean, var); all [R, O], bias [O]. In place allowed."""
    rows, columns = (mean.shape[0], mean.shape[1]) if bias is not None else (1, mean.numel())
    _run("moments_forward", mean, *activation, mean, var, bias, out_mean, out_var, rows, columns)


def moments_backward(
    activation: Activation,
    mean: Tensor,
    var: Tensor,
    bias: Tensor | None,
    d_out_mean: Tensor,
    d_out_var: Tensor,
    d_mean: Tensor,
    d_var: Tensor,
    out_mean: Tensor | None = None,
    out_var: Tensor | None = None,
) -> None:
    """d_mean, d_var of `moments_forward`; `out_*` get the forward values again, to rounding. In place allowed."""
    rows, columns = (mean.shape[0], mean.shape[1]) if bias is not None else (1, mean.numel())
    given = (mean, var, bias, d_out_mean, d_out_var)
    _run("moments_backward", mean, *activation, *given, d_mean, d_var, out_mean, out_var, rows, columns)


def activation_forward(activation: Activation, x: Tensor, shift: Tensor, out: Tensor) -> None:
    """out [R, O] = activation(x + shift), shift [S, O] for row r being r mod S. In place allowed."""
    _run("activation_forward", x, *activation, x, shift, shift.shape[0], out, x.shape[0], x.shape[1])


def activation_backward(activation: Activation, out: Tensor, d_out: Tensor, d_x: Tensor) -> None:
    """d_x = d_out · activation′, from the activation's output. In place allowed."""
    _run("activation_backward", out, *activation, out, d_out, d_x, out.numel())


def product(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor, *, add: bool) -> None:
    """out [M, N], its rows contiguous, = a [M, K] b [K, N], in any layout, + bias [N] or, with `add`, + out."""
    (rows, inner), columns = a.shape, b.shape[1]
    given = (a, *a.stride(), b, *b.stride(), bias, add, out, out.stride(0))
    _run("product", a, *given, rows, columns, inner)


def _check_maps(maps: Tensor, tile: Tensor, *numbers: Tensor) -> None:
    """Refuses what the kernels would read as something else, or beyond the maps."""
    if tile.dtype != torch.int64 or any(tensor.dtype != torch.float32 for tensor in (maps, *numbers)):
        kinds = ", ".join(str(tensor.dtype) for tensor in (maps, *numbers))
        raise TypeError(f"height maps: expected float32 with tiles of int64, got {kinds} with {tile.dtype}")
    if not all(tensor.is_contiguous() for tensor in (maps, tile, *numbers)):
        raise ValueError("height maps: expected contiguous tensors")
    if tile.shape[0]:
        indices = tile.numpy()  # numpy's two passes cost a quarter of torch's one with its comparisons
        low, high = int(indices.min()), int(indices.max())
        if low < 0 or high >= maps.shape[0]:
            raise IndexError(f"height maps: expected tiles in [0, {maps.shape[0]}), got {low} to {high}")


def heights_at_points(maps: Tensor, tile: Tensor, points: Tensor, scale: float, middle: Tensor) -> Tensor:
    """[K, M]: heights in maps [T, rows, columns] of tile [K] int64, in the cells points [K, M, 2] · scale + middle [2].

    A point outside a map is taken to be in its outermost cells.
    """
    _check_maps(maps, tile, points, middle)
    count, size = points.shape[0], points.shape[1]
    heights = torch.empty(count, size)
    _run("heights_at_points", maps, maps, *maps.shape[1:], tile, points, scale, middle, heights, count, size)
    return heights


def height_scan(
    maps: Tensor, tile: Tensor, root: Tensor, scale: float, middle: Tensor, cos: Tensor, sin: Tensor, offsets: Tensor
) -> Tensor:
    """[K, S]: heights, as `heights_at_points`, at offsets [2, S] turned by cos and sin [K], around root [K, 3] · scale.

    Offsets are in cells; rows of root are contiguous.
    """
    _check_maps(maps, tile, middle, cos, sin, offsets)
    count, size = len(tile), offsets.shape[1]
    _check_rows("height_scan", (root, (3,)), count=count)
    heights = torch.empty(count, size)
    given = (tile, root, root.stride(0), scale, middle, cos, sin, offsets)
    _run("height_scan", maps, maps, *maps.shape[1:], *given, heights, count, size)
    return heights


class Orientation(NamedTuple):
    """What follows from the orientations and velocities of K robots, as float32."""

    yaw: Tensor
    """[K]: heading."""
    cos_yaw: Tensor
    """[K]."""
    sin_yaw: Tensor
    """[K]."""
    tilt: Tensor
    """[K]: the square of its sine."""
    uprightness: Tensor
    """[K]: exp(-10 tilt)."""
    gravity: Tensor
    """[K, 3]: in the body's frame."""
    body_velocity: Tensor
    """[K, 3]: in the body's frame."""
    planar_velocity: Tensor
    """[K, 2]: in the heading's."""


def orientation(quat: Tensor, velocity: Tensor) -> Orientation:
    """What follows from quat [K, 4] (w, x, y, z; body to world) and velocity [K, 3] in the world; rows contiguous."""
    count = quat.shape[0]
    _check_rows("orientation", (quat, (4,)), (velocity, (3,)), count=count)
    angles = torch.empty(5, count)
    gravity, body, planar = torch.empty(count, 3), torch.empty(count, 3), torch.empty(count, 2)
    given = (quat, quat.stride(0), velocity, velocity.stride(0))
    _run("orientation", quat, *given, angles, gravity, body, planar, count)
    yaw, cos, sin, tilt, uprightness = angles.unbind()
    return Orientation(yaw, cos, sin, tilt, uprightness, gravity, body, planar)


class Feet(NamedTuple):
    """What follows from the feet of K robots, as float32."""

    ground: Tensor
    """[K, F]: the terrain's height below the foot."""
    height: Tensor
    """[K, F]: the foot's above it."""
    speed: Tensor
    """[K, F]: horizontal."""
    contact: Tensor
    """[K, F] bool."""
    ground_below: Tensor
    """[K]: the lowest ground under loaded feet, or that under the lower foot; of a foot high above it, the foot."""
    drop: Tensor
    """[K, F, P]: how far the terrain at the sole's points lies below the lowest of them."""


def feet(
    maps: tuple[Tensor, Tensor, float, Tensor],
    position: Tensor,
    sole: Tensor,
    velocity: Tensor,
    force: Tensor,
    contact_force: float,
    on_an_edge: float,
) -> Feet:
    """What follows from position, velocity and force [K, F, 3] of feet, and sole [K, F, P, 3]; rows contiguous.

    Args:
        maps: Maps and tile, scale and middle, as `heights_at_points` has them.
        position: Of the feet.
        sole: Their points.
        velocity: Of the feet.
        force: On them.
        contact_force: Above which a foot bears load.
        on_an_edge: How far above the terrain a loaded foot stands on something else.
    """
    heights, tile, scale, middle = maps
    count, number, points, _ = sole.shape
    _check_maps(heights, tile, middle)
    each = ((x, (number, 3)) for x in (position, velocity, force))
    _check_rows("feet", (sole, (number, points, 3)), *each, count=count)
    if len(tile) != count:
        raise ValueError(f"feet: expected the tiles of {count} robots, got {len(tile)}")
    numbers, drop = torch.empty(3, count, number), torch.empty(count, number, points)
    contact, below = torch.empty(count, number, dtype=torch.bool), torch.empty(count)
    looked_up = (heights, *heights.shape[1:], tile, scale, middle)
    given = (part for x in (position, sole, velocity, force) for part in (x, x.stride(0)))
    found = (numbers, drop, contact, below)
    _run("feet", heights, *looked_up, *given, contact_force, on_an_edge, *found, count, number, points)
    ground, height, speed = numbers.unbind()
    return Feet(ground, height, speed, contact, below, drop)


def _check_rows(name: str, *tensors: tuple[Tensor, tuple[int, ...]], count: int) -> None:
    """Refuses what is not float32 [count, *shape] with contiguous rows."""
    for tensor, shape in tensors:
        if tensor.dtype != torch.float32:
            raise TypeError(f"{name}: expected float32, got {tensor.dtype}")
        if tensor.shape != (count, *shape):
            raise ValueError(f"{name}: expected shape {(count, *shape)}, got {tuple(tensor.shape)}")
        if tensor.stride()[1:] != _contiguous(shape):
            raise ValueError(f"{name}: expected contiguous rows")


@functools.cache
def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of this shape."""
    return tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))


class Taps(NamedTuple):
    """Entries of a matrix in groups, as int32: group g has those from start[g] to start[g + 1]."""

    start: Tensor
    """[G + 1]."""
    first: Tensor
    """[K]: what the groups are not, in the order output, input, weight: the first of the two."""
    second: Tensor
    """[K]: the second."""


def taps_forward(
    taps: Taps, weight: Tensor, bias: Tensor | None, activation: Activation | None, x: Tensor, out: Tensor
) -> None:
    """out [B, O] = activation(x Mᵀ + bias): x [B, I] in any layout; M [O, I] has the entries `taps`, by output.

    weight [T] is what entries share, bias [O]. Grouped by input, with the gradient of out as x, it is that of x.
    """
    code, parameter = (-1, 0.0) if activation is None else activation
    given = (*taps, weight, bias, code, parameter)
    _run("taps_forward", x, *given, x, *x.stride(), x.shape[1], out, *out.stride(), out.shape[1], x.shape[0])


def taps_weights(taps: Taps, d_out: Tensor, x: Tensor, d_weight: Tensor) -> None:
    """d_weight [T] of `taps_forward` from d_out [B, O] and x [B, I], in any layout; `taps` are grouped by weight."""
    given = (*taps, d_out, *d_out.stride(), d_out.shape[1], x, *x.stride(), x.shape[1], x.shape[0])
    _run("taps_weights", x, *given, d_weight, d_weight.numel())


def mixture_forward(action: Tensor, means: Tensor, std: Tensor, log_sum: Tensor) -> None:
    """log_sum [B] = log Σ_i N(action | means_i, std²): [B, A], [N, B, A], [A] | [B, A]."""
    actions = means.shape[2]
    _run("mixture_forward", means, action, means, std, actions if std.dim() == 2 else 0, log_sum, *means.shape)


def mixture_backward(
    action: Tensor,
    means: Tensor,
    std: Tensor,
    log_sum: Tensor,
    d_log_sum: Tensor,
    d_means: Tensor,
    d_action: Tensor,
    d_std: Tensor,
) -> None:
    """d_means [N, B, A] is written (may be `means`); d_action and d_std [B, A] are added to."""
    actions = means.shape[2]
    given = (action, means, std, actions if std.dim() == 2 else 0, log_sum, d_log_sum)
    _run("mixture_backward", means, *given, d_means, d_action, d_std, *means.shape)


def latent_backward(d_latent: Tensor, noise: Tensor, d_mean: Tensor, d_std: Tensor) -> None:
    """d_mean, d_std [R, Z] += Σ_i d_latent_i, Σ_i d_latent_i ∘ noise_i; d_latent [n, R, ≥ Z], noise [n, R, Z]."""
    samples, rows, columns = noise.shape
    _run("latent_backward", noise, d_latent, d_latent.shape[2], noise, d_mean, d_std, samples, rows, columns)


def normal(
    seed: Tensor | int, stream: int, first_sample: int, first_row: int, out: Tensor, numbers: Tensor | None = None
) -> None:
    """Fills out [n, R, Z] with the standard normals of samples first_sample.. and rows first_row.. .

    With `numbers`, int64 [R], row r has the normals of row numbers[r] instead.
    """
    samples, rows, columns = out.shape
    name, which = ("normal", first_row) if numbers is None else ("normal_of_rows", numbers)
    _run(name, out, int(seed), stream, first_sample, samples, which, rows, columns, out)


def units_forward(
    activation: Activation,
    pre: Tensor,
    bias: Tensor,
    pre_rest: Tensor,
    whole: bool,
    out: Tensor,
    rest: Tensor | None,
    gain: Tensor,
    residual: Tensor,
    curvature: Tensor | None,
) -> None:
    """Linearised units of a layer, from pre-activations to activations.

    pre and out [1 + K, R, O]: the means, without the bias [O], and K tangents; where `rest` is None `out` gets the mean
    alone and may be [1, R, O]. pre_rest [R, O] is the variance beside that of the tangents or, with `whole`, all of it.
    """
    given = (pre, pre.shape[0] - 1, bias, pre_rest, whole)
    _run("units_forward", pre, *activation, *given, out, rest, gain, residual, curvature, *pre.shape[1:])


def units_backward(
    activation: Activation,
    pre: Tensor,
    bias: Tensor,
    pre_rest: Tensor,
    whole: bool,
    d_out: Tensor,
    d_rest: Tensor | None,
    d_gain: Tensor,
    d_residual: Tensor,
    d_curvature: Tensor | None,
    d_pre: Tensor,
    d_pre_rest: Tensor,
) -> None:
    """d_pre [1 + K, R, O] and d_pre_rest [R, O] of `units_forward`; d_rest and d_curvature may be None as there."""
    given = (pre, pre.shape[0] - 1, bias, pre_rest, whole)
    gradients = (d_out, d_rest, d_gain, d_residual, d_curvature, d_pre, d_pre_rest)
    _run("units_backward", pre, *activation, *given, *gradients, *pre.shape[1:])


def rows_backward(
    rows: Tensor,
    d_scaled: Tensor,
    weighted: Tensor,
    gain: Tensor,
    residual: Tensor,
    d_gain: Tensor,
    d_residual: Tensor,
) -> None:
    """Through scaled = rows ∘ gain and rows diag(residual) rowsᵀ, [R, A, O] and [R, O].

    d_scaled becomes the gradient of rows; `weighted`, the covariance's gradient times rows, becomes `scaled`.
    """
    sizes = (rows.shape[1], rows.shape[0], rows.shape[2])
    _run("rows_backward", rows, rows, d_scaled, weighted, gain, residual, d_gain, d_residual, *sizes)
