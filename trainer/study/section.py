"""A study's section in a Markdown page, between two marks; everything else on the page stays as it is."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Sequence
from pathlib import Path

from trainer.runs.files import replace_file
from trainer.study.analysis import MEASURES, PRIMARY, Analysis, summary
from trainer.study.statistics import mean_std
from trainer.study.versions import machine
from trainer.training.progress import format_duration


def merge(page: Path, name: str, body: str) -> None:
    """Puts `body` in the place of the section `name` of the page, or at its end.

    Raises:
        ValueError: The page has one mark without the other, or one twice.
        FileNotFoundError: There is no page.
    """
    if not page.is_file():
        raise FileNotFoundError(f"--docs: no page {page}")
    begin, end = f"<!-- study:{name} begin -->", f"<!-- study:{name} end -->"
    text = page.read_text(encoding="utf-8")
    counts = text.count(begin), text.count(end)
    section = f"{begin}\n{body.strip()}\n{end}"
    if counts == (0, 0):
        merged = f"{text.rstrip()}\n\n{section}\n" if text.strip() else f"{section}\n"
    elif counts == (1, 1) and text.index(begin) < text.index(end):
        merged = text[: text.index(begin)] + section + text[text.index(end) + len(end) :]
    else:
        raise ValueError(f"--docs: {page} has {counts[0]} times {begin} and {counts[1]} times {end}, expected a pair")
    if merged != text:
        replace_file(page, merged.encode())


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def paragraph(text: str) -> str:
    """In lines that fit an editor."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def write_section(analysis: Analysis, figures: Sequence[str], command: str, note: str = "") -> str:
    """The study as Markdown: what was run, the measure, numbers, tests, figures and versions.

    Args:
        analysis: Analysis of the finished runs.
        figures: Links to them, as seen from the page.
        command: The command line of this study.
        note: A sentence of the person who ran it.
    """
    settings = analysis.settings
    parts = [
        f"## {settings.study.title}",
        f"```bash\n{command}\n```",
        paragraph(_what(analysis) + (f" {note.strip()}" if note.strip() else "")),
        paragraph(_measure(analysis)),
        numbers_table(analysis),
        paragraph(_convergence(analysis)),
        tests_table(analysis),
        paragraph(_about_tests(analysis)),
        *(f"![{settings.study.title}]({figure})" for figure in figures),
        paragraph(_made_with(analysis)),
    ]
    return "\n\n".join(part for part in parts if part)


def numbers_table(analysis: Analysis) -> str:
    """A row a method, mean ± std over its seeds."""
    shown = [measure for measure in MEASURES if _known(analysis, measure.key)]
    header = ["method", "seeds", *(f"**{m.label}**" if m is PRIMARY else m.label for m in shown), "converged"]
    rows = []
    for method, runs in analysis.runs.items():
        cells = [summary(list(analysis.values(method, measure).values()), measure.digits) for measure in shown]
        converged = sum(analysis.converged_at(run) is not None for run in runs.values())
        rows.append([f"`{method}`", str(len(runs)), *cells, f"{converged} of {len(runs)}"])
    return table(header, rows)


def tests_table(analysis: Analysis) -> str:
    """A row a method, against the reference, on the primary measure."""
    comparisons = analysis.comparisons()
    if not comparisons:
        return ""
    header = ["method", "pairs", f"difference to `{analysis.settings.reference}`", "seeds above it"]
    header += ["p, paired t", "Holm", "p, exact sign flips", "Holm"]
    rows = []
    for method, comparison in comparisons.items():
        test = comparison.test
        difference = f"{test.mean:+.2f}" + ("" if math.isnan(test.std) else f" ± {test.std:.2f}")
        p_values = (test.t_p, comparison.t_holm, test.sign_flip_p, comparison.sign_flip_holm)
        rows.append(
            [f"`{method}`", str(test.count), difference, f"{test.wins} of {test.count}", *map(_p_value, p_values)]
        )
    return table(header, rows)


def _what(analysis: Analysis) -> str:
    settings = analysis.settings
    steps = max((run.curves["steps/total"][-1] for runs in analysis.runs.values() for run in runs.values()), default=0)
    count = sum(map(len, analysis.runs.values()))
    text = (
        f"{count} runs on `{settings.task}`: {settings.num_envs} environments, {settings.iterations} iterations,"
        f" {steps / 1000:.0f} thousand steps, seeds {', '.join(map(str, settings.seeds))}, one process a"
        f" core on one thread (`OMP_NUM_THREADS=1`). Each is `{training_command(analysis)}`."
    )
    text += f" Not finished and left out: {analysis.left_out()}." if analysis.unfinished else ""
    return text + (f" Damaged and left out: {', '.join(analysis.damaged)}." if analysis.damaged else "")


