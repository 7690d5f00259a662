"""How far a roll came, in a file that the next one finds; and one roll at a time."""

import contextlib
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from kveik.errors import RollError
from kveik.launch.roll_plan import RollState
from kveik.lock_file import owned
from kveik.private_folder import prepare_private_folder, replace_private_file


class RollNotebook:
    """A context manager: while it is open no other roll of this node runs.

    A file that is not understood is taken for none: then a roll begins anew, which does no harm.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = -1

    def __repr__(self) -> str:
        return f"RollNotebook({self.path})"

    def __enter__(self) -> Self:
        """Raises :class:`RollError` while another roll runs."""
        prepare_private_folder(self.path.parent, "the state of a roll", "fleet.state_folder", RollError)
        try:
            lock = owned(self.path.with_name(f"{self.path.name}.lock"))
        except OSError as error:
            raise RollError(f"cannot use {self.path}: {error.strerror}") from error
        if lock is None:
            raise RollError("another kveik roll is at work on this node; wait for its end")
        self._lock = lock
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)
        self._lock = -1

    def read(self) -> RollState | None:
        """What the last roll left; None if it was finished, or if there was none."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=RollState)
        except (OSError, msgspec.MsgspecError, RecursionError):
            return None

    def write(self, state: RollState) -> None:
        """Replace it as a whole. Raises :class:`RollError`."""
        try:
            replace_private_file(self.path, msgspec.json.encode(state))
        except OSError as error:
            raise RollError(f"cannot write {self.path}: {error.strerror}") from error

    def forget(self) -> None:
        """The roll is finished."""
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
