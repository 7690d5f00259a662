"""A file that one process at a time owns, for as long as it lives: the kernel lets go for whoever dies.

The lock goes with the descriptor, which no child inherits; closing it lets go. Nothing is ever written to a lock's
file, and it stays: who removed it while another waits would let two own the path.
"""

import fcntl
import os
import time
from pathlib import Path

_POLL_S = 0.05


def opened(path: Path) -> int:
    """The lock's file, made where it is not there; no link is followed. Raises ``OSError``."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def locked(descriptor: int) -> bool:
    """Take the lock of an open file; false while another one has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def owned(path: Path, wait_s: float = 0.0) -> int | None:
    """Own the lock's file ``path`` until the descriptor is closed; None if another one keeps it for ``wait_s``.

    Raises ``OSError`` if the file cannot be opened.
    """
    descriptor = opened(path)
    until_s = time.monotonic() + wait_s
    while not locked(descriptor):
        if time.monotonic() >= until_s:
            os.close(descriptor)
            return None
        time.sleep(_POLL_S)
    return descriptor


def owned_in_turn(path: Path) -> int:
    """The same, however long it takes: for what is done in a moment. Raises ``OSError``."""
    descriptor = opened(path)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor
