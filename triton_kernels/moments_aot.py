"""What one MM forward and backward of the G1 actor launches, and a rollout's forward, for ahead-of-time proof.

Bytes are DRAM's, four an element, counted from the tilings by two rules. What several blocks of columns read again
counts once: they are neighbours in the grid and run together, and what 132 processors hold at a time, two operands of
64 rows and the weights, is below 40 MB of the 50 MB L2. What a program writes and itself reads or overwrites again
right away (the tile that an activation is applied to, a rollout's scratch) counts as one write: it is in L2 meanwhile.
"""

from __future__ import annotations

import itertools
from typing import Any

import triton

from triton_kernels import launch, linear_elu_moments, linear_weight_gradients, mlp_moments
from triton_kernels.launch import AotCase
from triton_kernels.moments_math import ELU, NONE

ACTOR = (209, 512, 256, 128, 29)
STOCHASTIC = 110
TRAINING_ROWS, ROLLOUT_ROWS = 24576, 4096
PRECISIONS = ("ieee", "tf32x3", "tf32", "bf16")
_ELEMENT = 4


def aot_cases() -> list[AotCase]:
    """Every launch of the actor in every precision; a training minibatch layer by layer, a rollout in one launch."""
    found = []
    for precision in PRECISIONS:
        for layer in range(len(ACTOR) - 1):
            found.append(_forward(layer, precision))
            found.append(_input_gradient(layer, precision))
        found += _weight_gradients(precision)
        found.append(_rollout(precision))
    return found


def _case(
    function: Any,
    values: dict[str, Any],
    constexprs: dict[str, Any],
    config: launch.Config,
    sizes: tuple[int, int, int],
    **rest: Any,
) -> AotCase:
    """A case from the values of the arguments: None stands for a pointer, a tuple for one entry a layer.

    As the JIT has it, an integer 1 is a constant and multiples of 16 are known to be that. `sizes` are bytes moved,
    compulsory bytes and operations.
    """
    constants = {name: value for name, value in values.items() if type(value) is int and value == 1}
    blocks = {name: value for name, value in config.items() if not name.startswith("num_")}
    return AotCase(
        kernel=function.__name__.lstrip("_"),
        function=function,
        signature={name: _type(value) for name, value in values.items() if name not in constants},
        constexprs={**constexprs, **blocks, **constants},
        config=config,
        bytes_moved=sizes[0],
        compulsory_bytes=sizes[1],
        flops=sizes[2],
        tensor_core=constexprs.get("PRECISION", "ieee") != "ieee",
        default=True,
        divisible_by_16=tuple(name for name, value in values.items() if type(value) is int and value % 16 == 0),
        **rest,
    )


def _type(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_type(entry) for entry in value)
    return "*fp32" if value is None else "fp32" if isinstance(value, float) else "i32"


def _pointers(*names: str) -> dict[str, None]:
    return {f"{name}_ptr": None for name in names}


def _layer(layer: int) -> tuple[int, int, int, str]:
    """I, J, O of a layer, and the shape in words."""
    inputs, outputs = ACTOR[layer : layer + 2]
    stochastic = STOCHASTIC if layer == 0 else inputs
    return inputs, stochastic, outputs, f"B={TRAINING_ROWS} I={inputs} J={stochastic} O={outputs}"


