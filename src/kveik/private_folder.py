"""Folders for files that no other user may change: the agent's socket, the registry's file."""

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
