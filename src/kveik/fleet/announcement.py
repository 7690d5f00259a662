"""What an engine says of itself when it registers."""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from kveik.errors import ConfigError

LEASE_MIN_S, LEASE_MAX_S = 1.0, 3600.0
LEASE_DEFAULT_S = 15.0
#: A lease is renewed this often within its time, so two heartbeats may be lost.
HEARTBEATS_A_LEASE = 3

_TEXTS_MAX = 128  # of one field
_TOKENS_MAX = 1 << 31
#: Ids become paths, keys of etcd and metric labels.
_ID = re.compile(r"[A-Za-z0-9:][A-Za-z0-9._:@+-]{0,127}")
_ID_EXPECTED = "1 to 128 letters, digits and . _ : @ + -, a letter, a digit or : first"
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_NAMESPACE = re.compile(r"(?:[0-9a-f]{2}){0,64}")
_EVENTS = re.compile(r"|tcp://[^\s/?#@]+:\d{1,5}|ipc:///\S+")
_PRINTABLE = re.compile(r"[^\x00-\x1f\x7f]{1,256}")


class EngineAnnouncement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine: where it is, what it serves and what its KV blocks are worth elsewhere.

    ``engine_id`` is unique in the fleet (default: host and port of the address). ``namespace`` is
    the hex digest of the engine's KV namespace; engines of different namespaces or models are
    never one cache group. ``lease_s``: seconds after which it is taken for gone if no heartbeat
    came; 0 for engines of a static list, which have no lease.
    """

    url: str
    engine_id: str = ""
    models: tuple[str, ...] = ()
    namespace: str = ""
    max_model_tokens: int = 0
    block_tokens: int = 0
    events: str = ""
    replay: str = ""
    simulated: bool = False
    lease_s: float = LEASE_DEFAULT_S
    labels: dict[str, str] = {}

    @property
    def host_port(self) -> tuple[str, int]:
        """Where to connect."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def name(self) -> str:
        """The engine's id, or host and port."""
        if self.engine_id:
            return self.engine_id
        host, port = self.host_port
        return f"{host}:{port}"

    def same_engine(self, later: "EngineAnnouncement") -> bool:
        """Whether ``later`` speaks of the same engine with the same cache.

        Lease, labels and further models (adapters, which are loaded and unloaded) may differ, and
        what was not known may be told: an engine tells its namespace with its first request.
        """
        if (self.host_port, self.name, self.simulated) != (later.host_port, later.name, later.simulated):
            return False
        return all(not known or known == told for known, told in zip(self._facts, later._facts, strict=True))

    @property
    def _facts(self) -> tuple[str | int, ...]:
        base_model = self.models[0] if self.models else ""
        return base_model, self.namespace, self.max_model_tokens, self.block_tokens, self.events, self.replay


def check_announcement(announcement: EngineAnnouncement) -> EngineAnnouncement:
    """The announcement if it makes sense. Raises :class:`ConfigError` naming field, value and what was expected."""
    _check_url(announcement.url)
    _match(_ID, "engine_id", announcement.name, _ID_EXPECTED)
    _match(_NAMESPACE, "namespace", announcement.namespace, "lower-case hex digits, or nothing")
    _match(_EVENTS, "events", announcement.events, "tcp://HOST:PORT, ipc:///PATH or nothing")
    _match(_EVENTS, "replay", announcement.replay, "tcp://HOST:PORT, ipc:///PATH or nothing")
    _check_texts("models", announcement.models)
    _check_texts("labels", [text for label in announcement.labels.items() for text in label if text])
    lease_s = announcement.lease_s
    if lease_s != 0 and not LEASE_MIN_S <= lease_s <= LEASE_MAX_S:
        raise ConfigError(f"lease_s is {lease_s}, expected {LEASE_MIN_S:g} to {LEASE_MAX_S:g} s, or 0 for none")
    for field in ("max_model_tokens", "block_tokens"):
        if not 0 <= getattr(announcement, field) <= _TOKENS_MAX:
            raise ConfigError(f"{field} is {getattr(announcement, field)}, expected 0 (unknown) to {_TOKENS_MAX}")
    return announcement


def _check_url(url: str) -> None:
    expected = ConfigError(f"url is {url[:200]!r}, expected http://HOST:PORT without a path")
    # urlsplit drops line breaks without a word, so the text is looked at, not only its parts.
    scheme, separator, rest = url.partition("://")
    host, colon, port = rest.removesuffix("/").rpartition(":")
    if scheme != "http" or not separator or not colon or not _HOST.fullmatch(host):
        raise expected
    if not re.fullmatch(r"[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
        raise expected
    try:
        urlsplit(url)
    except ValueError:  # brackets around what is no address
        raise expected from None


def _match(pattern: re.Pattern[str], field: str, value: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        raise ConfigError(f"{field} is {value[:200]!r}, expected {expected}")


def _check_texts(field: str, texts: Iterable[str]) -> None:
    listed = list(texts)
    if len(listed) > _TEXTS_MAX:
        raise ConfigError(f"{field} has {len(listed)} texts, expected {_TEXTS_MAX} at most")
    for text in listed:
        _match(_PRINTABLE, f"a text in {field}", text, "1 to 256 printable characters")