def _forward(layer: int, precision: str) -> AotCase:
    inputs, stochastic, outputs, shape = _layer(layer)
    rows, activated = TRAINING_ROWS, layer < len(ACTOR) - 2
    config = linear_elu_moments.forward_config(rows, inputs, outputs, precision)
    reads = rows * (inputs + stochastic) + outputs * (inputs + 1)
    written = 2 * rows * outputs
    return _case(
        linear_elu_moments._linear_elu_moments_fwd_kernel,
        {
            **_pointers("mean", "var", "weight", "bias", "pre_mean", "pre_var", "out_mean", "out_var"),
            "rows": rows,
            "inputs": inputs,
            "deterministic": inputs - stochastic,
            "outputs": outputs,
            "stride_mean": inputs,
            "stride_var": stochastic,
            "stride_weight": inputs,
            "parameter": 1.0,
        },
        {
            "ACTIVATION": ELU.value if activated else NONE.value,
            "HAS_BIAS": True,
            "SPLIT": stochastic < inputs,
            "PRECISION": precision,
        },
        config,
        # Pre-activation moments for the backward pass, activation moments for the next layer: either would do.
        (
            _ELEMENT * (reads + written * (2 if activated else 1)),
            _ELEMENT * (reads + written),
            2 * rows * outputs * (inputs + stochastic),
        ),
        shape=shape,
        grid=triton.cdiv(rows, config["BLOCK_ROWS"]) * triton.cdiv(outputs, config["BLOCK_OUT"]),
        precision=precision,
        mm_launches=1,
    )


def _input_gradient(layer: int, precision: str) -> AotCase:
    inputs, stochastic, outputs, shape = _layer(layer)
    rows, first = TRAINING_ROWS, layer == 0
    deterministic = inputs - stochastic
    config = linear_elu_moments.input_gradient_config(rows, inputs, outputs, precision, first)
    columns = triton.cdiv(deterministic, config["BLOCK_IN"]) + triton.cdiv(stochastic, config["BLOCK_IN"])
    moments = rows * (inputs + stochastic)
    least = 2 * rows * outputs + outputs * inputs + moments + (0 if first else moments)
    return _case(
        linear_elu_moments._linear_elu_moments_bwd_input_kernel,
        {
            **_pointers("d_out_mean", "d_out_var", "weight", "below_mean", "below_var"),
            **_pointers("d_mean", "d_var", "in_mean", "in_var"),
            "rows": rows,
            "inputs": inputs,
            "deterministic": deterministic,
            "first_column": 0,
            "outputs": outputs,
            "stride_d_mean": outputs,
            "stride_d_var": outputs,
            "stride_weight": inputs,
            "parameter": 1.0,
        },
        {
            "ACTIVATION": NONE.value if first else ELU.value,
            "SPLIT": deterministic > 0,
            "WRITE_MEAN": True,
            "WRITE_VAR": True,
            "WRITE_INPUTS": not first,
            "PRECISION": precision,
        },
        config,
        # The inputs are written again for the weights' gradients.
        (
            _ELEMENT * (least + (0 if first else moments)),
            _ELEMENT * least,
            2 * rows * outputs * (inputs + stochastic),
        ),
        shape=shape,
        grid=triton.cdiv(rows, config["BLOCK_ROWS"]) * columns,
        precision=precision,
        mm_launches=1,
    )


