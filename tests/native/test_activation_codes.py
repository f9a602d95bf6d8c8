from __future__ import annotations

import pytest

from p3kernels.activations import ELU, LEAKY_RELU
from p3kernels.backends import load_extension


def test_cpp_has_the_codes_of_python():
    extension, reason = load_extension()
    if extension is None:
        pytest.skip(reason)
    assert extension.activations == {"elu": ELU, "leaky_relu": LEAKY_RELU}


def test_triton_has_the_codes_of_python():
    pytest.importorskip("triton")
    from triton_kernels.kernels import moments_math

    assert (moments_math.ELU.value, moments_math.LEAKY_RELU.value) == (ELU, LEAKY_RELU)
