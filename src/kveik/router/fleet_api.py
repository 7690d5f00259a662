"""The requests by which engines join the fleet and people change it: bytes in, bytes out, no I/O of its own.

::

    GET    /fleet/engines                    all engines, with states and reasons
    POST   /fleet/engines                    announce an engine, or renew it by the same words
    GET    /fleet/engines/ID                 one engine
    PUT    /fleet/engines/ID/heartbeat       renew its lease; 404: announce it again
    DELETE /fleet/engines/ID                 take it out
    POST   /fleet/engines/ID/drain           {"reason": "..."}: no new requests, running ones finish
    POST   /fleet/engines/ID/isolate         {"reason": "..."}: not trusted
    POST   /fleet/engines/ID/readmit         end of drain or isolate

Errors have OpenAI's shape. A registry may block, so :meth:`FleetApi.handle` is not for an event loop.
"""

import hmac
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import ConfigError, FleetError, RefusedError, UnknownEngineError
from kveik.fleet.announcement import HEARTBEATS_A_LEASE, EngineAnnouncement
from kveik.fleet.lifecycle import Event
from kveik.fleet.membership import Member
from kveik.fleet.registry import Registry, SteadyTime

PREFIX = "/fleet/engines"
TOKEN_VARIABLE = "KVEIK_ADMISSION_TOKEN"  # noqa: S105 (the name of the variable)
BODY_MAX_BYTES = 64 << 10
REASON_MAX = 500

Answer = tuple[int, bytes]