def _weight_gradients(precision: str) -> list[AotCase]:
    rows, layers, deterministic = TRAINING_ROWS, len(ACTOR) - 1, ACTOR[0] - STOCHASTIC
    sizes = [(outputs * inputs, outputs) for inputs, outputs in itertools.pairwise(ACTOR)]
    weights, parameters = sum(weight for weight, _ in sizes), sum(sum(size) for size in sizes)
    config = linear_weight_gradients.weight_config(rows, ACTOR, precision)
    tiles = linear_weight_gradients.tile_count(ACTOR, deterministic, config)
    rows_a_split = linear_weight_gradients.rows_a_split(rows, tiles, config["BLOCK_ROWS"])
    splits = triton.cdiv(rows, rows_a_split)
    moments = [ACTOR[0] + STOCHASTIC, *(2 * width for width in ACTOR[1:-1])]
    gradients = [2 * width for width in ACTOR[1:]]
    reads = rows * (sum(moments) + sum(gradients)) + weights
    none = (None,) * layers
    shape = f"B={rows} {'-'.join(map(str, ACTOR))} J={STOCHASTIC}"
    total = linear_weight_gradients.SUM_CONFIG
    return [
        _case(
            linear_weight_gradients._linear_weight_gradients_kernel,
            {
                **_pointers("mean", "var"),
                "hidden_mean_ptrs": none[1:],
                "hidden_var_ptrs": none[1:],
                "d_mean_ptrs": none,
                "d_var_ptrs": none,
                "weight_ptrs": none,
                "partial_ptr": None,
                "rows": rows,
                "rows_a_split": rows_a_split,
                "tiles": tiles,
                "parameters": parameters,
                "deterministic": deterministic,
                "widths": ACTOR,
                "stride_mean": ACTOR[0],
                "stride_var": STOCHASTIC,
                "stride_d_mean": ACTOR[-1],
                "stride_d_var": ACTOR[-1],
                "stride_weights": ACTOR[:-1],
            },
            {"LAYERS": layers, "SPLIT": deterministic > 0, "PRECISION": precision},
            config,
            (
                _ELEMENT * (reads + splits * parameters),
                _ELEMENT * reads,
                sum(2 * rows * outputs * inputs for inputs, outputs in zip(moments, ACTOR[1:], strict=True)),
            ),
            shape=shape,
            grid=tiles * splits,
            precision=precision,
            mm_launches=1,
        ),
        _case(
            linear_weight_gradients._sum_partials_kernel,
            {
                "partial_ptr": None,
                "out_ptrs": none + none,
                "sizes": tuple(size for pair in sizes for size in pair),
                "places": tuple(size for pair in sizes for size in pair),
                "parameters": parameters,
                "splits": splits,
            },
            {"OUTPUTS": 2 * layers},
            launch.tuned("sum_partials_kernel", (), total),
            (_ELEMENT * (splits + 1) * parameters, _ELEMENT * parameters, splits * parameters),
            shape=f"{parameters} parameters, {splits} parts",
            grid=sum(triton.cdiv(size, total["BLOCK"]) for pair in sizes for size in pair),
            precision=precision,
            mm_launches=1,
        ),
    ]


def _rollout(precision: str) -> AotCase:
    rows, layers = ROLLOUT_ROWS, len(ACTOR) - 1
    config = mlp_moments.one_launch_config(rows, ACTOR, precision)
    parameters = sum(outputs * (inputs + 1) for inputs, outputs in itertools.pairwise(ACTOR))
    moved = _ELEMENT * (rows * (ACTOR[0] + STOCHASTIC + 2 * ACTOR[-1]) + parameters)
    products = [ACTOR[0] + STOCHASTIC, *(2 * width for width in ACTOR[1:-1])]
    none = (None,) * layers
    return _case(
        mlp_moments._mlp_moments_fwd_kernel,
        {
            **_pointers("mean", "var"),
            "weight_ptrs": none,
            "bias_ptrs": none,
            **_pointers("scratch", "out_mean", "out_var"),
            "rows": rows,
            "widest": max(ACTOR[1:-1]),
            "deterministic": ACTOR[0] - STOCHASTIC,
            "widths": ACTOR,
            "stride_mean": ACTOR[0],
            "stride_var": STOCHASTIC,
            "stride_weights": ACTOR[:-1],
            "parameter": 1.0,
        },
        {
            "LAYERS": layers,
            "ACTIVATION": ELU.value,
            "BIASES": (1 << layers) - 1,
            "SPLIT": True,
            "PRECISION": precision,
        },
        config,
        # The scratch may yet be written back to DRAM once, when other work takes the cache.
        (
            moved + _ELEMENT * 4 * rows * max(ACTOR[1:-1]),
            moved,
            sum(2 * rows * outputs * inputs for inputs, outputs in zip(products, ACTOR[1:], strict=True)),
        ),
        shape=f"B={rows} {'-'.join(map(str, ACTOR))} J={STOCHASTIC}",
        grid=triton.cdiv(rows, config["BLOCK_ROWS"]),
        precision=precision,
    )
