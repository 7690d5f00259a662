"""The members in one file: replaced as a whole, for this user only, and one router at a time.

A file that cannot be understood is set aside under another name and never stops a start: engines
announce themselves again within a heartbeat.
"""

import contextlib
import logging
import os
from pathlib import Path
from typing import Literal

import msgspec

from kveik.config import default_runtime_dir
from kveik.errors import ConfigError, RegistryError
from kveik.fleet.announcement import check_announcement
from kveik.fleet.membership import Member, Membership, Retention
from kveik.lock_file import owned
from kveik.private_folder import prepare_private_folder, replace_private_file

logger = logging.getLogger("kveik.fleet")


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["kveik fleet 1"] = "kveik fleet 1"
    revision: int
    saved_at_s: float
    members: list[Member]


def default_file() -> Path:
    """Where the members are kept unless a setting says otherwise."""
    return Path(default_runtime_dir()) / "fleet.json"


class MemberFile:
    """The file of one router."""

    def __init__(self, path: Path, *, lock_wait_s: float = 5.0) -> None:
        """Own the file; a router that is just ending gets ``lock_wait_s`` seconds to let go of it.

        Raises :class:`RegistryError` if another router uses it, or its folder is not usable or not safe.
        """
        self.path = path
        prepare_private_folder(path.parent, "the registry file", "router.registry_file", RegistryError)
        self._lock = _lock(path, lock_wait_s)

    def __repr__(self) -> str:
        return f"MemberFile({self.path})"

    def load(self, retention: Retention, now_s: float) -> Membership:
        """What was saved last, empty if nothing was. Raises :class:`RegistryError` if it cannot be read.

        The time in which no router ran does not count against leases: nobody could take a heartbeat.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return Membership(retention=retention)
        except OSError as error:
            raise RegistryError(f"cannot read the registry file {self.path}: {error.strerror}") from error
        try:
            content = msgspec.json.decode(raw, type=_Content)
            for member in content.members:
                check_announcement(member.announcement)
        except (msgspec.MsgspecError, ConfigError, RecursionError) as error:
            self._put_aside(str(error))
            return Membership(retention=retention)
        members = {member.name: _resumed(member, content.saved_at_s, now_s) for member in content.members}
        return Membership(members, content.revision, retention)

    def save(self, membership: Membership, now_s: float) -> None:
        """Replace the file. Raises :class:`RegistryError`; then the old content is still there."""
        content = _Content(
            revision=membership.revision, saved_at_s=now_s, members=sorted(membership.members.values(), key=_name)
        )
        try:
            replace_private_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=1))
            _sync_folder(self.path.parent)
        except OSError as error:
            raise RegistryError(f"cannot write the registry file {self.path}: {error.strerror}") from error

    def close(self) -> None:
        """Let another router use the file. May be called again."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _put_aside(self, why: str) -> None:
        aside = self.path.with_name(f"{self.path.name}.not-understood")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        logger.warning(
            "%s is not understood (%s); it is now %s, and engines announce themselves again", self.path, why, aside.name
        )


def _name(member: Member) -> str:
    return member.name


def _resumed(member: Member, saved_at_s: float, now_s: float) -> Member:
    if member.lease_ends_s is None:
        return member
    left_s = min(member.lease_ends_s - saved_at_s, member.announcement.lease_s)
    return msgspec.structs.replace(member, lease_ends_s=now_s + left_s)


def _lock(path: Path, wait_s: float) -> int:
    """Own the path: the lock goes with this process, however it ends."""
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = owned(lock_path, wait_s)
    except OSError as error:
        raise RegistryError(f"cannot create {lock_path}: {error.strerror}") from error
    if lock is None:
        raise RegistryError(f"another router uses {path}; stop it, or set another router.registry_file")
    return lock


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
