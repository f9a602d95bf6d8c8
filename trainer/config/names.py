"""Names that a user may have misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The nearest of the known names as the end of a message, " (did you mean 'x'?)"; nothing where none is near."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
