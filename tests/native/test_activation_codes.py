from __future__ import annotations

import pytest

from p3kernels.backends import load_extension
from triton_kernels.activation_codes import ELU, LEAKY_RELU, NAMES


def test_cpp_has_the_codes_of_python():
    extension, reason = load_extension()
    if extension is None:
        pytest.skip(reason)
    assert extension.activations == {name: code for code, name in enumerate(NAMES)}
    assert (NAMES[ELU], NAMES[LEAKY_RELU]) == ("elu", "leaky_relu")
