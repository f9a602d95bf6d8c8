"""A study's section in a Markdown page, between two marks; everything else on the page stays as it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from trainer.runs.files import replace_file


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
