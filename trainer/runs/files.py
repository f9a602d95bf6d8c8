"""Files that a crash or a full disk leaves whole: replaced in one piece, or grown by whole pieces."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import Any


def replace_file(path: Path, content: bytes | memoryview) -> None:
    """Writes a file so that a reader, or a crash, finds the old content or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The value as JSON can have it, at any depth: null for what is not a finite number."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class WholeAppends:
    """A file that grows by whole pieces, each there as soon as it is written.

    Args:
        path: A new file, or one to go on with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab", buffering=0)  # a buffer would keep a half-written piece and try it again
        self._size = self._file.seek(0, os.SEEK_END)
        self._torn = False

    def append(self, piece: bytes) -> None:
        """The whole piece, or an OSError and a file that is as before, now or by the next call."""
        if self._torn:
            self._file.truncate(self._size)
            self._torn = False
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._torn = len(rest) < len(piece)
            raise
        self._size += len(piece)

    def close(self) -> None:
        """Closes the file, without a piece that was only partly written."""
        if self._torn:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
        self._torn = False
        self._file.close()
