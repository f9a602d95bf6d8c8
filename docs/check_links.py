"""Fails if the documentation links to, or names in a code span, a file that does not exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
NAMED_FILE = re.compile(r"`((?:p3kernels|csrc|triton_kernels|trainer|tests|docs)/[\w./-]+\.\w+)`")


def main() -> int:
    """Checks README.md, CHANGELOG.md and docs/*.md; prints each dangling name."""
    missing = []
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        text = page.read_text()
        targets = [(page.parent / name, name) for name in LINK.findall(text)]
        targets += [(ROOT / name, name) for name in NAMED_FILE.findall(text)]
        missing += [f"{page.relative_to(ROOT)}: {name} does not exist" for path, name in targets if not path.exists()]
    print("\n".join(missing) if missing else f"{len(pages)} pages, every file they name exists")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
