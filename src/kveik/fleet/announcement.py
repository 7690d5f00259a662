"""What an engine says of itself when it registers."""

from urllib.parse import urlsplit

import msgspec

from kveik.errors import ConfigError

LEASE_MIN_S, LEASE_MAX_S = 1.0, 3600.0


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
    lease_s: float = 15.0
    labels: dict[str, str] = {}

    @property
    def host_port(self) -> tuple[str, int]:
        """Where to connect."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    @property
    def name(self) -> str:
        """The engine's id, or host and port."""
        host, port = self.host_port
        return self.engine_id or f"{host}:{port}"


def check_announcement(announcement: EngineAnnouncement) -> EngineAnnouncement:
    """The announcement if it makes sense. Raises :class:`ConfigError` naming field, value and what was expected."""
    parts = urlsplit(announcement.url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme != "http" or not parts.hostname or not port or parts.path not in ("", "/") or parts.query:
        raise ConfigError(f"url is {announcement.url!r}, expected http://HOST:PORT without a path")
    lease_s = announcement.lease_s
    if lease_s != 0 and not LEASE_MIN_S <= lease_s <= LEASE_MAX_S:
        raise ConfigError(f"lease_s is {lease_s}, expected {LEASE_MIN_S:g} to {LEASE_MAX_S:g} s, or 0 for none")
    for field in ("max_model_tokens", "block_tokens"):
        if getattr(announcement, field) < 0:
            raise ConfigError(f"{field} is {getattr(announcement, field)}, expected 0 (unknown) or more")
    return announcement
