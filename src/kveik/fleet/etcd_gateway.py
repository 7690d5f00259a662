"""etcd's JSON gateway over plain HTTP: the few calls that a registry needs.

Every call raises :class:`~kveik.errors.RegistryError` where no endpoint answers within the deadline
or the answer is no answer. Endpoints are tried in turn, beginning with the one that worked last.
"""

import base64
import binascii
import contextlib
import http.client
import json
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.errors import ConfigError, RegistryError

DEFAULT_PREFIX = "/kveik/fleet"
_SHOWN = 200
#: etcd refuses transactions of more operations.
OPERATIONS_MAX = 128


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """``etcd://HOST:PORT[,HOST:PORT][/PREFIX]``."""

    endpoints: tuple[tuple[str, int], ...]
    prefix: str = DEFAULT_PREFIX

    @classmethod
    def parse(cls, text: str) -> "EtcdAddress":
        """The address in ``text``. Raises :class:`ConfigError`."""
        match = re.fullmatch(r"etcd://([^/]+)(/[A-Za-z0-9._/-]*)?", text)
        pairs = (
            [re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})", p) for p in match[1].split(",")]
            if match
            else []
        )
        if match is None or not all(pair and 1 <= int(pair[2]) <= 65535 for pair in pairs):
            raise ConfigError(f"the registry is {text!r}, expected etcd://HOST:PORT[,HOST:PORT][/PREFIX]")
        endpoints = tuple((pair[1].strip("[]"), int(pair[2])) for pair in pairs if pair)
        return cls(endpoints, (match[2] or "").rstrip("/") or DEFAULT_PREFIX)

    def __str__(self) -> str:
        return f"etcd://{','.join(f'{host}:{port}' for host, port in self.endpoints)}{self.prefix}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key: its value, the revision of its last change, and the lease it is bound to (0: none)."""

    value: bytes
    revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All keys under a prefix, by the rest of their names, at one revision of etcd."""

    entries: Mapping[str, Entry]
    revision: int


@dataclass(frozen=True, slots=True)
class Write:
    """One key to put, or to delete where ``value`` is None."""

    key: str
    value: bytes | None
    lease: int = 0


class EtcdGateway:
    """The calls, for one prefix. Thread-safe: each call has a connection of its own."""

    def __init__(self, address: EtcdAddress, *, deadline_s: float = 2.0) -> None:
        self.address = address
        self._deadline_s = deadline_s
        self._first = 0
        self._watching: http.client.HTTPConnection | None = None
        self._closed = False

    def snapshot(self) -> Snapshot:
        """Everything under the prefix."""
        answer = self._call("/v3/kv/range", self._range())
        entries = {}
        for pair in _sequence(answer, "kvs"):
            key = _decoded(pair.get("key")).decode("utf8", "replace").removeprefix(f"{self.address.prefix}/")
            value = _decoded(pair.get("value", ""))
            entries[key] = Entry(value, _whole(pair, "mod_revision"), _whole(pair, "lease"))
        return Snapshot(entries, _header_revision(answer))

    def commit(self, writes: Sequence[Write], unchanged: Mapping[str, int]) -> bool:
        """Do all writes or none: none if a key of ``unchanged`` is not of that revision (0: not there)."""
        compare = [
            {"key": self._key(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in unchanged.items()
        ]
        success = [self._operation(write) for write in writes]
        return self._call("/v3/kv/txn", {"compare": compare, "success": success}).get("succeeded") is True

    def grant(self, seconds: int) -> int:
        """A new lease; its id."""
        lease = _whole(self._call("/v3/lease/grant", {"TTL": str(seconds)}), "ID")
        if not lease:
            raise RegistryError("etcd granted a lease without an id")
        return lease

    def keep_alive(self, lease: int) -> bool:
        """Renew a lease; false if it has ended."""
        answer = self._call("/v3/lease/keepalive", {"ID": str(lease)}).get("result")
        return isinstance(answer, dict) and _whole(answer, "TTL") > 0

    def revoke(self, lease: int) -> None:
        """End a lease that is of no use."""
        self._call("/v3/lease/revoke", {"ID": str(lease)})

    def wait_event(self, after_revision: int, timeout_s: float) -> None:
        """Return when something under the prefix changed after that revision, or after the time-out."""
        body = {"create_request": {**self._range(), "start_revision": str(after_revision + 1)}}
        connection, response = self._open("/v3/watch", body)
        self._watching = connection
        try:
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            while not self._closed:
                line = response.readline()
                if not line:
                    raise RegistryError(f"{self.address}: the watch ended")
                result = _parsed(line).get("result")
                if not isinstance(result, dict) or result.get("events") or result.get("canceled"):
                    return
        except TimeoutError:
            return
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(f"{self.address}: the watch broke: {error}") from error
        finally:
            self._watching = None
            connection.close()

    def close(self) -> None:
        """Wake the thread in :meth:`wait_event`."""
        self._closed = True
        watching = self._watching
        if watching is not None and watching.sock is not None:
            with contextlib.suppress(OSError):
                watching.sock.shutdown(socket.SHUT_RDWR)

    def _operation(self, write: Write) -> Mapping[str, Any]:
        if write.value is None:
            return {"request_delete_range": {"key": self._key(write.key)}}
        value = base64.b64encode(write.value).decode()
        return {"request_put": {"key": self._key(write.key), "value": value, "lease": str(write.lease)}}

    def _range(self) -> dict[str, str]:
        first = f"{self.address.prefix}/"
        return {"key": _encoded(first), "range_end": _encoded(f"{self.address.prefix}0")}  # "0" comes after "/"

    def _key(self, key: str) -> str:
        return _encoded(f"{self.address.prefix}/{key}")

    def _call(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        connection, response = self._open(path, body)
        try:
            raw = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise RegistryError(f"{self.address}: the answer of {path} broke off: {error!r}") from error
        finally:
            connection.close()
        return _parsed(raw)

    def _open(self, path: str, body: Mapping[str, Any]) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        endpoints = self.address.endpoints
        failures = []
        for offset in range(len(endpoints)):
            number = (self._first + offset) % len(endpoints)
            host, port = endpoints[number]
            connection = http.client.HTTPConnection(host, port, timeout=self._deadline_s)
            try:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
                response = connection.getresponse()
                if response.status == http.client.OK:
                    self._first = number
                    return connection, response
                failures.append(f"{host}:{port}: HTTP {response.status}: {_shown(response.read(_SHOWN))}")
            except (OSError, http.client.HTTPException) as error:
                failures.append(f"{host}:{port}: {error or type(error).__name__}")
            connection.close()
        raise RegistryError(f"etcd does not answer {path}: {'; '.join(failures)}")


def _encoded(key: str) -> str:
    return base64.b64encode(key.encode()).decode()


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise RegistryError(f"etcd answered {str(text)[:_SHOWN]!r} where base64 belongs") from error


def _parsed(raw: bytes) -> Mapping[str, Any]:
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise RegistryError(f"etcd answered what is no JSON: {_shown(raw)}") from error
    if not isinstance(answer, dict):
        raise RegistryError(f"etcd answered {_shown(raw)}, expected an object")
    return answer


def _sequence(answer: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    value = answer.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RegistryError(f"etcd answered {name} that is no list of objects")
    return value


def _header_revision(answer: Mapping[str, Any]) -> int:
    header = answer.get("header")
    return _whole(header, "revision") if isinstance(header, dict) else 0


def _whole(answer: Mapping[str, Any], name: str) -> int:
    """A 64-bit number, which the gateway writes as text and leaves out where it is 0."""
    value = answer.get(name, 0)
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise RegistryError(f"etcd answered {name} {str(value)[:_SHOWN]!r}, expected a whole number") from error


def _shown(raw: bytes) -> str:
    return raw[:_SHOWN].decode("utf8", "replace").strip()
