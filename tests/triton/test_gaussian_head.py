from __future__ import annotations

import torch
from helpers.device_cases import GaussianHeadCases

from triton_kernels import gaussian_head as kernel
from triton_kernels.proof.record import recording


class TestGaussianHead(GaussianHeadCases):
    pass


def test_std_of_each_row_and_each_output_alone():
    TestGaussianHead().assert_each_output_alone_with_a_std_of_each_row()


def test_columns_of_a_wider_matrix_are_read_where_they_are():
    """As a minibatch's are: no copies."""
    wide, action_std = torch.randn(5, 64).abs() + 0.1, torch.rand(3) + 0.1
    inputs = [wide[:, at : at + 3] for at in (0, 4, 8, 12, 16)]
    inputs.insert(3, action_std)
    with recording() as launches:
        kernel.forward(*inputs)
    (launch,) = launches
    assert launch.arguments["action_ptr"].data_ptr() == wide.data_ptr()
    assert (launch.arguments["stride_action"], launch.arguments["stride_std"]) == (64, 0)
    for found, expected in zip(kernel.forward(*inputs), kernel.forward(*map(torch.clone, inputs)), strict=True):
        assert torch.equal(found, expected)
