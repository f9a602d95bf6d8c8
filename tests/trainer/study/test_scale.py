"""`p3 study scale`: the counting against numbers by hand, against more environments and against measured memory."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
from torch.utils._pytree import tree_leaves

from trainer import cli
from trainer.study import scale
from trainer.study.count import Call, Count, Counter, Size, count_update
from trainer.study.operators import totals
from trainer.training.synthetic import fill, make_algorithm
from triton_kernels.proof import model

FACTOR = 1.15
"""Between what the allocator gave and what was counted: it sees the scratch memory inside operations too."""


def test_by_hand():
    """x [1000, 10] W [10, 20], ELU, square, mean, in float32."""
    x, weight = torch.randn(1000, 10), torch.randn(10, 20, requires_grad=True)
    hidden = 1000 * 20 * 4
    counter = Counter([weight])
    with counter.counting():
        product = x @ weight
        assert (counter.live, counter.saved) == (hidden, 1000 * 10 * 4)  # x is saved; W is a parameter
        activated = torch.nn.functional.elu(product)
        assert (counter.live, counter.saved) == (2 * hidden, 40000 + hidden)
        loss = activated.square().mean()
        assert (counter.live, counter.peak) == (2 * hidden + 4, 3 * hidden + 4)  # the squares are gone again
        assert counter.saved == counter.saved_peak == 40000 + 2 * hidden
        assert counter.flops == 2 * 1000 * 10 * 20
        # product, ELU, square and mean: read and written
        assert counter.moved == (40000 + 800 + hidden) + 2 * hidden + 2 * hidden + (hidden + 4)
        del product, activated
        assert counter.live == 2 * hidden + 4  # the graph holds them
        loss.backward()
    assert counter.live == 800 + 4  # W's gradient and the loss
    assert counter.flops == 2 * 2 * 1000 * 10 * 20  # x needs no gradient
    assert counter.saved == 40000  # x is still here


def sizes(call):
    """The tensors of a call; weights of a row, which are floats, are those of the smaller update."""
    return [
        leaf
        for leaf in tree_leaves(call.arguments, is_leaf=lambda leaf: isinstance(leaf, Size))
        if isinstance(leaf, Size)
    ]


def test_linear_in_the_environments(monkeypatch):
    """Two small updates tell a larger one: the numbers that the page extrapolates, to a thousandth."""
    monkeypatch.undo()  # poisoned allocations would count as kernels
    small = [count_update("mm", num_envs, None) for num_envs in (48, 64)]
    assert all(count.minibatch_launches <= 150 for count in small)
    told, counted = small[0].at(small[1], (48, 64), 96), count_update("mm", 96, None)
    for name, value in counted.numbers().items():
        assert value > 0
        assert told.numbers()[name] == pytest.approx(value, rel=1e-3), name
    assert [call.operator for call in told.calls] == [call.operator for call in counted.calls]
    assert [sizes(call) for call in told.calls] == [sizes(call) for call in counted.calls]
    launched = totals(counted.calls, "ieee").launches + counted.launches
    assert launched > 20 * counted.minibatch_launches  # 5 epochs of 4, and what comes before them


CALL = Call("p3kernels::mlp_moments_triton", (), 100.0, times=3)


def moments_call(rows, weights=((512, 209), (256, 512), (128, 256), (29, 128)), save=False):
    """A call of `mlp_moments` of the G1 actor."""

    def size(*shape):
        return Size(shape, torch.empty(shape, device="meta").stride(), torch.float32)

    layers = [size(*shape) for shape in weights], [size(shape[0]) for shape in weights]
    arguments = (size(rows, 209), size(rows, 110), *layers, 0, 1.0, False, save, "ieee")
    return dataclasses.replace(CALL, arguments=arguments)


def test_an_operator_is_counted_at_its_own_size(monkeypatch):
    """The rollout of `triton_kernels/proof/model.json`: one launch of 40.8 MB; three times."""
    monkeypatch.undo()  # poisoned allocations would count as kernels
    expected = json.loads(model.TABLE.read_text())["rollout"]
    low, high = moments_call(64), moments_call(128)
    at_4096 = low.at(high, (4096 - 64) / 64)
    assert at_4096.arguments == moments_call(4096).arguments
    for precision in ("ieee", "tf32"):
        found = totals([at_4096], precision)
        assert found.launches == 3
        assert found.moved == 3 * expected[precision]["dram_bytes"]
        assert found.flops == 3 * expected[precision]["flops"]
        # Without instructions L2 binds in both.
        assert found.seconds == pytest.approx(3e-6 * expected[precision]["l2_us"], rel=0.01)
    outputs, scratch = 2 * 4096 * 29 * 4, 4 * 4096 * 512 * 4
    assert found.peak >= 100 + outputs + scratch
    training = totals([moments_call(24576, save=True)], "tf32")
    assert training.peak > 380e6, "what is kept for the backward pass is in it"


def allocated(call):
    """The most that torch's allocator had given out during `call`, as its profiler saw it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return max(live)


