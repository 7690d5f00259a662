"""Looks at a folder that is meant to be a tier, and at whether two of them are one. May not hang, whatever the mount.

What touches the mount runs on a thread of its own that is waited for with a limit and then left behind.
"""

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.doctor.mount_facts import MountFacts, Speed
from kveik.doctor.mount_table import exported, on_system_disk
from kveik.doctor.mount_trials import measure, room_of, try_direct, try_locks, try_rules, words
from kveik.store.filesystem_medium import mount_above, mount_table, mounts_in

#: How long a mount may take for each step.
STEP_S = 8.0
#: How long a name that was written through one mount may take to be seen through another: clients keep names a while.
SEEN_S = 5.0
_POLL_S = 0.1
_PREFIX = ".kveik-doctor-"
_EXPORTS = ("/var/lib/nfs/etab", "/etc/exports")
_Seen = TypeVar("_Seen")


class _Silent(Exception):  # noqa: N818 (control flow of this module)
    """A step did not end in time."""


def look_at(folder: Path, step_s: float = STEP_S, clock: Clock = SYSTEM_CLOCK) -> MountFacts:
    """Everything about one folder. Leaves nothing behind, unless the mount hangs."""
    path = os.path.abspath(folder)
    mounts = mounts_in(mount_table())
    mount = mount_above(path, mounts)
    facts = MountFacts(
        path, mount, system_disk=on_system_disk(mount, mounts), exported=exported(path, _texts(_EXPORTS))
    )
    try:
        place = _within(step_s, "making a folder there", lambda: _nearest(Path(path)))
        facts = replace(facts, tried_in=str(place), room=_within(step_s, "its size", lambda: room_of(place)))
        facts = _within(2 * step_s, "trying it out", partial(_tried, facts, place))
    except _Silent as error:
        return replace(facts, silent=str(error))
    except OSError as error:
        return replace(facts, trouble=words(error))
    try:
        return replace(facts, speed=_within(4 * step_s, "measuring", lambda: _measured(place, clock)))
    except _Silent as error:
        return replace(facts, unmeasured=str(error))
    except OSError as error:
        return replace(facts, trouble=words(error))


def _tried(facts: MountFacts, place: Path) -> MountFacts:
    with _directory(place) as directory:
        return replace(
            facts,
            rules=tuple(try_rules(directory)),
            locks=tuple(try_locks(directory)),
            direct=try_direct(directory),
        )


def _measured(place: Path, clock: Clock) -> Speed:
    with _directory(place) as directory:
        return measure(directory, clock)


@contextlib.contextmanager
def _directory(place: Path) -> Iterator[Path]:
    """An empty directory there, which goes with all that is in it."""
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _nearest(path: Path) -> Path:
    """The folder, or the nearest one above it that is there. Raises ``OSError``."""
    for folder in (path, *path.parents):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.stat(folder).st_mode):
                return folder
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def seen_through(one: Path, two: Path, clock: Clock = SYSTEM_CLOCK, seen_s: float = SEEN_S) -> str:
    """Why what is written into one folder is not what is read in the other; empty if it is. May be the same folder."""
    name, nonce = f"{_PREFIX}{secrets.token_hex(8)}", secrets.token_bytes(64)
    try:
        seen = partial(_seen, one / name, two / name, nonce, clock, seen_s)
        return _within(seen_s + STEP_S, "writing and reading", seen)
    except _Silent as error:
        return str(error)
    except OSError as error:
        return words(error)


def _seen(written: Path, read: Path, nonce: bytes, clock: Clock, seen_s: float) -> str:
    written.write_bytes(nonce)
    try:
        limit = Deadline.after(seen_s, clock)
        while True:
            with contextlib.suppress(FileNotFoundError):
                os.listdir(read.parent)  # has a client ask its server for names
                return "" if read.read_bytes() == nonce else "other bytes are read there than were written"
            if limit.passed:
                return f"what is written into {written.parent} is not seen in {read.parent} within {seen_s:g} s"
            threading.Event().wait(_POLL_S)
    finally:
        written.unlink(missing_ok=True)


def _within(limit_s: float, what: str, call: Callable[[], _Seen]) -> _Seen:
    """What a call gives. Raises :class:`_Silent` if it takes too long, and what the call raises."""
    results: list[_Seen] = []
    errors: list[OSError] = []

    def run() -> None:
        try:
            results.append(call())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="doctor-mount", daemon=True)
    thread.start()
    thread.join(limit_s)
    if errors:
        raise errors[0]
    if results:
        return results[0]
    raise _Silent(f"{what} took longer than {limit_s:g} s" if thread.is_alive() else f"{what} broke, as told above")


def _texts(names: Sequence[str]) -> Iterator[str]:
    for name in names:
        with contextlib.suppress(OSError):
            yield Path(name).read_text(encoding="utf8", errors="replace")
