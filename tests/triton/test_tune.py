"""The search for configurations, on costs that are known; a GPU is only needed to measure real ones."""

from __future__ import annotations

import json
import math

import pytest
import torch

from triton_kernels import launch, tune
from triton_kernels.proof.workloads import tuning_passes

START = {"BLOCK_M": 32, "num_warps": 4, "num_stages": 2}


def test_neighbours_are_one_step_away_and_launchable():
    found = list(tune.neighbours(START))
    assert {**START, "BLOCK_M": 64} in found
    assert {**START, "num_warps": 2} in found
    assert {**START, "num_stages": 3} in found
    assert len(found) == 6
    for config in found:
        assert sum(config[name] != START[name] for name in START) == 1
    corner = {"BLOCK_M": 16, "num_warps": 16, "num_stages": 1, "FLAG": True}
    assert list(tune.neighbours(corner)) == [
        {**corner, "BLOCK_M": 32},
        {**corner, "num_warps": 8},
        {**corner, "num_stages": 2},
    ]


def test_a_chunk_stays_within_its_block():
    config = {"BLOCK_ROWS": 32, "CHUNK_ROWS": 32}
    assert list(tune.neighbours(config)) == [{**config, "BLOCK_ROWS": 64}, {**config, "CHUNK_ROWS": 16}]


def test_search_walks_to_the_fastest_and_asks_once():
    asked = []

    def cost(config):
        asked.append(json.dumps(config, sort_keys=True))
        return 1 + abs(math.log2(config["BLOCK_M"]) - 8) + abs(config["num_stages"] - 4)

    best, after, before = tune.climb(cost, START)
    assert best == {**START, "BLOCK_M": 256, "num_stages": 4}
    assert (before, after) == (6, 1)
    assert len(asked) == len(set(asked))


def test_search_stays_where_nothing_is_clearly_faster():
    best, after, before = tune.climb(lambda config: 1.0 if config == START else 0.99, START)
    assert (best, after, before) == (START, 1.0, 1.0)
    best, *_ = tune.climb(lambda config: 1.0 if config == START else math.inf, START)
    assert best == START


def test_a_configuration_that_fails_or_differs_is_passed_over(monkeypatch):
    """The workload reads its configuration as a launcher does."""
    monkeypatch.setattr(tune, "_milliseconds", lambda workload: 1.0)

    def workload():
        config = launch.tuned("fwd", (209,), START)
        if config["BLOCK_M"] == 64:
            raise RuntimeError("out of resource: shared memory")
        return [torch.full((3,), 2.0 if config["BLOCK_M"] == 16 else 1.0)]

    cost = tune.cost_of(workload, "fwd(209)", repeats=1)
    assert cost(START) == 1.0
    assert cost({**START, "BLOCK_M": 64}) == math.inf
    assert cost({**START, "BLOCK_M": 16}) == math.inf


def test_tuning_finds_what_a_launcher_asks_for_and_keeps_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("P3_TUNED", str(tmp_path / "new" / "tuned.json"))
    used = {}

    def workload():
        used["fwd"] = launch.tuned("fwd", (209,), START)
        used["bwd"] = launch.tuned("bwd", (209,), START)
        return [torch.ones(2)]

    def milliseconds(_):
        workload()
        return 1.0 / used["fwd"]["BLOCK_M"] + 0.001 * used["bwd"]["num_stages"]

    monkeypatch.setattr(tune, "_milliseconds", milliseconds)
    found = tune.tune({"pass": workload}, repeats=1)
    assert found["fwd(209)"]["BLOCK_M"] == tune.LARGEST_BLOCK
    assert found["bwd(209)"]["num_stages"] == 1
    assert launch.tuned("fwd", (209,), START) == START, "nothing stays forced"
    assert "fwd(209)" in capsys.readouterr().out

    path = launch.cache_path()
    tune.save(path, "GPU (sm_90)", found)
    tune.save(path, "GPU (sm_90)", {"other()": START})
    tune.save(path, "another (sm_80)", {"other()": START})
    table = json.loads(path.read_text())
    assert set(table) == {"GPU (sm_90)", "another (sm_80)"}
    assert set(table["GPU (sm_90)"]) == {"fwd(209)", "bwd(209)", "other()"}
    assert [file.name for file in path.parent.iterdir()] == ["tuned.json"]


def test_every_entry_is_kept_at_once_and_the_time_is_limited(monkeypatch):
    """What is known is left out; before each entry the time is asked for; an entry that stays as it was is kept too."""

    def workload():
        for name in ("one", "two", "three"):
            launch.tuned(name, (), START)
        return [torch.ones(2)]

    monkeypatch.setattr(tune, "_milliseconds", lambda _: 1.0)
    kept, asked = {}, iter([False, True])
    found = tune.tune({"pass": workload}, 1, kept.__setitem__, {"one()"}, lambda: next(asked))
    assert found == {}
    assert kept == {"two()": START}


def test_results_are_compared():
    ones = [torch.ones(3)]
    assert tune.same_results([torch.ones(3) + 1e-6], ones)
    assert not tune.same_results([torch.ones(3) + 1e-3], ones)
    assert not tune.same_results([torch.full((3,), math.nan)], ones)
    assert not tune.same_results([torch.ones(4)], ones)
    assert not tune.same_results([], ones)
    assert tune.same_results([torch.ones(0)], [torch.ones(0)])


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    assert tune.main([]) == 2
    assert "TRITON_INTERPRET=1 is set" in capsys.readouterr().err
    monkeypatch.delenv("TRITON_INTERPRET")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert tune.main([]) == 2
    assert "no CUDA device answers torch: nothing was tuned" in capsys.readouterr().err


def test_wrong_arguments_are_named(capsys):
    with pytest.raises(SystemExit):
        tune.main(["--repeats", "0"])
    assert "--batch and --repeats: expected at least 1" in capsys.readouterr().err


def test_the_passes_that_are_tuned_run_and_ask_for_configurations(count_launches):
    """Launches of one pass: 2 that pack, 4 + 4 for layers, 1 for all weights, 1 for its sums; a rollout is one."""
    passes = tuning_passes(5, torch.device("cpu"), sizes=(9, 8, 7, 6, 5), stochastic=4, precisions=("ieee",))
    asked = {}
    for name, run in passes.items():
        with launch.recorded() as asked[name], count_launches() as launched:
            assert all(bool(tensor.isfinite().all()) for tensor in run())
        if name.startswith("moments"):
            assert sum(launched.values()) == 12
        if name.startswith("rollout"):
            assert sum(launched.values()) == 1
    assert all(asked.values())
