"""The link check finds what is not there, and nothing else."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

CHECK = runpy.run_path(str(Path(__file__).resolve().parents[2] / "tools/check_links.py"))
GOOD = """# Page of links

[here](#page-of-links), [there](other.md#a-heading-with-marks),
[elsewhere](https://example.org/x#y),
`p3kernels/nn.py`, `trainer/tasks/`,
`trainer/tasks/{robots,state}.py`, `p3kernels/ops/*.py`, `p3kernels.estimators.protocol.Policy`,
`trainer.algorithms:P3PPO`

```bash
python -m trainer train --run-dir runs/none.pt && python tools/check_links.py
```
"""


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("[x](missing.md)", "missing.md does not exist"),
        ("[x](other.md#elsewhere)", "other.md#elsewhere: there is no such heading"),
        ("[x](#elsewhere)", "#elsewhere: there is no such heading"),
        ("`p3kernels/missing.py`", "p3kernels/missing.py does not exist"),
        ("`trainer/missing/`", "trainer/missing/ does not exist"),
        ("`trainer/tasks/{robots,missing}.py`", "trainer/tasks/{robots,missing}.py does not exist"),
        ("\n```bash\npython tools/missing.py\n```\n", "tools/missing.py does not exist"),
        ("`trainer.missing.Policy`", "trainer.missing.Policy is no module and no name of one"),
    ],
)
def test_what_is_missing_is_found(tmp_path, bad, problem):
    (tmp_path / "other.md").write_text("# A heading: with, marks\n")
    page = tmp_path / "page.md"
    page.write_text(GOOD)
    assert CHECK["problems"](page) == []
    page.write_text(page.read_text() + bad)
    assert CHECK["problems"](page) == [problem]
