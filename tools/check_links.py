"""Fails if the documentation links to, or names in a code span, a file or a heading that does not exist.

python tools/check_links.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
ROOMS = ("p3kernels", "csrc", "triton_kernels", "trainer", "tests", "docs", "tools", "examples")
FILE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(ROOMS)})/[\w./*{{}},-]*[\w/}}])")
PACKAGES = ("p3kernels", "triton_kernels", "trainer")
MODULE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(PACKAGES)})(?:[.:][A-Za-z_]\w*)+)(?![\w/])")
FENCE = re.compile(r"^(```+|~~~+).*?^\1", re.MULTILINE | re.DOTALL)
RECORDS = "docs/data/"
"""Its folders are made by the commands that write into them."""
HISTORY = "CHANGELOG.md"
"""Names what was there in earlier versions, too: only its links are checked."""


def main() -> int:
    """Checks every page and prints each dangling name."""
    pages = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("examples/**/*.md"))]
    missing = [f"{page.relative_to(ROOT)}: {problem}" for page in pages for problem in problems(page)]
    print("\n".join(missing) if missing else f"{len(pages)} pages, every file and heading they name exists")
    return 1 if missing else 0


def problems(page: Path) -> list[str]:
    """What `page` names and what is not there."""
    text = page.read_text()
    prose = FENCE.sub("", text)
    found = []
    for name, heading in LINK.findall(prose):
        target = page.parent / name if name else page
        if not target.exists():
            found.append(f"{name} does not exist")
        elif heading and target.suffix == ".md" and heading not in headings(target.read_text()):
            found.append(f"{name}#{heading}: there is no such heading")
    if page.name != HISTORY:
        named = [name for span in CODE_SPAN.findall(prose) for name in FILE.findall(span)]
        named += [name for block in FENCE.finditer(text) for name in FILE.findall(block[0]) if name.endswith(".py")]
        found += [f"{name} does not exist" for name in named if not name.startswith(RECORDS) and not exists(name)]
        code = [*CODE_SPAN.findall(prose), *(block[0] for block in FENCE.finditer(text))]
        dotted = [name for part in code for name in MODULE.findall(part)]
        found += [f"{name} is no module and no name of one" for name in dotted if not importable(name)]
    return found


def exists(name: str) -> bool:
    """Whether there is such a file or folder; `{a,b}` stands for both, `*` for any."""
    braces = re.search(r"\{([^{}]*)\}", name)
    if braces:
        return all(exists(name[: braces.start()] + part + name[braces.end() :]) for part in braces[1].split(","))
    return any(ROOT.glob(name.rstrip("/")))


def importable(name: str) -> bool:
    """Whether `package.module.name` can be there, by the sources: the module's file mentions the name."""
    place, parts = ROOT, re.split("[.:]", name)
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    source = place / "__init__.py"
    if parts and (place / f"{parts[0]}.py").exists():
        source = place / f"{parts.pop(0)}.py"
    return not parts or (source.exists() and re.search(rf"\b{parts[0]}\b", source.read_text()) is not None)


def headings(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs both make them."""
    titles = re.findall(r"^#+ +(.*?) *$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


if __name__ == "__main__":
    sys.exit(main())
