"""The learning curves of a run as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from trainer.report.curve import MOST_CHANGES, Series, draw
from trainer.report.diagnostics import diagnostics_section
from trainer.report.learnt import learnt_section
from trainer.runs.files import replace_file
from trainer.runs.metrics import Record, estimator_name, read_metrics
from trainer.training.progress import format_duration

FILE_NAME = "report.html"
REWARD, LENGTH, DIFFICULTY = "episode/reward", "episode/length", "curriculum/difficulty"
LEVEL = "curriculum/level"
EVALUATED = "eval/success"
STEPS, SECONDS = "steps/total", "time/total_seconds"
BROKEN, ROLLBACKS, SKIPPED = "steps/broken", "steps/rollbacks", "loss/skipped_steps"
SECTIONS = (
    ("Learning", (REWARD, LENGTH, DIFFICULTY, LEVEL)),
    ("Evaluation", (EVALUATED, "eval/")),
    ("By terrain", ("curriculum/difficulty/", "episode/success/")),
    ("Losses", ("loss/",)),
    ("Policy", ("policy/",)),
    ("Data efficiency", ("d_eff/",)),
    ("Reward terms", ("reward/",)),
    ("Speed", ("speed/",)),
    ("Memory", ("memory/",)),
    ("Health", (BROKEN, ROLLBACKS, SKIPPED, "steps/")),
)
"""Title, and the keys or, with a slash at the end, the beginnings of keys; what is left goes to a last section. A key
that is named belongs to where it is named, whatever it begins with."""
IN_HEADLINE = ("iteration", "estimator/num_samples", STEPS, SECONDS)

STYLE = """
:root { color-scheme: light; --line: #dde1e6; --quiet: #5b6570; }
* { box-sizing: border-box; }
body { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; background: #fff; color: #1d242b;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .75rem; padding-bottom: .25rem; border-bottom: 1px solid var(--line); }
p, summary { color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem 1.25rem .25rem 0; text-align: left; vertical-align: top;
  border-bottom: 1px solid var(--line); }
th { font-weight: 500; color: var(--quiet); }
td.number { text-align: right; white-space: nowrap; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(21rem, 100%), 1fr)); gap: 1.25rem; }
.diagnostics { display: grid; gap: 1.75rem; }
figure { margin: 0; }
figcaption { font-size: .9rem; font-weight: 500; overflow-wrap: anywhere; }
figure img { display: block; width: 100%; height: auto; }
.diagnostics img { width: auto; max-width: 100%; max-height: 60rem; }
details { margin-top: .75rem; }
summary { cursor: pointer; }
pre { overflow-x: auto; padding: .75rem; background: #f6f7f9; font-size: .8rem; line-height: 1.4; }
"""


def write_report(run_dir: Path) -> Path:
    """Writes `report.html` from `metrics.jsonl` and, where there is one, `config.json`.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: There is no `metrics.jsonl`.
        ValueError: It is not one.
    """
    records = read_metrics(run_dir)
    series = _collect(records)
    changes = _estimator_changes(records)
    title = html.escape(f"Run {run_dir.resolve().name}")
    body = [f"<h1>{title}</h1>", learnt_section(run_dir, changes), _headline(records, series, changes)]
    diagnostics = diagnostics_section(run_dir)
    if diagnostics:
        body.append('<p><a href="#diagnostics">Diagnostics</a> are below the curves.</p>')
    body += [*_sections(series, changes), diagnostics, _config(run_dir / "config.json")]
    page = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )
    path = run_dir / FILE_NAME
    replace_file(path, page.encode(errors="replace"))
    return path


def _collect(records: Sequence[Record]) -> dict[str, Series]:
    """By key, in the order in which the keys first came; a key that never was finite has an empty series."""
    series: dict[str, Series] = {}
    for record in records:
        for key, value in record.items():
            if isinstance(value, str):  # a name, not a curve
                continue
            found = series.setdefault(key, Series(key, [], []))
            if isinstance(value, int | float) and math.isfinite(value):
                found.iterations.append(int(record["iteration"] or 0))
                found.values.append(float(value))
    return series


def _estimator_changes(records: Sequence[Record]) -> list[tuple[int, str]]:
    """The first iteration of each estimator, and its name."""
    changes: list[tuple[int, str]] = []
    for record in records:
        name = estimator_name(record)
        if name is not None and (not changes or changes[-1][1] != name):
            changes.append((int(record["iteration"] or 0), name))
    return changes


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.4g}"


def _headline(records: Sequence[Record], series: dict[str, Series], changes: Sequence[tuple[int, str]]) -> str:
    if not records:
        return "<p>No iteration is finished yet.</p>"

    def last(key: str, show: Callable[[float], str] = _number) -> str | None:
        found = series.get(key)
        return show(found.values[-1]) if found is not None and found.values else None

    rewards = series.get(REWARD, Series(REWARD, [], []))
    best = None
    if rewards.values:
        at = max(range(len(rewards.values)), key=rewards.values.__getitem__)
        best = f"{_number(rewards.values[at])} (iteration {rewards.iterations[at]})"
    names = [f"{name} from iteration {at}" for at, name in changes]
    if len(names) > MOST_CHANGES:
        names = [*names[:MOST_CHANGES], f"and {len(names) - MOST_CHANGES} changes more"]
    rows = [
        ("Last reward", last(REWARD) or "no episode has finished yet"),
        ("Best reward", best or "no episode has finished yet"),
        *([("Best evaluation", _best_evaluation(series))] if EVALUATED in series else []),
        ("Last episode length", last(LENGTH) or "no episode has finished yet"),
        *([("Curriculum difficulty", last(DIFFICULTY) or "none yet")] if DIFFICULTY in series else []),
        *([("Curriculum level", last(LEVEL) or "none yet")] if LEVEL in series else []),  # of runs before 0.2
        ("Iterations", f"{len(records):,}, the last is {records[-1]['iteration']}"),
        ("Environment steps", last(STEPS) or "not recorded"),
        ("Wall time", last(SECONDS, format_duration) or "not recorded"),
        *([("Estimator", ", ".join(names))] if names else []),
        *([("Health", _health(series))] if {BROKEN, ROLLBACKS, SKIPPED} & series.keys() else []),
    ]
    cells = [f'<tr><th scope="row">{html.escape(name)}</th><td>{html.escape(text)}</td></tr>' for name, text in rows]
    return '<div class="wide"><table class="headline">\n' + "\n".join(cells) + "\n</table></div>"


def _best_evaluation(series: dict[str, Series]) -> str:
    """The first evaluation with the most successes; `best.pt` is decided by the reward where several have them."""
    found = series[EVALUATED]
    at = max(range(len(found.values)), key=found.values.__getitem__)
    return f"success {found.values[at]:.0%} (iteration {found.iterations[at]})"


def _health(series: dict[str, Series]) -> str:
    """What should not have happened, counted; the run's counters count on, an update's steps are its own."""
    empty = Series("", [], [])
    counts = (
        (series.get(BROKEN, empty).values[-1:], "broken simulation step", "broken simulation steps"),
        (series.get(ROLLBACKS, empty).values[-1:], "rollback", "rollbacks"),
        (series.get(SKIPPED, empty).values, "optimiser step left out", "optimiser steps left out"),
    )
    found = [(sum(values), one, many) for values, one, many in counts]
    told = [f"{_number(count)} {one if count == 1 else many}" for count, one, many in found if count > 0]
    return ", ".join(told) or "nothing broken, rolled back or left out"


def _sections(series: dict[str, Series], changes: Sequence[tuple[int, str]]) -> list[str]:
    left = {key: found for key, found in series.items() if key not in IN_HEADLINE}
    named = {name for _, wanted in SECTIONS for name in wanted}
    parts = []
    for title, wanted in SECTIONS:
        members = [
            left.pop(key)
            for name in wanted
            for key in list(left)
            if key == name or (name.endswith("/") and key.startswith(name) and key not in named)
        ]
        parts += _section(title, members, changes)
    return parts + _section("Other", list(left.values()), changes)


def _section(title: str, members: Sequence[Series], changes: Sequence[tuple[int, str]]) -> list[str]:
    if not members:
        return []
    heading = f"<h2>{html.escape(title)}</h2>"
    drawn = [_figure(member, changes) for member in members if member.values]
    if not drawn:
        return [heading, _table(members)]
    numbers = f"<details><summary>{html.escape(title)} in numbers</summary>{_table(members)}</details>"
    return [heading, '<div class="figures">\n' + "\n".join(drawn) + "\n</div>", numbers]


def _table(members: Sequence[Series]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in ("", "last", "least", "most"))
    rows = [f"<tr>{head}</tr>"]
    for member in members:
        values = member.values
        shown = [_number(v) for v in (values[-1], min(values), max(values))] if values else ["none yet", "", ""]
        cells = "".join(f'<td class="number">{html.escape(text)}</td>' for text in shown)
        rows.append(f'<tr><th scope="row">{html.escape(member.key)}</th>{cells}</tr>')
    return '<div class="wide"><table>\n' + "\n".join(rows) + "\n</table></div>"


def _figure(series: Series, changes: Sequence[tuple[int, str]]) -> str:
    image = base64.b64encode(draw(series, changes).encode()).decode()
    low, high, last = (_number(v) for v in (min(series.values), max(series.values), series.values[-1]))
    alt = f"{series.key} by iteration: between {low} and {high}, at last {last}"
    return (
        f"<figure><figcaption>{html.escape(series.key)}</figcaption>"
        f'<img src="data:image/svg+xml;base64,{image}" alt="{html.escape(alt)}"></figure>'
    )


def _config(path: Path) -> str:
    try:
        text = json.dumps(json.loads(path.read_text(encoding="utf-8")), indent=2, ensure_ascii=False)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return f"<p>config.json cannot be read: {html.escape(str(error))}</p>"
    return f"<h2>Configuration</h2>\n<details><summary>config.json</summary><pre>{html.escape(text)}</pre></details>"
