"""openYuanrong's client library: where it is imported, how it is set up, and the part of it that is used.

Read and run with openyuanrong-datasystem 0.8.1 (``yr/datasystem/kv_client.py``). It keeps the interpreter's
lock during each call, so all of this runs in processes of its own (:mod:`kveik.store.apart`).
"""

import importlib
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from kveik.config_stores import YuanrongSettings
from kveik.errors import ConfigError, StoreError
from kveik.setting import default_runtime_dir
from kveik.store.base import Capabilities
from kveik.store.key_text import DEFAULT_PREFIX
from kveik.store.yuanrong_errors import trouble_of

PACKAGE = "openyuanrong-datasystem"
#: Most keys of one call of ``exist`` (documented); of others, 2000.
EXIST_KEYS_MAX = 10_000
#: Keys and bytes that are best moved by one call (measured: docs/yuanrong.md). How many bytes the worker is asked
#: for at once, the store finds out (see :func:`~kveik.store.yuanrong.next_call_bytes`).
BATCH_KEYS = 32
BATCH_BYTES = 128 << 20

#: What the library reads at its import, unless it is set: errors only (it warns of each miss), three files of 20 MB.
_ENVIRONMENT = {
    "DATASYSTEM_CLIENT_LOG_DIR": f"{default_runtime_dir()}/yuanrong",
    "DATASYSTEM_MIN_LOG_LEVEL": "2",
    "DATASYSTEM_CLIENT_MAX_LOG_SIZE": "20",
    "DATASYSTEM_MAX_LOG_FILE_NUM": "3",
    "DATASYSTEM_LOG_MONITOR_ENABLE": "false",
}


class ReadOnlyBuffer(Protocol):
    """A value in the worker's shared memory; it is released with the last reference."""

    def immutable_data(self) -> memoryview:
        """The value."""
        ...


class KvClient(Protocol):
    """The calls that are used. Each raises ``RuntimeError`` with a text that :func:`trouble_of` reads."""

    def exist(self, keys: list[str]) -> list[bool]:
        """Whether each key is known."""
        ...

    def get_read_only_buffers(self, keys: list[str]) -> list[ReadOnlyBuffer | None]:
        """Each value, or None; raises if none is there."""
        ...

    def set_new(self, key: str, value: memoryview) -> None:
        """Keep a value under a key that is not there yet."""
        ...

    def delete(self, keys: list[str]) -> list[str]:
        """Forget keys; those that could not be forgotten."""
        ...

    def close(self) -> None:
        """End the connection, while its worker lives; nothing may be called after it."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class YuanrongOptions:
    """How to reach the worker, and how blocks are kept. ``prefix`` stands before the name of each key."""

    host: str
    port: int
    connect_ms: int = 3000
    request_ms: int = 2000
    evictable: bool = True
    ttl_s: int = 0
    prefix: str = DEFAULT_PREFIX

    @classmethod
    def from_settings(cls, settings: YuanrongSettings) -> Self:
        """The options in the ``[yuanrong]`` section. Raises :class:`ConfigError` for an address without port."""
        host, _, port = settings.worker.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"yuanrong.worker is {settings.worker!r}, expected HOST:PORT of this node's worker")
        return cls(
            host=host,
            port=int(port),
            connect_ms=round(settings.connect_s * 1000),
            request_ms=round(settings.request_s * 1000),
            evictable=settings.evictable,
            ttl_s=round(settings.ttl_hours * 3600),
        )

    @property
    def capabilities(self) -> Capabilities:
        """Other nodes see the blocks; a worker's end is the end of its blocks. What limits them is the worker's."""
        return Capabilities(durable=False, shared=True, bounded=False, batch_keys=BATCH_KEYS, batch_bytes=BATCH_BYTES)


def require_package() -> Path:
    """The folder of the client's package. Raises :class:`ConfigError` that says what to install."""
    try:
        found = importlib.util.find_spec("yr.datasystem")
    except ModuleNotFoundError:
        found = None
    if found is None or not found.submodule_search_locations:
        raise ConfigError(
            f"the yuanrong tier needs the package {PACKAGE}, which is not installed here: pip install kveik[yuanrong]"
        )
    return Path(found.submodule_search_locations[0])


def connected(options: YuanrongOptions) -> KvClient:
    """A client whose worker answers. Raises :class:`StoreError` if none does, :class:`ConfigError` without package."""
    require_package()
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    library = importlib.import_module("yr.datasystem.kv_client")
    client = library.KVClient(
        options.host, options.port, connect_timeout_ms=options.connect_ms, req_timeout_ms=options.request_ms
    )
    try:
        client.init()
    except RuntimeError as error:
        where = f"{options.host}:{options.port}"
        raise StoreError(f"no datasystem worker answers at {where}: {trouble_of(str(error)).detail}") from error
    return _Client(client, library, options)


class _Client:
    """The library's client with our way to write."""

    def __init__(self, client: Any, library: Any, options: YuanrongOptions) -> None:
        self._client = client
        mode = library.WriteMode
        self._mode = mode.NONE_L2_CACHE_EVICT if options.evictable else mode.NONE_L2_CACHE
        self._new = library.ExistenceOpt.NX
        self._ttl_s = options.ttl_s

    def exist(self, keys: list[str]) -> list[bool]:
        return [bool(present) for present in self._client.exist(keys)]

    def get_read_only_buffers(self, keys: list[str]) -> list[ReadOnlyBuffer | None]:
        found: list[ReadOnlyBuffer | None] = self._client.get_read_only_buffers(keys)
        return found

    def set_new(self, key: str, value: memoryview) -> None:
        # One key: of several, none is kept if one is there already.
        self._client.msettx([key], [value], self._mode, self._ttl_s, self._new)

    def delete(self, keys: list[str]) -> list[str]:
        failed: list[str] = self._client.delete(keys)
        return failed

    def close(self) -> None:
        # The library has no call for it: its object ends the connection when it goes. Without a worker that
        # takes from seconds to minutes, with the interpreter's lock held.
        self._client = None
