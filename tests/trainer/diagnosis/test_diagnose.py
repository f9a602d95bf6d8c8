"""`p3 diagnose` on runs of seconds: numbers, figures, report, and what cannot be diagnosed."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from helpers.trainer.small_runs import assert_same, flattened, learned

from trainer import cli
from trainer.commands import diagnose
from trainer.diagnosis.files import CAPTIONS
from trainer.diagnosis.numbers import Sizes
from trainer.diagnosis.numbers import diagnose as numbers_of
from trainer.diagnosis.states import before_switch, gather
from trainer.runs.named_checkpoint import read_run_checkpoint


def trained(folder, method="p3", **options):
    return learned(folder, method, iterations=3, save_interval=1, **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Changes from MM to MC after 2 of 3 iterations."""
    return trained(tmp_path_factory.mktemp("diagnose") / "run", switch_at=2)


@pytest.fixture(scope="module")
def diagnosed(run):
    assert diagnose.main([str(run), "--quick"]) == 0
    return run


def numbers(folder):
    return json.loads((folder / "diagnose" / "diagnose.json").read_text(), parse_constant=pytest.fail)


def test_a_run_that_changed_gives_two_columns(diagnosed):
    found = numbers(diagnosed)
    assert found["settings"]["quick"] is True
    assert found["seconds"]["wall"] > 0
    assert list(found["checkpoints"]) == ["run/model_2", "run/model_3"]
    before, after = found["checkpoints"].values()
    assert before["summary"]["trained_with"] == "mm"
    assert after["summary"]["trained_with"] == "mc15"
    assert before["rollout"]["environments"] == "as in the checkpoint"


def test_the_order_of_data_efficiency(diagnosed):
    for found in numbers(diagnosed)["checkpoints"].values():
        shares = {name: row["share"] for name, row in found["data_efficiency"].items()}
        assert shares["MM"] == shares["CM"] == shares["MC(N=1), common latents"] == 1
        sampled = [shares[f"MC(N={count})"] for count in (1, 5, 15, 50)]
        assert sampled == sorted(sampled)


def test_every_diagnostic_has_its_rows(diagnosed):
    for found in numbers(diagnosed)["checkpoints"].values():
        closed = {"MM", "CM", "CM, unscented", "z = mean"}
        assert set(found["kl"]["closed_form"]) == set(found["variance_gap"]["estimators"]) == closed
        assert set(found["correlation"]["error"]) == closed
        assert closed < set(found["gradient_noise"])
        assert [point["num_samples"] for point in found["kl"]["points"]] == [1, 2, 5, 10, 15, 20, 30, 50, 100]
        assert -1e-3 < found["kl"]["reference"]["value"] < 1.0  # of samples, so it may be just below 0
        assert 0 < found["linearity"]["typical"]["r_squared"] <= 1
        assert len(found["variance_gap"]["sampled_std"]) == 6
        assert found["gradient_noise"]["MM"]["noise"] == 0
        assert found["gradient_noise"]["MC(N=1)"]["noise"] > 0
        assert "action_noise" not in found["gradient_noise"]["MM"]


def test_figures_tables_and_report(diagnosed):
    folder = diagnosed / "diagnose"
    assert {path.stem for path in folder.glob("*.png")} == set(CAPTIONS)
    for path in folder.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")
    text = (folder / "diagnose.md").read_text()
    assert "--quick: 128 states and few samples. Rough numbers, not results." in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert any(line.startswith("| trained with") and "mm" in line and "mc15" in line for line in lines)
    page = (diagnosed / "report.html").read_text()
    assert '<h2 id="diagnostics">Diagnostics</h2>' in page
    assert '<a href="#diagnostics">' in page
    assert page.count("data:image/png;base64,") == len(CAPTIONS)


TINY = Sizes(
    states=12,
    steps=8,
    kl_states=12,
    kl_reference=20,
    kl_counts=(1, 5),
    moment_states=8,
    moment_samples=20,
    linearity_states=1,
    test_states=2,
    test_samples=(20,),
    gradient_states=12,
    redraws=2,
    fidelity_redraws=2,
    fidelity_reference=20,
    noise_counts=(1, 2),
)


