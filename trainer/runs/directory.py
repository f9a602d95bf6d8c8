"""The directory of a run: one training at a time, and nothing left over from one that was killed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

DIVERGED = "diverged.txt"
"""Written where a training gave up, with what it said; a resumed one takes it away."""
_LOCK = ".lock"
_LEFT_OVER = (
    *(".model_*.tmp", ".best.pt.*.tmp", ".*.json.*.tmp", ".*.jsonl.*.tmp", ".*.html.*.tmp"),
    *("*.json.tmp", "*.jsonl.tmp", "*.html.tmp"),  # of version 0.1.0
)
"""What `save_checkpoint` and `replace_file` write before they move it to its place."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)
"""What a filesystem without locks says, some of a cluster's among them: a run there is better than none."""


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Makes `run_dir`, and makes it this process's own for the time of the block.

    The lock ends with the process, however that ends. Half-written files of a process that was killed are removed.

    Raises:
        BlockingIOError: Another process trains there.
        OSError: It cannot be made or written to.
    """
    _make(run_dir)
    path = run_dir / _LOCK
    descriptor = _lock(path)
    try:
        for pattern in _LEFT_OVER:
            for left in run_dir.glob(pattern):
                with contextlib.suppress(OSError):
                    left.unlink()
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # before the lock goes: see `_lock`
        os.close(descriptor)


def _make(run_dir: Path) -> None:
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise OSError(f"--run-dir: cannot make {run_dir}: {reason}") from error


def _lock(path: Path) -> int:
    """The descriptor of the lock file: locked, and with the number of this process in it."""
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OSError(f"--run-dir: cannot write to {path.parent}: {error.strerror}") from error
        try:
            _take(descriptor, path.parent)
            if _is_at(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a run that ended, and removed it, between our opening and locking it


def _take(descriptor: int, run_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 20, 0).decode(errors="replace")
        name = f"process {owner}" if owner else "another process"  # it writes its number just after it has the lock
        raise BlockingIOError(f"--run-dir: {run_dir} is in use by {name}") from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OSError(f"--run-dir: cannot lock {run_dir}: {error.strerror}") from error


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
