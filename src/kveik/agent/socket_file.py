"""The agent's listening socket: for this user only, and never taken from a living agent."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from pathlib import Path

from kveik.errors import AgentError
from kveik.private_folder import prepare_private_folder

_MAX_PATH_BYTES = 107  # sun_path of struct sockaddr_un, without its final zero


class SocketFile:
    """A bound, listening Unix socket and the lock that says it is in use."""

    def __init__(self, path: str) -> None:
        """Bind ``path``, replacing a socket that nobody listens to.

        Raises :class:`AgentError` if another agent listens, or if the path cannot be used.
        """
        if len(os.fsencode(path)) > _MAX_PATH_BYTES - len(".starting"):
            raise AgentError(f"the socket path {path} is too long for a Unix socket; set a shorter agent.socket")
        self.path = path
        prepare_private_folder(Path(path).parent, "the agent's socket", "agent.socket", AgentError)
        self._lock = _lock(path)
        try:
            self.sock = _bind(path)
            self._inode = Path(path).stat().st_ino
        except OSError as error:
            os.close(self._lock)
            raise AgentError(f"cannot listen at {path}: {error.strerror}") from error
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


def _lock(path: str) -> int:
    """Own the path: the lock goes with this process, however it ends."""
    lock_path = f"{path}.lock"
    try:
        fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(f"cannot create {lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise AgentError(f"another agent listens at {path}; stop it, or set another agent.socket") from error
    return fd


def _bind(path: str) -> socket.socket:
    _refuse_in_use(path)
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


def _refuse_in_use(path: str) -> None:
    try:
        mode = Path(path).lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AgentError(f"{path} exists and is no socket; remove it, or set another agent.socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return
            raise AgentError(f"somebody seems to listen at {path} ({error.strerror or error})") from error
    raise AgentError(f"another program listens at {path}; set another agent.socket")
