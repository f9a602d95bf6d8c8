"""`p3 study`: the list of studies, sections of a page, and the cost of an update."""

from __future__ import annotations

import json

import pytest

from trainer import cli
from trainer.engines.env import one_thread
from trainer.study import cost
from trainer.study.markdown import merge


def test_merge_leaves_the_rest_and_refuses_half_a_section(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    merge(page, "cost", "first")
    merge(page, "cost", "second")
    merge(page, "other", "third")
    marked = "<!-- study:cost begin -->\nsecond\n<!-- study:cost end -->"
    assert page.read_text() == f"# Page\n\n{marked}\n\n<!-- study:other begin -->\nthird\n<!-- study:other end -->\n"
    page.write_text("<!-- study:cost begin -->\n")
    with pytest.raises(ValueError, match=r"--docs: .* expected a pair"):
        merge(page, "cost", "again")
    assert page.read_text() == "<!-- study:cost begin -->\n"


def test_the_studies_are_listed(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", "--help"])
    assert stop.value.code == 0
    output = capsys.readouterr().out
    assert all(f"\n  {name}" in output for name in ("pilot", "preregistered", "table", "cost", "scale"))


@pytest.mark.parametrize("name", ["estimators", "baselines"])
def test_studies_of_the_first_version_are_refused_by_it(capsys, name):
    with pytest.raises(SystemExit) as stop:
        cli.main(["study", name, "--dir", "runs/study"])
    assert stop.value.code == 2
    assert f"{name} is a study of version 0.1.0; in its place there is p3 study " in capsys.readouterr().err


def test_cost_measures_time_and_memory(tmp_path, capsys):
    out, page = tmp_path / "cost.json", tmp_path / "page.md"
    page.write_text("# Page\n")
    line = ["--methods", "vae", "--num-envs", "2", "--repeats", "1", "--out", str(out), "--docs", str(page)]
    with one_thread():
        assert cli.main(["study", "cost", *line]) == 0
    found = json.loads(out.read_text())["costs"]["vae"]
    assert found["seconds"] > 0
    assert found["peak_bytes"] > 0
    assert "| `vae` |" in page.read_text()
    assert "| `vae` |" in capsys.readouterr().out


def test_cost_table_has_ratios_and_the_papers():
    costs = {"vae": cost.Cost(2.0, 100 * 2**20), "mc(50)": cost.Cost(5.0, 150 * 2**20), "z-mean": cost.Cost(1.0, None)}
    lines = cost.cost_table(costs).splitlines()
    assert lines[2] == "| `vae` | 2.00 | 1.00 | 1.00 | 100 | 1.00 | 1.00 |"
    assert lines[3] == "| `mc(50)` | 5.00 | 2.50 | 1.44 | 150 | 1.50 | 2.37 |"
    assert lines[4] == "| `z-mean` | 1.00 | 0.50 | – | – | – | – |"


def test_cost_needs_the_method_it_compares_with(capsys):
    assert cli.main(["study", "cost", "--methods", "mm"]) == 2
    assert "--methods: expected 'vae' among them" in capsys.readouterr().err
