"""The section of `report.html` with what `p3 diagnose` wrote into the run's directory."""

from __future__ import annotations

import base64
import html
from pathlib import Path

from trainer.diagnosis.files import CAPTIONS, FOLDER, TABLES


def diagnostics_section(run_dir: Path) -> str:
    """Figures and tables, inlined; nothing where there was no `p3 diagnose`."""
    folder = run_dir / FOLDER
    figures = [
        _figure(folder / f"{name}.png", caption)
        for name, caption in CAPTIONS.items()
        if (folder / f"{name}.png").is_file()
    ]
    try:
        tables = (folder / TABLES).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    shown = '<div class="diagnostics">\n' + "\n".join(figures) + "\n</div>" if figures else ""
    numbers = f"<details><summary>Diagnostics in numbers</summary><pre>{html.escape(tables)}</pre></details>"
    return f'<h2 id="diagnostics">Diagnostics</h2>\n{shown}\n{numbers}'


def _figure(path: Path, caption: str) -> str:
    image = base64.b64encode(path.read_bytes()).decode()
    text = html.escape(caption)
    return f'<figure><figcaption>{text}</figcaption><img src="data:image/png;base64,{image}" alt="{text}"></figure>'
