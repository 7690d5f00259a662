"""The file of API keys: names, limits and hashes, never a key itself.

Why one fast keyed hash and not a slow password hash: a key is 256 random bits that this module
drew itself, not a word that somebody chose. Nobody can go through 2**256 guesses however fast the
hash is, so slowness would protect nothing and cost every first request of a key a tenth of a second
of the router's only loop. The hash is keyed with the file's own random salt, so equal keys in two
files look different and no table made beforehand helps.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kveik.errors import ConfigError
from kveik.lock_file import owned_in_turn

KEY_PREFIX = "sk-kveik-"
_KEY_BYTES = 32
_HEX_256_BITS = re.compile(r"[0-9a-f]{64}")
#: Names become metric labels and log fields, so they are short and plain.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key. A limit of 0 is none; no ``models`` means all of them.

    ``models`` are globs (``qwen-*``). ``tenant`` is who shares cached prompts when isolation is on:
    keys without one are a tenant of their own. ``hash`` is that of the key, 64 hex digits.
    """

    name: str
    hash: str = ""
    tenant: str = ""
    models: tuple[str, ...] = ()
    requests_per_min: int = 0
    tokens_per_min: int = 0
    concurrent: int = 0
    created: str = ""

    @property
    def tenant_name(self) -> str:
        """The tenant; of a key without one a name that no tenant can have."""
        return self.tenant or f"({self.name})"


class KeysFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    salt: str
    keys: tuple[ApiKey, ...] = ()

    def hash_of(self, presented: bytes) -> str:
        """The hash under which a presented key stands in this file."""
        return hashlib.blake2b(presented, key=self.salt.encode(), digest_size=32).hexdigest()

    def cache_salt(self, tenant: str) -> str:
        """The ``cache_salt`` of a tenant: the same after a restart, and not to be guessed from its name."""
        return hmac.new(self.salt.encode(), b"cache_salt\0" + tenant.encode(), hashlib.sha256).hexdigest()[:32]


def read_keys(path: Path) -> KeysFile:
    """The file's content, checked.

    Raises :class:`ConfigError` where it cannot be read, is no such file, names a key twice, or can
    be changed by other users (who could give themselves a key).
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read()
    except OSError as error:
        raise ConfigError(f"cannot read the keys file {path}: {error.strerror}") from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"the keys file {path} can be changed by other users: chmod go-w it")
    try:
        keys = msgspec.json.decode(content, type=KeysFile)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # ValidationError is a DecodeError
        raise ConfigError(f"{path} is no keys file: {error}") from error
    return _checked(keys, path)


def write_keys(path: Path, keys: KeysFile) -> None:
    """Replace the file in one step; only its owner may read it. Raises :class:`ConfigError`."""
    content = msgspec.json.format(msgspec.json.encode(_checked(keys, path)), indent=1) + b"\n"
    being_written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(being_written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            being_written.replace(path)
        except BaseException:
            being_written.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(f"cannot write the keys file {path}: {error.strerror}") from error


def with_key_added(keys: KeysFile, key: ApiKey) -> tuple[KeysFile, str]:
    """The file with one more key, and that key, which is nowhere else: show it once."""
    if any(known.name == key.name for known in keys.keys):
        raise ConfigError(f"there is already a key named {key.name!r}: revoke it first, or choose another name")
    secret = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)
    added = msgspec.structs.replace(key, hash=keys.hash_of(secret.encode()))
    return msgspec.structs.replace(keys, keys=(*keys.keys, added)), secret


def with_key_revoked(keys: KeysFile, name: str) -> KeysFile:
    """The file without one key. Raises :class:`ConfigError` if it has none of that name."""
    left = tuple(key for key in keys.keys if key.name != name)
    if len(left) == len(keys.keys):
        raise ConfigError(f"there is no key named {name!r}")
    return msgspec.structs.replace(keys, keys=left)


def empty_keys() -> KeysFile:
    """A file without keys, with a salt of its own."""
    return KeysFile(salt=secrets.token_hex(32))


@contextlib.contextmanager
def editing(path: Path) -> Iterator[KeysFile]:
    """The file's content (an empty one where there is none) while nobody else edits it.

    Raises :class:`ConfigError`.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = owned_in_turn(path.with_name(f".{path.name}.lock"))
    except OSError as error:
        raise ConfigError(f"cannot write beside the keys file {path}: {error.strerror}") from error
    try:
        yield read_keys(path) if path.exists() else empty_keys()
    finally:
        os.close(lock)


def _checked(keys: KeysFile, path: Path) -> KeysFile:
    names: set[str] = set()
    if not _HEX_256_BITS.fullmatch(keys.salt):
        raise ConfigError(f"{path}: salt must be 64 hex digits")
    for key in keys.keys:
        if not _NAME.fullmatch(key.name) or (key.tenant and not _NAME.fullmatch(key.tenant)):
            wrong = key.tenant if _NAME.fullmatch(key.name) else key.name
            raise ConfigError(f"{path}: {wrong!r} is no name: 1 to 64 letters, digits, dots, dashes or underscores")
        if key.name in names:
            raise ConfigError(f"{path}: two keys are named {key.name!r}")
        if not _HEX_256_BITS.fullmatch(key.hash):
            raise ConfigError(f"{path}: the hash of {key.name!r} must be 64 hex digits")
        if min(key.requests_per_min, key.tokens_per_min, key.concurrent) < 0:
            raise ConfigError(f"{path}: a limit of {key.name!r} is negative; 0 means none")
        names.add(key.name)
    return keys
