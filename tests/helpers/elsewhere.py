"""Work in another thread or a forked child: what it returns or raises, and an error where it hangs."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

SECONDS = 60.0


def in_a_thread(work: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What `work` returns in a thread of its own; what it raises there is raised here."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(SECONDS)
    assert not thread.is_alive(), f"a thread gave no answer within {SECONDS:g} s"
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def in_a_fork(work: Callable[[], list[Tensor]]) -> list[Tensor]:
    """Tensors that `work` returns in a child of this process; what it raises there is raised here."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        _work(work, there)
    there.close()
    try:
        assert here.poll(SECONDS), f"a forked child gave no answer within {SECONDS:g} s"
        found = pickle.loads(here.recv_bytes())
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    if isinstance(found, Exception):
        raise found
    return found


def _work(work: Callable[[], list[Tensor]], answer: multiprocessing.connection.Connection) -> None:
    """The child's part, which does not come back: nothing of the tests' own ends runs in it."""
    try:
        try:
            # Copies by value: a tensor's own pickling shares memory with a process that is gone when it is read.
            found: object = [out.detach().clone() for out in work()]
            answer.send_bytes(pickle.dumps(found))
        except Exception as error:
            answer.send_bytes(pickle.dumps(error))
    finally:
        os._exit(0)