@pytest.mark.parametrize("method", ["simple-actor-critic", "mm"])
def test_counted_is_what_the_allocator_gave(method):
    algorithm, observations = make_algorithm(method, 96)
    algorithm.num_learning_epochs = 1
    fill(algorithm, observations)
    algorithm.update()
    fill(algorithm, observations)
    algorithm._good.remember = lambda: None  # a copy of the weights, which at 96 environments is most of it
    measured, counted = allocated(algorithm.update), count_update(method, 96, None, as_on_gpu=False).peak
    assert 1 / FACTOR < measured / counted < FACTOR


def made_up(scale_factor: float) -> Count:
    return Count(
        *(scale_factor * (1.0 + number) * 2**20 for number in range(len(dataclasses.fields(Count)) - 3))
    )  # the lists apart


def test_tables():
    config = scale.ScaleConfig(methods=("mc(5)", "simple-actor-critic"), num_envs=200, counted=(50, 100))
    counts = {
        "mc(5)": {"ours": [made_up(2), made_up(3)], "plain": [made_up(4), made_up(8)]},
        "simple-actor-critic": {"ours": [made_up(1), made_up(1)]},
    }
    section = scale.write_section(counts, config, "p3 study scale")
    row = next(line for line in section.splitlines() if line.startswith("| `mc(5)` |"))
    # At 200 environments ours is made_up(5) and plain made_up(16): saved is 4 of it, peak 5, whole 1 + 2 + 3 + 5.
    assert row.split(" | ")[1:7] == ["64", "20", "80", "25", "176", "55"]
    assert row.endswith("| 165 | 44 | 1820 | 14875 |")
    by_rank = [line for line in section.splitlines() if line.startswith(("| 1 |", "| 8 |"))]
    assert by_rank[0].endswith("| 0.00 |")
    assert not by_rank[1].endswith("| 0.00 |")


def test_command(tmp_path, monkeypatch, capsys):
    counts = {"simple-actor-critic": {"ours": [made_up(1), made_up(2)]}}
    monkeypatch.setattr(scale, "count_methods", lambda methods, counted: counts)
    page, out = tmp_path / "page.md", tmp_path / "counts.json"
    page.write_text("# Page\n")
    line = ["study", "scale", "--methods", "simple-actor-critic", "--docs", str(page), "--out", str(out)]
    assert cli.main(line) == 0
    assert "## Memory" in page.read_text()
    assert json.loads(out.read_text())["counts"]["simple-actor-critic"]["ours"][1]["peak"] == 10 * 2**20
    for wrong, message in (
        (["--methods", "mm"], "expected 'simple-actor-critic' among them"),
        (["--counted", "64", "48"], "--counted: expected two numbers"),
        (["--counted", "8", "16"], "--counted: expected at least 48, got 8"),
        (["--docs", str(tmp_path / "none.md")], "--docs: no"),
    ):
        assert cli.main(["study", "scale", *wrong]) == 2
        assert message in capsys.readouterr().err
