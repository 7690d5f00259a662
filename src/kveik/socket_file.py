"""A listening Unix socket of a process that is there once: for this user only, and never taken from a living one."""

import contextlib
import errno
import os
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path

from kveik.errors import KveikError
from kveik.lock_file import locked, opened
from kveik.private_folder import prepare_private_folder

#: A killed owner has its lock until it is gone, which takes it a moment of a core, and one that starts listens soon.
DYING_S = 5.0
_POLL_S = 0.05
_MAX_PATH_BYTES = 107  # sun_path of struct sockaddr_un, without its final zero


@dataclass(frozen=True, slots=True)
class _Words:
    """What messages and errors say."""

    owner: str
    setting: str
    error: type[KveikError]


class SocketFile:
    """A bound, listening Unix socket and the lock that says it is in use.

    ``owner`` is the word for who listens, ``setting`` the one that chooses the path, ``error`` what is raised.
    """

    def __init__(self, path: str, *, owner: str, setting: str, error: type[KveikError]) -> None:
        """Bind ``path``, replacing a socket that nobody listens to.

        Raises ``error`` if another such owner listens, or if the path cannot be used.
        """
        words = _Words(owner, setting, error)
        if len(os.fsencode(path)) > _MAX_PATH_BYTES - len(".starting"):
            raise error(f"the socket path {path} is too long for a Unix socket; set a shorter {setting}")
        self.path = path
        prepare_private_folder(Path(path).parent, f"the {owner}'s socket", setting, error)
        self._lock = _lock(path, words)
        try:
            self.sock = _bind(path, words)
            self._inode = Path(path).stat().st_ino
        except OSError as failure:
            os.close(self._lock)
            raise error(f"cannot listen at {path}: {failure.strerror}") from failure
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Stop listening and remove the socket, if it is still ours."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes the thread in accept
        self.sock.close()
        with contextlib.suppress(FileNotFoundError):
            if Path(self.path).stat().st_ino == self._inode:
                Path(self.path).unlink()
        os.close(self._lock)


def peer_of(sock: socket.socket) -> tuple[int, int]:
    """Process id and user id at the other end of a Unix socket, as the kernel knows them."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def _lock(path: str, words: _Words) -> int:
    """Own the path: the lock goes with this process, however it ends."""
    lock_path = f"{path}.lock"
    try:
        fd = opened(Path(lock_path))
    except OSError as error:
        raise words.error(f"cannot create {lock_path}: {error.strerror}") from error
    until_s = time.monotonic() + DYING_S
    while not locked(fd):
        if _refusal_of(path) is None or time.monotonic() > until_s:
            os.close(fd)
            raise words.error(f"another {words.owner} listens at {path}; stop it, or set another {words.setting}")
        time.sleep(_POLL_S)
    return fd


def _refusal_of(path: str) -> OSError | None:
    """Why nobody could be reached there; None if somebody listens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError as error:
            return error
    return None


def _bind(path: str, words: _Words) -> socket.socket:
    _refuse_in_use(path, words)
    starting = f"{path}.starting"
    Path(starting).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.bind(starting)
        Path(starting).chmod(0o600)
        sock.listen(64)
        Path(starting).rename(path)  # clients see no socket, or one that answers
    except BaseException:
        sock.close()
        raise
    return sock


def _refuse_in_use(path: str, words: _Words) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise words.error(f"{path} exists and is no socket; remove it, or set another {words.setting}")
    refusal = _refusal_of(path)
    if refusal is None:
        raise words.error(f"another program listens at {path}; set another {words.setting}")
    if refusal.errno != errno.ECONNREFUSED:
        raise words.error(f"somebody seems to listen at {path} ({refusal.strerror or refusal})") from refusal
