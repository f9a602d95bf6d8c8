"""`p3 report`: the page is well-formed, needs nothing else, and has the numbers of the run."""

from __future__ import annotations

import base64
import json
import math
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from trainer.commands import report as command
from trainer.report import page as report
from trainer.runs.metrics import MetricsLog

VOID = {"meta", "img"}


class Page(HTMLParser):
    """The text of a page, its table rows and images; fails where tags do not match."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.headings: list[str] = []
        self.rows: dict[str, list[str]] = {}
        self.images: dict[str, str] = {}
        self.text = ""
        self._cells: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        attributes = dict(attrs)
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:").startswith("data:"), "the page must need no network"
        if tag == "img":
            source = attributes["src"] or ""
            assert attributes["alt"]
            self.images[attributes["alt"]] = base64.b64decode(
                source.removeprefix("data:image/svg+xml;base64,")
            ).decode()
        if tag == "tr":
            self._cells = []
        if tag in ("th", "td", "h2"):
            self._cells.append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "tr":
            self.rows[self._cells[0]] = self._cells[1:]
        if tag == "h2":
            self.headings.append(self._cells.pop())

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("th", "td", "h2"):
            self._cells[-1] += data
        if "style" not in self.open:
            self.text += data


def run(run_dir: Path, *scalars: dict[str, float], config: object = None) -> Path:
    log = MetricsLog(run_dir, tensorboard=False)
    for iteration, of_iteration in enumerate(scalars, start=1):
        log.write(iteration, of_iteration)
    log.close()
    if config is not None:
        (run_dir / "config.json").write_text(json.dumps(config))
    return run_dir


def long_run(run_dir: Path) -> Path:
    """60 iterations whose reward is best in the 41st, with MM, then MC(15) from the 31st and MC(50) from the 51st."""
    scalars = []
    for iteration in range(1, 61):
        scalars.append(
            {
                "episode/reward": 20.5 - abs(iteration - 41) / 4 if iteration > 3 else math.nan,
                "episode/length": 10.0 * iteration,
                "curriculum/difficulty": iteration / 80,
                "loss/kl": 0.01,
                "loss/value": 1 / iteration,
                "policy/action_std": 0.5,
                "reward/alive": 1.0,
                "speed/steps_per_second": 3120.4,
                "episode/timeouts": 0.25,
                "estimator/num_samples": 0 if iteration < 31 else 15 if iteration < 51 else 50,
                "steps/total": 24_576 * iteration,
                "time/total_seconds": 12.5 * iteration,
            }
        )
    return run(run_dir, *scalars, config={"task": {"name": "g1-rough"}, "seed": 7})


@pytest.fixture
def without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def test_headline(tmp_path, without_matplotlib):
    path = report.write_report(long_run(tmp_path / "walk"))
    assert path == tmp_path / "walk" / "report.html"
    page = Page(path)
    assert "Run walk" in page.text
    headline = {
        "Last reward": "15.75",
        "Best reward": "20.5 (iteration 41)",
        "Last episode length": "600",
        "Curriculum difficulty": "0.75",
        "Iterations": "60, the last is 60",
        "Environment steps": "1,474,560",
        "Wall time": "0:12:30",
        "Estimator": "mm from iteration 1, mc15 from iteration 31, mc50 from iteration 51",
    }
    assert {name: page.rows[name] for name in headline} == {name: [text] for name, text in headline.items()}


def test_what_a_run_says_about_itself_has_sections(tmp_path, without_matplotlib):
    scalars = {
        "loss/skipped_steps": 2.0,
        "loss/value": 0.5,
        "steps/total": 100.0,
        "steps/rollbacks": 1.0,
        "steps/other": 7.0,
        "steps/broken": 3.0,
        "d_eff/trained": 1.0,
        "d_eff/n1": 0.646,
        "memory/resident_mib": 812.25,
        "policy/latent_action_std": 0.125,
    }
    page = Page(report.write_report(run(tmp_path, scalars)))
    assert page.headings == ["Losses", "Policy", "Data efficiency", "Memory", "Health"]
    order = list(page.rows)
    assert order[order.index("loss/value") :] == [
        "loss/value",
        "policy/latent_action_std",
        "d_eff/trained",
        "d_eff/n1",
        "memory/resident_mib",
        "steps/broken",
        "steps/rollbacks",
        "loss/skipped_steps",
        "steps/other",
    ]
    assert page.rows["d_eff/n1"] == ["0.646"] * 3


@pytest.mark.parametrize(
    ("scalars", "text"),
    [
        ([{"steps/broken": 0.0}, {"steps/broken": 0.0}], "nothing broken, rolled back or left out"),
        (
            [{"steps/broken": 1.0, "loss/skipped_steps": 2.0}, {"steps/broken": 4.0, "loss/skipped_steps": 1.0}],
            "4 broken simulation steps, 3 optimiser steps left out",
        ),
        ([{"steps/broken": 1.0, "steps/rollbacks": 1.0}], "1 broken simulation step, 1 rollback"),
        ([{"steps/rollbacks": 2.0, "loss/skipped_steps": 1.0}], "2 rollbacks, 1 optimiser step left out"),
        ([{"steps/rollbacks": math.nan}], "nothing broken, rolled back or left out"),
    ],
)
def test_health_is_in_the_headline(scalars, text, tmp_path, without_matplotlib):
    assert Page(report.write_report(run(tmp_path, *scalars))).rows["Health"] == [text]


def test_health_that_nobody_recorded_is_not_told(tmp_path, without_matplotlib):
    assert "Health" not in Page(report.write_report(run(tmp_path, {"loss/kl": 1.0}))).rows


def test_the_estimator_of_a_run_that_an_earlier_version_logged(tmp_path, without_matplotlib):
    scalars = [{"estimator/num_samples": count} for count in (-1, -1, 0, 1)]
    page = Page(report.write_report(run(tmp_path, *scalars)))
    assert page.rows["Estimator"] == ["z-mean from iteration 1, mm from iteration 3, mc1 from iteration 4"]


def test_every_scalar_has_a_figure_in_its_section(tmp_path):
    page = Page(report.write_report(long_run(tmp_path)))
    assert page.headings == ["Learning", "Losses", "Policy", "Reward terms", "Speed", "Other", "Configuration"]
    assert list(page.images) == [
        "episode/reward by iteration: between 11.25 and 20.5, at last 15.75",
        "episode/length by iteration: between 10 and 600, at last 600",
        "curriculum/difficulty by iteration: between 0.0125 and 0.75, at last 0.75",
        "loss/kl by iteration: between 0.01 and 0.01, at last 0.01",
        "loss/value by iteration: between 0.01667 and 1, at last 0.01667",
        "policy/action_std by iteration: between 0.5 and 0.5, at last 0.5",
        "reward/alive by iteration: between 1 and 1, at last 1",
        "speed/steps_per_second by iteration: between 3,120 and 3,120, at last 3,120",
        "episode/timeouts by iteration: between 0.25 and 0.25, at last 0.25",
    ]
    for image in page.images.values():
        assert ET.fromstring(image).tag.endswith("svg")
        assert "mc15" in image
        assert "mc50" in image
        assert ">mm<" not in image  # what the run began with is no change
    assert {path.name for path in tmp_path.iterdir()} == {"metrics.jsonl", "config.json", "report.html"}


def test_the_same_run_gives_the_same_page(tmp_path):
    long_run(tmp_path)
    assert report.write_report(tmp_path).read_bytes() == report.write_report(tmp_path).read_bytes()


def test_an_estimator_that_changes_all_the_time_does_not_hide_the_curve(tmp_path):
    scalars = [{"estimator/num_samples": count} for count in range(20)]
    page = Page(report.write_report(run(tmp_path, *scalars)))
    assert page.rows["Estimator"][0].endswith("mc11 from iteration 12, and 8 changes more")


def test_one_iteration(tmp_path):
    page = Page(report.write_report(run(tmp_path, {"episode/reward": 2.5, "loss/kl": 0.0})))
    assert page.rows["Iterations"] == ["1, the last is 1"]
    assert page.rows["Best reward"] == ["2.5 (iteration 1)"]
    assert "Curriculum difficulty" not in page.rows
    assert len(page.images) == 2


def test_no_episode_has_finished(tmp_path):
    page = Page(
        report.write_report(run(tmp_path, {"episode/reward": math.nan, "loss/kl": 0.125}, {"loss/kl": math.inf}))
    )
    for name in ("Last reward", "Best reward", "Last episode length"):
        assert page.rows[name] == ["no episode has finished yet"]
    assert page.rows["episode/reward"] == ["none yet", "", ""]
    assert page.rows["loss/kl"] == ["0.125", "0.125", "0.125"]
    assert list(page.images) == ["loss/kl by iteration: between 0.125 and 0.125, at last 0.125"]


def test_a_number_beyond_floats_is_none(tmp_path, without_matplotlib):
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss/kl": 1e999}\n{"iteration": 2, "loss/kl": NaN}\n')
    assert Page(report.write_report(tmp_path)).rows["loss/kl"] == ["none yet", "", ""]


def test_no_iteration_is_finished(tmp_path):
    page = Page(report.write_report(run(tmp_path, config={"seed": 7})))
    assert "No iteration is finished yet." in page.text
    assert '"seed": 7' in page.text


def test_everything_is_escaped(tmp_path):
    attack = '<script>alert("&")</script>'
    config = {attack: [{"deep": attack}], "lone surrogate": "\ud800"}
    directory = run(tmp_path / "<b>&run", {f"loss/{attack}": 1.5, f"{attack}/x": 2.0}, config=config)
    path = report.write_report(directory)
    page = Page(path)
    assert not {"script", "b"} & page.seen
    assert "Run <b>&run" in page.text
    assert page.text.count(json.dumps(attack)) == 2  # key and value, as JSON writes them
    assert page.rows[f"loss/{attack}"] == ["1.5"] * 3
    assert f"{attack}/x by iteration: between 2 and 2, at last 2" in page.images


def test_the_configuration_is_collapsible_and_optional(tmp_path):
    page = Page(report.write_report(run(tmp_path, {"loss/kl": 1.0}, config={"task": {"name": "g1-rough"}})))
    assert '"name": "g1-rough"' in page.text
    assert {"details", "summary", "pre"} <= page.seen
    (tmp_path / "config.json").unlink()
    assert "pre" not in Page(report.write_report(tmp_path)).seen
    (tmp_path / "config.json").write_text("{<")
    assert "config.json cannot be read: Expecting property name" in Page(report.write_report(tmp_path)).text


def test_curves_need_no_plotting_library(tmp_path, without_matplotlib):
    page = Page(report.write_report(long_run(tmp_path)))
    assert len(page.images) == 9
    assert page.rows["episode/reward"] == ["15.75", "11.25", "20.5"]


def test_a_page_that_cannot_be_written_leaves_the_old_one(tmp_path, without_matplotlib, monkeypatch):
    path = report.write_report(long_run(tmp_path))
    before = path.read_bytes()

    def fails(*_):
        raise OSError("full")

    monkeypatch.setattr("os.fsync", fails)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(OSError, match="full"):
        report.write_report(tmp_path)
    assert path.read_bytes() == before


def test_command_prints_the_path(tmp_path, without_matplotlib, capsys):
    long_run(tmp_path)
    assert command.main([str(tmp_path)], prog="p3 report") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (None, "nowhere", "no directory '"),
        (None, "", "metrics.jsonl does not exist"),
        ("nonsense\nnonsense\n", "", "metrics.jsonl, line 1: expected a JSON object"),
        ('{"iteration": 1}\n\0\xff}\n{"iteration": 2}\n', "", "metrics.jsonl, line 2: expected a JSON object"),
    ],
)
def test_command_without_a_run_exits_with_2(content, name, message, tmp_path, capsys):
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content)
    assert command.main([str(tmp_path / name)], prog="p3 report") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("p3 report: error: ")
    assert message in printed.err
    assert not (tmp_path / "report.html").exists()
