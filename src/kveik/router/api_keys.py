"""Who presents a key: lookup by hash, and the keys file followed while the router runs."""

import hmac
from pathlib import Path

from kveik.errors import ConfigError
from kveik.records import Listener, StateRecord, ignore
from kveik.router.keys_file import ApiKey, KeysFile, read_keys

#: Who sends a request when no keys are asked for.
ANYONE = ApiKey(name="anyone")

_CACHED_MAX = 4096
_CREDENTIAL_BYTES_MAX = 512
_Identity = tuple[int, int, int]


class ApiKeys:
    """The keys of one file, looked up by what a client presents.

    A client's credentials are hashed once; after that they are found in a bounded table in memory
    (process memory only: the file holds hashes). Only credentials that are right enter the table,
    so nobody can fill it with guesses. A dict compares bytes only where their seeded 64-bit hashes
    agree, so how long a lookup takes tells nothing about a key; the hash of an unknown one is
    compared in constant time.
    """

    def __init__(self, path: Path, listener: Listener = ignore) -> None:
        """Read the keys. Raises :class:`ConfigError` if that is not possible: no router without its keys."""
        self._path = path
        self._listener = listener
        self._seen = _identity(path)
        self._problem = ""
        self._take(read_keys(path))

    def __repr__(self) -> str:
        return f"ApiKeys({self._path}, {len(self._by_hash)} keys, problem={self._problem!r})"

    @property
    def problem(self) -> str:
        """Why the file on disk is not what is in force; empty if it is."""
        return self._problem

    @property
    def by_name(self) -> dict[str, ApiKey]:
        """The keys in force."""
        return {key.name: key for key in self._by_hash.values()}

    def find(self, credentials: bytes | None) -> ApiKey | None:
        """The key that a header value gives: ``Bearer KEY`` of Authorization, or a bare key."""
        if credentials is None:
            return None
        known = self._cached.get(credentials)
        return known if known is not None else self._find_unknown(credentials)

    def cache_salt(self, tenant: str) -> str:
        """The tenant's ``cache_salt``."""
        return self._file.cache_salt(tenant)

    def reload_if_changed(self) -> bool:
        """Follow the file; call it about once a second. True if the keys in force changed.

        A file that is gone or broken changes nothing, and is told to the listener once.
        """
        identity = _identity(self._path)
        if identity == self._seen:
            return False
        self._seen = identity
        try:
            file = read_keys(self._path)
        except ConfigError as error:
            self._say("broken", f"{error}; the keys read before stay in force")
            return False
        self._take(file)
        self._say("ready", f"{len(file.keys)} keys in force")
        return True

    def _say(self, after: str, why: str) -> None:
        before = "broken" if self._problem else "ready"
        self._problem = why if after == "broken" else ""
        self._listener(StateRecord("router.keys", before, after, why))

    def _take(self, file: KeysFile) -> None:
        self._file = file
        self._by_hash = {key.hash: key for key in file.keys}
        self._cached: dict[bytes, ApiKey] = {}

    def _find_unknown(self, credentials: bytes) -> ApiKey | None:
        if len(credentials) > _CREDENTIAL_BYTES_MAX:
            return None
        scheme, _, rest = credentials.partition(b" ")
        presented = (rest if scheme.lower() == b"bearer" else credentials).strip()
        digest = self._file.hash_of(presented)
        key = self._by_hash.get(digest)
        if key is None or not hmac.compare_digest(key.hash, digest):
            return None
        if len(self._cached) >= _CACHED_MAX:
            self._cached.clear()
        self._cached[credentials] = key
        return key


def _identity(path: Path) -> _Identity | None:
    """What changes when the file does; None if it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
