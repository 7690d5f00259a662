"""Folders and files that no other user may change: the agent's socket, the registry's file, what processes remember."""

import contextlib
import os
import stat
from pathlib import Path

from kveik.errors import KveikError


def prepare_private_folder(folder: Path, what: str, setting: str, error: type[KveikError]) -> None:
    """Make the folder of ``what``, for this user only; one that others may write into is refused.

    Raises ``error``, which names the ``setting`` that would choose another folder.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as failure:
        raise error(f"cannot use the folder {folder} for {what}: {failure.strerror}") from failure
    shared = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if status.st_uid not in (os.geteuid(), 0) or (shared and not status.st_mode & stat.S_ISVTX):
        raise error(f"the folder {folder} of {what} can be changed by other users; set another {setting}")


def replace_private_file(path: Path, content: bytes, *, sync: bool = True) -> None:
    """Replace a file of this user as a whole. Raises :class:`OSError`; then the old one stays.

    ``sync``: it is on disk before it is seen, for what a power failure must not lose.

    Only one may write a file at a time, which its owner's lock has to see to: what a kill left of a try is removed.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        if sync:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
