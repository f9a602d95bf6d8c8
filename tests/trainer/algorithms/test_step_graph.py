"""A minibatch's step as a graph: captured and replayed by a stand-in for CUDA's, on a CPU."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers.trainer.recorded_graph import RecordedGraph
from helpers.trainer.synthetic import TurningEnv, construct, rollout, same, weights

from trainer.algorithms.step_graph import WARM_UP, StepGraph
from trainer.models import dense


@pytest.fixture(autouse=True)
def modules_one_by_one(monkeypatch):
    """As on a GPU: the CPU's own kernels are called without torch's dispatcher, which the stand-in records by."""
    monkeypatch.setattr(dense, "_is_plain", lambda x: False)


def trained(graph, method="mm", updates=3, spoil=lambda algorithm, update: None):
    """Weights, losses and lines after some updates, all random numbers being the same."""
    torch.manual_seed(3)
    env = TurningEnv()
    algorithm = construct(method, env)
    algorithm.actor.estimator = dataclasses.replace(algorithm.actor.estimator, backend="reference")
    algorithm.deferred, algorithm.step_graph = True, graph
    algorithm.set_learning_rate(algorithm.learning_rate)
    algorithm.said = []
    algorithm.report = algorithm.said.append
    losses = []
    for update in range(updates):
        rollout(algorithm, env)
        spoil(algorithm, update)
        losses.append(algorithm.update())
    return algorithm, losses


@pytest.mark.parametrize("method", ["mm", "spr"])
def test_replayed_steps_are_the_steps(method):
    graph = StepGraph(RecordedGraph)
    algorithm, losses = trained(graph, method)
    expected, expected_losses = trained(None, method)
    assert graph.captures == 1
    assert same(weights(algorithm), weights(expected))
    assert losses == expected_losses
    assert algorithm.said == []


def test_a_step_that_is_not_finite_is_left_out_by_the_graph():
    def spoil(algorithm, update):
        if update == 2:
            algorithm.storage.returns[0, 0] = math.nan

    graph = StepGraph(RecordedGraph)
    algorithm, losses = trained(graph, spoil=spoil)
    expected, expected_losses = trained(None, spoil=spoil)
    assert graph.captures == 1
    assert losses[2]["skipped_steps"] == expected_losses[2]["skipped_steps"] > 0
    assert same(weights(algorithm), weights(expected))
    assert algorithm.said == expected.said == ["update 3: returns has NaN; step left out"]


def test_what_cannot_be_captured_is_said_once_and_done_all_the_same():
    class Refusing(RecordedGraph):
        def capture(self, function):
            raise RuntimeError("operation not permitted\nwhen stream is capturing")

    algorithm, losses = trained(StepGraph(Refusing))
    expected, expected_losses = trained(None)
    assert same(weights(algorithm), weights(expected))
    assert losses == expected_losses
    (line,) = algorithm.said
    assert line.startswith("no CUDA graph of an update's step: operation not permitted;")


def test_monte_carlo_goes_without():
    graph = StepGraph(RecordedGraph)
    algorithm, _ = trained(graph, "mc(2)", updates=2)
    assert graph.captures == 0
    assert len(algorithm.said) == 1
    assert "seed" in algorithm.said[0]


def test_another_key_is_another_graph():
    graph, total = StepGraph(RecordedGraph), torch.zeros(1)

    def step(rows):
        total.add_(rows.sum())
        return torch.ones((), dtype=torch.bool), {"total": total}

    for key in ("a", "b", "b"):
        for number in range(WARM_UP + 3):
            taken, _ = graph(step, torch.tensor([number, 1]), key, print)
            assert taken
    assert graph.captures == 2
    assert total == 3 * sum(number + 1 for number in range(WARM_UP + 3))
