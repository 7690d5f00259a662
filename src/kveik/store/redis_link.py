"""A connection pool to a Redis or Valkey server, from the settings: the one place that imports the client library."""

import importlib
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kveik.config_stores import RedisSettings
from kveik.errors import ConfigError, ServerRefusedError
from kveik.store.redis_values import Values

PACKAGE = "redis"
#: Parts of a command up to this size are sent as one piece of memory, larger ones from where they lie.
JOINED_BYTES = 6000


class RedisPipeline(Protocol):
    """Commands that go out together; the answers are in their order, errors among them."""

    def set(self, name: str, value: Any, *, px: int | None = None, nx: bool = False) -> Any:
        """Queue SET."""
        ...

    def exists(self, name: str) -> Any:
        """Queue EXISTS."""
        ...

    def strlen(self, name: str) -> Any:
        """Queue STRLEN."""
        ...

    def unlink(self, name: str) -> Any:
        """Queue UNLINK."""
        ...

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send all and wait for all answers."""
        ...


class RedisConnection(Protocol):
    """One connection of the pool, which is nobody else's meanwhile."""

    #: No part of the library's interface, but there in all its versions: nothing else reads into given memory.
    _sock: socket.socket

    def send_command(self, *words: str) -> None:
        """Send a command."""
        ...

    def disconnect(self) -> None:
        """Close it; it connects again when it is used."""
        ...


class RedisPool(Protocol):
    """The connections of a client."""

    def get_connection(self) -> RedisConnection:
        """One that is connected."""
        ...

    def release(self, connection: RedisConnection) -> None:
        """Give it back."""
        ...


class RedisClient(Protocol):
    """What the tier uses of ``redis.Redis``."""

    connection_pool: RedisPool

    def ping(self) -> Any:
        """Ask whether the server answers."""
        ...

    def info(self) -> Mapping[str, object]:
        """What the server says about itself."""
        ...

    def dbsize(self) -> int:
        """How many keys the database has."""
        ...

    def set(self, name: str, value: Any, *, px: int | None = None, nx: bool = False) -> Any:
        """Store one value."""
        ...

    def unlink(self, *names: str) -> int:
        """Delete keys."""
        ...

    def scan(self, cursor: int, match: str, count: int) -> tuple[int, list[bytes]]:
        """Some keys, and where to go on."""
        ...

    def pipeline(self, transaction: bool = True) -> RedisPipeline:
        """Begin a pipeline."""
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


@dataclass(frozen=True, slots=True)
class RedisLink:
    """A client, what it raises, and where it leads, for people."""

    client: RedisClient
    errors: tuple[type[Exception], ...]
    place: str

    @contextmanager
    def reading(self, names: Sequence[str]) -> Iterator[Values]:
        """MGET: what comes back has to be read to its end within the block. Raises some of ``errors``."""
        pool = self.client.connection_pool
        connection = pool.get_connection()
        try:
            connection.send_command("MGET", *names)
            yield Values(connection._sock, len(names))
        except ServerRefusedError:
            raise
        except BaseException:
            connection.disconnect()  # the rest of the answer would be taken for the next one
            raise
        finally:
            pool.release(connection)


def library() -> Any:
    """The client library. Raises :class:`ConfigError` that says what to install."""
    try:
        return importlib.import_module(PACKAGE)
    except ImportError as error:
        raise ConfigError(
            f"redis.address is set, but the Python package {PACKAGE!r} is not installed here ({error}): "
            "pip install 'kveik[redis]', or remove redis.address"
        ) from error


def connect(settings: RedisSettings) -> RedisLink:
    """A client that connects when it is first used. Raises :class:`ConfigError` for settings that cannot work."""
    redis = library()
    client: Any = redis.Redis(
        **_place(settings),
        db=settings.database,
        username=settings.user or None,
        password=_password(settings.password_file),
        socket_timeout=settings.connect_s,
        socket_connect_timeout=settings.connect_s,
        client_name="kveik",
        protocol=2,  # nothing comes that was not asked for
        # Retries are the guard's, within its budget; the library's own would multiply every time-out.
        retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    )
    # Its other way to write commands, by hiredis, copies each value twice: half as fast.
    encode = client.get_encoder().encode
    packer = redis.connection.PythonRespSerializer(JOINED_BYTES, encode)
    client.connection_pool.connection_kwargs["command_packer"] = packer
    errors = (redis.RedisError, OSError, ServerRefusedError)
    return RedisLink(client, errors, f"{settings.address}, database {settings.database}")


def _place(settings: RedisSettings) -> dict[str, Any]:
    address = settings.address
    if address.startswith("/"):
        if settings.tls:
            raise ConfigError("redis.tls is true, but redis.address is a Unix socket: set one of them otherwise")
        return {"unix_socket_path": address}
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"redis.address is {address!r}, expected HOST:PORT or the path of a Unix socket")
    tls = {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True} if settings.tls else {}
    return {"host": host.strip("[]"), "port": int(port), "socket_keepalive": True, **tls}


def _password(path: str) -> str | None:
    if not path:
        return None
    try:
        first = Path(path).read_text(encoding="utf8").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"redis.password_file is {path!r}, which cannot be read: {error}") from error
    if not first:
        raise ConfigError(f"redis.password_file is {path!r}, whose first line is empty, expected the password")
    return first
