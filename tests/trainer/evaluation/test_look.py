"""A look at what was learnt: its words, its pictures, and the report that shows them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import forked

from trainer.commands import train_run as train
from trainer.evaluation.look import PICTURE, Look, read_look
from trainer.report.learnt import learnt_section

ROOT = Path(__file__).resolve().parents[3]
FOUND = Look("run/model_9", "plane", 16, 10.0, survived=1.0, followed=0.87, picture=PICTURE)


@pytest.mark.parametrize(
    ("survived", "followed", "verdict"),
    [
        (1.0, 0.87, "It walks: "),
        (0.9, 0.1, "It stands, and hardly goes: "),
        (0.9, 0.3, "It stays up, and goes too slowly: "),
        (0.2, 0.9, "It goes, and falls: "),
        (0.2, 0.1, "It falls: "),
    ],
)
def test_words(survived, followed, verdict):
    words = replace(FOUND, survived=survived, followed=followed).words
    assert words.startswith(verdict)
    assert f"{followed:.0%} of the distance" in words


def test_a_policy_that_walks(tmp_path):
    """In a process of its own, whose MuJoCo has not chosen its OpenGL yet."""
    program = "from pathlib import Path; from trainer.evaluation.look import look;"
    program += "print(look('g1-flat', Path('.'), episodes=2, seconds=2.0, frames=2).words)"
    done = forked.python("-c", program, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    found = read_look(tmp_path)
    assert found.words == done.stdout.strip()
    assert found.survived == 1.0
    assert found.followed > 0.2  # two seconds from standing still
    assert (tmp_path / PICTURE).exists() is (found.picture == PICTURE)
    page = learnt_section(tmp_path, [(1, "mm"), (9, "mc15")])
    assert found.words.split("%", maxsplit=1)[0] in page
    assert "estimated by mm from iteration 1, then mc15 from iteration 9" in page
    assert ("data:image/png" in page) is (found.picture == PICTURE)


def test_no_look_and_no_pictures(tmp_path):
    assert learnt_section(tmp_path, [(1, "mm")]) == ""
    (tmp_path / "look.json").write_text(json.dumps(vars(FOUND) | {"picture": "no OpenGL <here>"}))
    assert "No pictures: no OpenGL &lt;here&gt;" in learnt_section(tmp_path, [])


def test_a_training_ends_with_the_next_three_commands(tmp_path, monkeypatch, capsys):
    rows = [{"iteration": n, "episode/length": 9.0, "episode/reward": 1.0} for n in range(1, train.LOOK_FROM + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(train, "look_in_a_process", lambda run_dir: f"looked at {run_dir}")
    train._conclude(tmp_path, "p3 train")
    said = capsys.readouterr().out
    assert f"looked at {tmp_path}" in said
    for command in ("play", "eval", "export"):
        assert f"p3 {command} {tmp_path}" in said
