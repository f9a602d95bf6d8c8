"""Hook of mkdocs.yml: the root's pages, and files outside of docs/ that pages link to, become files of the site."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")
FROM_ROOT = re.compile(r"\]\((?!https?:|#)([^)#]+)")
INTO_DOCS = re.compile(r"\]\(((?:\.\./)*)docs/")


def on_files(files: Files, config: Any) -> Files:
    """Adds what is linked to."""
    names = set(ROOT_PAGES)
    for page in files.documentation_pages():
        if "/" not in page.src_uri:
            names.update(OUTSIDE.findall(page.content_string))
    for page in ROOT_PAGES:
        names.update(name for name in FROM_ROOT.findall((ROOT / page).read_text()) if not name.startswith("docs/"))
    for name in sorted(names):
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links from docs/ to the root and from outside into docs/, as places of the site."""
    if not Path(page.file.abs_src_path).is_relative_to(ROOT / "docs"):
        return INTO_DOCS.sub(r"](\1", markdown)
    return markdown if "/" in page.file.src_uri else OUTSIDE.sub(r"](\1", markdown)
