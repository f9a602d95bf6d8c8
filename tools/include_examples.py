"""Puts files into the code blocks of the pages that are called after them: python tools/include_examples.py [--check].

A block that begins with ```python title="examples/extending/linearised.py" holds that file, as it is.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r'(^```python title="([^"\n]+)"\n)(.*?)(^```$)', re.MULTILINE | re.DOTALL)


def included(text: str) -> str:
    """The page with every such block as its file is now."""
    return BLOCK.sub(lambda block: block[1] + (ROOT / block[2]).read_text() + block[4], text)


def main() -> int:
    """Writes the pages, or with --check says which are not up to date."""
    stale = [page for page in sorted((ROOT / "docs").glob("*.md")) if included(page.read_text()) != page.read_text()]
    for page in stale:
        if "--check" in sys.argv[1:]:
            print(f"{page.relative_to(ROOT)}: an example has changed; python tools/include_examples.py")
        else:
            page.write_text(included(page.read_text()))
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