_HOLDS = {"drain": Event.DRAIN, "isolate": Event.ISOLATE, "readmit": Event.READMIT}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may use the fleet API: who shows the token, or without one, who comes directly over loopback."""

    token: str = field(repr=False)
    loopback: bool

    def permits(self, headers: Mapping[str, str]) -> bool:
        """Whether a request with these headers (names in lower case) may pass.

        A web page that a browser on this machine shows, or a proxy on this machine, also connects
        over loopback; neither is trusted for that.
        """
        if self.token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            same = hmac.compare_digest(given.strip().encode("utf8", "replace"), self.token.encode())
            return same and scheme.lower() == "bearer"
        if not self.loopback or any(name in headers for name in _FORWARDED):
            return False
        hosts = [_host(headers[name]) for name in ("host", "origin") if name in headers]
        return all(map(is_loopback, hosts)) and headers.get("sec-fetch-site", "none") in {"none", "same-origin"}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens at ``host``."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(file: str, environ: Mapping[str, str]) -> str:
    """The admission token from ``file`` or the environment; empty if there is none.

    Raises :class:`ConfigError`, which never shows the token.
    """
    if file:
        try:
            token = Path(file).read_text(encoding="utf8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the admission token in {file}: {error}") from error
        source = file
    else:
        token, source = environ.get(TOKEN_VARIABLE, "").strip(), TOKEN_VARIABLE
    if (file and not token) or not re.fullmatch(r"[\x21-\x7e]*", token):
        raise ConfigError(f"the admission token in {source} is empty or has spaces or other letters than ASCII")
    return token


class FleetApi:
    """Handles the requests under :data:`PREFIX`."""

    def __init__(self, registry: Registry, clock: Clock = SYSTEM_CLOCK) -> None:
        self._registry = registry
        self._time = SteadyTime(clock)

    def handle(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes, authorised: bool
    ) -> Answer:
        """HTTP status and JSON. ``authorised``: what :meth:`Admission.permits` says. Never raises for bad input."""
        if not authorised:
            return _error(401, _UNAUTHORISED, code="invalid_admission_token")
        if len(body) > BODY_MAX_BYTES:
            return _error(413, f"the body has {len(body)} bytes, expected {BODY_MAX_BYTES} at most")
        try:
            return self._route(method, path, body)
        except _InputError as error:
            return _error(400, str(error), error.param)
        except ConfigError as error:
            return _error(400, str(error), str(error).partition(" is ")[0])
        except UnknownEngineError as error:
            return _error(404, str(error), "engine_id", "engine_not_found")
        except RefusedError as error:
            return _error(409, str(error), "engine_id", "refused")
        except FleetError as error:
            return _error(503, f"{error}; try again", code="registry_unavailable")

    def _route(self, method: str, path: str, body: bytes) -> Answer:
        name, _, action = path.removeprefix(PREFIX).strip("/").partition("/")
        name = unquote(name)
        routes: dict[str, Callable[[], Answer]] = {}
        if not name:
            routes = {"GET": self._list, "POST": lambda: self._announce(body)}
        elif not action:
            routes = {"GET": lambda: self._one(name), "DELETE": lambda: self._withdraw(name)}
        elif action == "heartbeat":
            routes = dict.fromkeys(("PUT", "POST"), lambda: self._renew(name))
        elif action in _HOLDS:
            routes = {"POST": lambda: self._hold(name, action, body)}
        if not f"{path}/".startswith(f"{PREFIX}/") or not routes:
            return _error(404, f"no such path: {path[:200]!r}", code="not_found")
        if method not in routes:
            return _error(405, f"{method[:20]} is not possible here, expected {' or '.join(routes)}")
        return routes[method]()

    def _list(self) -> Answer:
        document: dict[str, Any] = {
            "object": "list",
            "revision": self._registry.view.revision,
            "data": [self._shown(member) for member in self._registry.members()],
        }
        if self._registry.trouble:
            document["trouble"] = self._registry.trouble
        return _json(200, document)

    def _one(self, name: str) -> Answer:
        return _json(200, self._shown(self._registry.view.member(name)))

    def _announce(self, body: bytes) -> Answer:
        announcement = _announcement(body)
        known = announcement.name in self._registry.view.members
        member = self._registry.announce(announcement)
        return _json(200 if known else 201, self._shown(member))

    def _renew(self, name: str) -> Answer:
        return _json(200, self._shown(self._registry.renew(name)))

    def _withdraw(self, name: str) -> Answer:
        self._registry.withdraw(name, "withdrawn")
        kept = self._registry.view.members.get(name)
        if kept is not None:
            return _json(200, {**self._shown(kept), "deleted": False, "note": "isolation stays until it is readmitted"})
        return _json(200, {"engine_id": name, "object": "fleet.engine.deleted", "deleted": True})

    def _hold(self, name: str, action: str, body: bytes) -> Answer:
        reason = _reason(body, needed=action != "readmit")
        member = self._registry.change_state(name, _HOLDS[action], reason or "readmitted")
        return _json(200, self._shown(member))

    def _shown(self, member: Member) -> dict[str, Any]:
        announcement = member.announcement
        now_s = self._time.now_s()
        ends_s = member.lease_ends_s
        return {
            "object": "fleet.engine",
            **msgspec.to_builtins(announcement),
            "engine_id": member.name,
            "state": member.state.value,
            "why": member.why,
            "since_s": round(member.since_s, 3),
            "listed": member.listed,
            "lease_left_s": None if ends_s is None or math.isinf(ends_s) else round(max(0.0, ends_s - now_s), 3),
            "heartbeat_s": announcement.lease_s / HEARTBEATS_A_LEASE,
        }


class FleetAdmin:
    """The fleet API behind its door: what the router's pages ask."""

    def __init__(self, api: FleetApi, admission: Admission) -> None:
        self._api = api
        self._admission = admission

    def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Status and JSON body; header names in lower case. May block."""
        return self._api.handle(method, path, "", headers, body, self._admission.permits(headers))

    def may_read(self, headers: Mapping[str, str]) -> bool:
        """Whether these headers allow to see the fleet."""
        return self._admission.permits(headers)


class _InputError(Exception):
    """A body that is wrong: what is wrong with it, and in which field."""

    def __init__(self, message: str, param: str = "") -> None:
        super().__init__(message)
        self.param = param


def _announcement(body: bytes) -> EngineAnnouncement:
    document = _object(body)
    try:
        return msgspec.convert(document, EngineAnnouncement)
    except msgspec.ValidationError as error:
        expected, _, place = str(error).partition(" - at `$")
        param = place.rstrip("`").lstrip(".")
        unknown = re.search(r"unknown field `([^`]*)`", expected)
        if unknown:
            known = ", ".join(EngineAnnouncement.__struct_fields__)
            raise _InputError(
                f"{unknown[1][:100]!r} is no field of an announcement; known are {known}", unknown[1]
            ) from None
        if not param:
            raise _InputError(expected.replace("Object", "the announcement")) from None
        given = _value_at(document, param)
        raise _InputError(f"{param} is {given}: {expected[:1].lower()}{expected[1:]}", param) from None


def _value_at(document: Any, place: str) -> str:
    """The value at a place such as ``models[0]``, as JSON and not too long."""
    for step in re.findall(r"[^.\[\]]+", place):
        if isinstance(document, list) and step.isdigit() and int(step) < len(document):
            document = document[int(step)]
        elif isinstance(document, dict) and step in document:
            document = document[step]
    return msgspec.json.encode(document)[:200].decode("utf8", "replace")


def _reason(body: bytes, *, needed: bool) -> str:
    document = _object(body) if body or needed else {}
    unknown = sorted(document.keys() - {"reason"})
    if unknown:
        raise _InputError(f"{unknown[0][:100]!r} is not known here, expected reason only", unknown[0])
    reason = document.get("reason", "")
    if not isinstance(reason, str) or len(reason) > REASON_MAX or (needed and not reason.strip()):
        shown = msgspec.json.encode(reason)[:200].decode("utf8", "replace")
        raise _InputError(f"reason is {shown}, expected text of 1 to {REASON_MAX} characters", "reason")
    return " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", reason).split())


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise _InputError(f"the body is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise _InputError(f"the body is a {type(document).__name__}, expected an object")
    return document


_UNAUTHORISED = (
    "the fleet API needs the admission token as 'Authorization: Bearer TOKEN' (router.admission_token_file or "
    f"{TOKEN_VARIABLE}); where none is set, only requests that come directly over loopback are taken"
)


def _host(text: str) -> str:
    """The host in a Host or Origin header."""
    try:
        return urlsplit(text if "//" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""


def _error(status: int, message: str, param: str = "", code: str = "") -> Answer:
    kind = {401: "authentication_error", 503: "service_unavailable_error"}.get(status, "invalid_request_error")
    error = {"message": message, "type": kind, "param": param or None, "code": code or None}
    return _json(status, {"error": error})


def _json(status: int, document: Mapping[str, Any]) -> Answer:
    return status, msgspec.json.encode(document)
