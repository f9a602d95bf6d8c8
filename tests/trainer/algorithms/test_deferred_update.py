"""The update as on a GPU, run on a CPU: the host looks once an epoch, and the device leaves out what is not finite."""

from __future__ import annotations

import contextlib
import math

import pytest
import torch
from helpers.trainer.host_reads import host_reads
from helpers.trainer.synthetic import TurningEnv, adam_state, construct, rollout, same, weights

from p3kernels.backends import standing_in_for_a_gpu
from trainer.algorithms.guarded_step import GuardedStep, Tally
from trainer.algorithms.rows import ALIGNED, PackedRows
from trainer.models.ranks import ONE_RANK
from triton_kernels.launch import started_instead

EPOCHS, MINIBATCHES = 2, 2


def filled(method="mm", *, deferred=True, **algorithm):
    """After a first rollout, ready to update, with everything it says."""
    torch.manual_seed(3)
    env = TurningEnv()
    made = construct(method, env, **algorithm)
    made.deferred = deferred
    made.set_learning_rate(made.learning_rate)
    made.said = []
    made.report = made.said.append
    rollout(made, env)
    return made


@pytest.mark.parametrize("method", ["mm", "mc(2)", "vae", "spr", "ae"])
def test_the_same_numbers_as_step_by_step(method):
    """Up to the learning rate, which is a float32 tensor on a GPU."""
    together, one_by_one = filled(method), filled(method, deferred=False)
    torch.manual_seed(4)
    losses = together.update()
    torch.manual_seed(4)
    expected = one_by_one.update()
    assert losses.keys() == expected.keys()
    for name, value in expected.items():
        assert losses[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    after = weights(one_by_one)
    for name, weight in weights(together).items():
        torch.testing.assert_close(weight, after[name], rtol=1e-4, atol=1e-6)
    assert together.learning_rate == one_by_one.learning_rate


@pytest.mark.parametrize("as_on_gpu", [False, True])
@pytest.mark.parametrize("method", ["mm", "mc(2)", "spr"])
def test_the_host_reads_once_an_epoch(method, as_on_gpu):
    """On a CPU, and the way of a GPU, with launches that are left out: nothing may depend on what they write."""
    algorithm = filled(method, schedule="adaptive", desired_kl=0.01)
    algorithm._left_out_unseen = lambda *_, **__: None
    prepared = algorithm._prepared(algorithm._rollout())
    algorithm._prepared = lambda _: prepared
    algorithm._rollout = dict
    algorithm._finish = lambda: None
    with contextlib.ExitStack() as stack:
        if as_on_gpu:
            pytest.importorskip("triton")
            stack.enter_context(standing_in_for_a_gpu())
            stack.enter_context(started_instead(lambda *_: None))
        found = stack.enter_context(host_reads())
        algorithm.update()
    assert found == ["tolist"] * EPOCHS


def test_a_rollout_step_reads_nothing():
    algorithm, env = filled(), TurningEnv()
    algorithm.storage.clear()
    algorithm._finite = lambda observations: observations  # looks, on a CPU, where that costs nothing
    algorithm._mend_weights = lambda when: None  # looks once a rollout
    with torch.inference_mode():
        obs, reward, done, extras = env.step(torch.zeros(16, 4))
        with host_reads() as found:
            algorithm.act(obs)
            algorithm.process_env_step(obs, reward, done, extras)
    assert found == []


@pytest.mark.parametrize("broken", [0, 1, 3])
def test_one_gradient_that_is_not_finite_skips_exactly_that_step(broken):
    algorithm = filled("spr" if broken == 1 else "mm")
    before, states, calls = [], [], []
    step = algorithm.optimizer.step

    def watched():
        before.append(weights(algorithm))
        step()
        states.append((weights(algorithm), adam_state(algorithm), target()))

    def target():
        own = getattr(algorithm.actor, "target_encoder", None)
        return [] if own is None else [parameter.clone() for parameter in own.parameters()]

    def hook(gradient):
        calls.append(None)
        return gradient * math.nan if len(calls) == broken + 1 else gradient

    algorithm.optimizer.step = watched
    targets = [target()]
    after_step = algorithm.actor.after_step
    algorithm.actor.after_step = lambda taken: (after_step(taken), targets.append(target()))
    algorithm.actor.encoder.scan_head.weight.register_hook(hook)
    losses = algorithm.update()
    assert losses["skipped_steps"] == algorithm.skipped_steps == 1
    assert all(math.isfinite(value) for value in losses.values())
    for number in range(EPOCHS * MINIBATCHES):
        assert same(before[number], states[number][0]) is (number == broken)
    steps = algorithm.optimizer.state[algorithm.actor.log_std]["step"]
    assert steps.item() == EPOCHS * MINIBATCHES - 1
    if broken:
        assert same(states[broken][1], states[broken - 1][1]), "nothing of the optimiser has moved"
        assert same(targets[broken + 1], targets[broken]), "nor a target network"
    assert len(algorithm.said) == 1
    assert algorithm.said[0].startswith("update 1: ")
    assert algorithm.said[0].endswith("; step left out")


def test_what_broke_is_named_although_it_is_seen_later():
    algorithm = filled()
    algorithm.storage.returns[0, 0] = math.nan
    losses = algorithm.update()
    assert losses["skipped_steps"] == EPOCHS
    assert algorithm.said == ["update 1: returns has NaN; step left out"]


def test_nothing_but_broken_steps():
    algorithm = filled()
    algorithm.storage.returns.fill_(math.nan)
    before = weights(algorithm)
    losses = algorithm.update()
    assert losses["skipped_steps"] == EPOCHS * MINIBATCHES
    assert same(weights(algorithm), before)
    assert "value" not in losses


def test_the_learning_rate_is_one_tensor_that_a_graph_can_read():
    algorithm = filled()
    rate = algorithm.optimizer.param_groups[0]["lr"]
    algorithm.set_learning_rate(0.25)
    assert algorithm.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25
    assert algorithm.optimizer.param_groups[0]["capturable"] is True
    algorithm._good.remember()
    algorithm._good.restore()
    algorithm.set_learning_rate(0.5)
    assert algorithm.optimizer.param_groups[0]["lr"] is rate


def test_a_checkpoint_of_a_gpu_continues_on_a_cpu_and_back():
    on_gpu = filled()
    on_gpu.update()
    saved = on_gpu.save()
    assert all(type(group["lr"]) is float for group in saved["optimizer_state_dict"]["param_groups"])
    on_cpu = filled(deferred=False)
    on_cpu.load(saved, None, True)
    assert on_cpu.optimizer.param_groups[0]["lr"] == on_gpu.learning_rate
    again = filled()
    again.load(on_cpu.save(), None, True)
    assert again.optimizer.param_groups[0]["lr"] is again._rate
    assert same(weights(again), weights(on_gpu))


def test_minibatches_are_alike():
    """Static shapes and strides, and no new rows but by number: what a CUDA graph replays."""
    algorithm = filled()
    rollout_data = algorithm._prepared(algorithm._rollout())
    first, second, *_ = algorithm._minibatches(rollout_data)
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert (value.shape, value.stride(), value.dtype) == (
            second[name].shape,
            second[name].stride(),
            second[name].dtype,
        ), name


def test_packed_rows():
    tensors = {"a": torch.randn(6, 3), "b": torch.randn(6), "c": torch.randn(6, 2, 2), "n": torch.arange(6)}
    packed, rows = PackedRows(tensors), torch.tensor([4, 0, 4])
    for name, value in packed.rows(rows).items():
        assert torch.equal(value, tensors[name][rows]), name
    for name, value in packed.columns().items():
        assert torch.equal(value, tensors[name]), name
    assert all(value.storage_offset() % ALIGNED == 0 for value in packed.columns().values())


def test_tally():
    tally = Tally("cpu", ONE_RANK)
    assert tally.end_epoch() == ({}, [])
    yes, no = torch.tensor(True), torch.tensor(False)
    tally.add(yes, {"loss": torch.tensor(1.0), "kl": torch.tensor(2.0)})
    tally.add(no, {"loss": torch.tensor(math.nan), "kl": torch.tensor(math.inf)})
    tally.add(yes, {"kl": torch.tensor(4.0), "loss": torch.tensor(2.0)})
    assert tally.end_epoch() == ({"loss": 1.5, "kl": 3.0}, [1])
    tally.add(yes, {"loss": torch.tensor(6.0), "kl": torch.tensor(0.0)})
    tally.skip(no)
    assert tally.end_epoch() == ({"loss": 6.0, "kl": 0.0}, [1])
    assert tally.means == {"loss": 3.0, "kl": 2.0}
    assert tally.steps == 3


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite(deferred, value):
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([parameter], 0.1, fused=True)
    step = GuardedStep(optimizer, [[parameter]], 1.0, ONE_RANK, deferred=deferred)
    parameter.grad = torch.ones(3)
    assert not step(torch.tensor(value))
    assert torch.equal(parameter, torch.ones(3))
    parameter.grad = torch.ones(3)
    assert step(torch.tensor(1.0))
    assert not torch.equal(parameter, torch.ones(3))