def training_command(analysis: Analysis) -> str:
    """What trains one run, with METHOD and SEED to be filled in."""
    run = analysis.settings.runs()[0]
    arguments = run.arguments(resume=False)
    filled = {run.config.method: "METHOD", str(run.path): f"DIR/{run.config.task}-METHOD-SEED"}
    named = [filled.get(text, text) for text in arguments]
    named[named.index("--seed") + 1] = "SEED"
    return shlex.join(["p3", *named])


def _measure(analysis: Analysis) -> str:
    evaluation = analysis.settings.evaluation
    where = "" if evaluation.difficulty is None else f" at difficulty {evaluation.difficulty:g}"
    survival = [run.evaluated("mean", "survival") for runs in analysis.runs.values() for run in runs.values()]
    return (
        f"The measure that ranks (bold) was chosen before any of these runs were compared, and the curriculum's"
        f" promotion rule cannot cap it: the reward of a fresh episode of {evaluation.seconds:g} s{where}, pushed as in"
        " training,"
        f" acting at the latent's mean as deployed; the final checkpoint, {evaluation.episodes} episodes, the same for"
        f" every run (seed {evaluation.seed}). Mean ± standard deviation over seeds; training rewards are means"
        f" over the last 200 episodes, exploration included. By the mean: {ranking(analysis)}. The sturdiest"
        f" run survives {100 * max(survival, default=0):.0f} % of these episodes; at 100 % their length would cap it."
    )


def ranking(analysis: Analysis) -> str:
    """The methods by the mean of the primary measure, best first."""
    means = {
        method: mean_std(list(analysis.values(method, PRIMARY).values()))[0]
        for method, runs in analysis.runs.items()
        if runs
    }
    return ", ".join(f"`{method}`" for method in sorted(means, key=lambda method: -means[method]))


def _convergence(analysis: Analysis) -> str:
    settings = analysis.settings
    text = (
        f"Converged is the paper's criterion: the episode reward has not risen by more than 1 % over"
        f" {settings.plateau_window} iterations and the mean difficulty is at least 0.9."
    )
    if settings.iterations < settings.plateau_window:
        text += f" A run of {settings.iterations} iterations is shorter than that window, so none can be."
    reached = [run.difficulty for runs in analysis.runs.values() for run in runs.values()]
    if reached := [difficulty for difficulty in reached if not math.isnan(difficulty)]:
        text += f" The highest final difficulty of a run is {max(reached):.2f}."
    return text


def _about_tests(analysis: Analysis) -> str:
    counts = {comparison.test.count for comparison in analysis.comparisons().values()}
    if not counts:
        return ""
    count = max(counts)
    return (
        f"Pairs share their seed: terrains and first states of the environments, and, among methods on the VAE's"
        f" network, the initial weights; from the first action on the runs are their own. With {count} of them the"
        f" least two-sided p that sign flips can give is {2 / 2**count:.3g}, before Holm's correction for"
        f" {len(analysis.comparisons())} comparisons."
    )


def _made_with(analysis: Analysis) -> str:
    runs = [run for runs in analysis.runs.values() for run in runs.values()]
    seconds = [run.seconds for run in runs]
    trained = sorted({made for run in runs for made in run.trained_with})
    evaluated = sorted({made for run in runs for made in run.evaluated_with})
    before = [] if all(run.trained_with for run in runs) else ["by `p3 train` on its own, which records no commit"]
    return (
        f"Training {format_duration(sum(seconds))} of one core in all,"
        f" {format_duration(sum(seconds) / max(1, len(seconds)))} a run."
        f" Trained with: {'; '.join([*trained, *before])}."
        f" Evaluated with: {'; '.join(evaluated)}. {machine()}."
    )


def _known(analysis: Analysis, key: str) -> bool:
    measure = next(measure for measure in MEASURES if measure.key == key)
    return any(not math.isnan(value) for method in analysis.runs for value in analysis.values(method, measure).values())


def _p_value(value: float) -> str:
    if math.isnan(value):
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