def plain(value):
    """None for NaN, which is not the same as itself."""
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def measured(checkpoint, seed):
    options = {"states": TINY.states, "steps": TINY.steps, "num_threads": 1, "say": lambda _: None}
    subject = gather(checkpoint, task=None, num_envs=None, seed=seed, **options)
    numbers = asdict(numbers_of(subject, TINY, clip=0.2, seed=seed, say=lambda _: None))
    return {name: plain(part) for name, part in numbers.items() if name != "seconds"}


def test_a_seed_repeats(run):
    checkpoint = read_run_checkpoint(run / "model_2.pt")
    one, again, other = (measured(checkpoint, seed) for seed in (1, 1, 2))
    assert_same(one, again)
    assert flattened(one) != flattened(other)


def test_the_update_is_one_epoch_from_the_policy_that_acted(run):
    subject = gather(
        read_run_checkpoint(run / "model_3.pt"),
        task=None,
        num_envs=None,
        states=50,
        steps=8,
        seed=1,
        num_threads=1,
        say=lambda _: None,
    )
    assert len(subject.states.context) == 6  # one snapshot of 6 environments
    assert len(subject.old.context) == len(subject.actions) == 36
    assert not torch.equal(subject.old.actor[0].weight, subject.new.actor[0].weight)
    assert torch.equal(subject.old.actor[0].weight, subject.states.actor[0].weight)
    # The context is normalised proprioception, then the velocity's estimate: the statistics are the same for both.
    assert torch.equal(subject.old.context[:, :-3], subject.new.context[:, :-3])
    assert not torch.equal(subject.old.context[:, -3:], subject.new.context[:, -3:])


def test_fresh_environments_and_their_warm_up(run, monkeypatch):
    monkeypatch.setattr("trainer.diagnosis.states.WARM_UP", 3)
    said = []
    options = {"states": 50, "steps": 8, "seed": 1, "num_threads": 1, "say": said.append}
    subject = gather(read_run_checkpoint(run), task=None, num_envs=4, **options)
    assert subject.settings["environments"] == "fresh"
    assert len(subject.old.context) == 4 * 6
    assert "4 environments (fresh, after 3 steps)" in said[0]


def test_only_a_later_checkpoint_has_one_before(run):
    assert before_switch(read_run_checkpoint(run)).path.name == "model_2.pt"
    assert before_switch(read_run_checkpoint(run / "model_2.pt")) is None
    assert before_switch(read_run_checkpoint(run / "model_1.pt")) is None


def test_a_certain_latent_is_nothing_to_diagnose(tmp_path, capsys):
    folder = trained(tmp_path / "run", "ae")
    assert cli.main(["diagnose", str(folder), "--quick"]) == 2
    message = capsys.readouterr().err
    assert "nothing to diagnose: ae has no latent distribution" in message
    assert not (folder / "diagnose").exists()


def test_mistakes_are_one_line_that_names_the_argument(run, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    shutil.copy(run / "config.json", foreign)
    (foreign / "model_1.pt").write_bytes(b"not a checkpoint")
    cases = (
        ([tmp_path / "nothing"], "CHECKPOINT: no run directory, no file and no policy"),
        ([tmp_path / "empty"], "CHECKPOINT: no config.json in"),
        ([foreign / "model_1.pt"], "not a torch file"),
        ([run, "--task", "g1-flat"], "--task: g1-flat does not fit a policy of walker-parkour"),
        ([run, "--task", "walker"], "--task: no task 'walker'"),
        ([run, "--states", "1"], "--states: expected at least 2, got 1"),
        ([run, "--num-envs", "0"], "--num-envs: expected at least 2, got 0"),
        ([run, "--seed", "-1"], "--seed: expected at least 0, got -1"),
        ([run / "model_3.pt", run / "model_3.pt"], "CHECKPOINT: expected each checkpoint once"),
    )
    for arguments, message in cases:
        assert cli.main(["diagnose", *map(str, arguments), "--quick"]) == 2, message
        captured = capsys.readouterr().err.splitlines()[-1]
        assert captured.startswith("p3 diagnose: ")
        assert message in captured
