"""A router's fleet API from outside: for engines that join, and for people who change the fleet.

Every call raises :class:`~kveik.errors.FleetError`: :class:`UnknownEngineError` and
:class:`RefusedError` as the router says, :class:`AdmissionError` without the right token,
:class:`RegistryError` where no router answers; and :class:`ConfigError` for an announcement that the
router finds wrong.
"""

import http.client
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from kveik.errors import AdmissionError, ConfigError, FleetError, RefusedError, RegistryError, UnknownEngineError
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.report import NodeReport
from kveik.fleet.status import FleetStatus

_PATH = "/fleet/engines"
_REQUESTS = "/fleet/requests"
_ERRORS: Mapping[int, type[FleetError | ConfigError]] = {
    400: ConfigError,
    413: ConfigError,
    401: AdmissionError,
    403: AdmissionError,
    409: RefusedError,
}


class FleetClient:
    """One router. ``token`` is asked before each call, so that a new one in a file counts at once."""

    def __init__(self, url: str, *, token: Callable[[], str] = str, deadline_s: float = 5.0) -> None:
        """Raises :class:`ConfigError` for what is no address."""
        parts = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
        try:
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"{url!r} is no address of a router, expected http://HOST:PORT")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._base_path = parts.path.rstrip("/").removesuffix("/v1")
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._netloc = parts.netloc
        self._token = token
        self._deadline_s = deadline_s

    def __repr__(self) -> str:
        return f"FleetClient({self.url})"

    @property
    def host(self) -> str:
        """The router's host."""
        return urllib.parse.urlsplit(self.url).hostname or ""

    def announce(self, announcement: EngineAnnouncement) -> Mapping[str, Any]:
        """Announce an engine; the router's view of it."""
        return self._call("POST", "", msgspec.to_builtins(announcement))

    def renew(self, name: str) -> Mapping[str, Any]:
        """A heartbeat."""
        return self._call("PUT", f"/{_quoted(name)}/heartbeat")

    def withdraw(self, name: str) -> None:
        """Take an engine out."""
        self._call("DELETE", f"/{_quoted(name)}")

    def hold(self, name: str, action: str, reason: str) -> Mapping[str, Any]:
        """``drain``, ``isolate`` or ``readmit`` an engine."""
        return self._call("POST", f"/{_quoted(name)}/{action}", {"reason": reason})

    def engines(self) -> Mapping[str, Any]:
        """The whole list, as the router shows it."""
        return self._call("GET", "")

    def traffic(self) -> Mapping[str, Any]:
        """What ``/fleet`` shows: the engines as this router sees them now, with the requests under way at each."""
        return self._call("GET", "", where="/fleet")

    def requests(self) -> Sequence[Mapping[str, Any]]:
        """The latest requests as this router saw them, the latest first."""
        what = f"GET {self.url}{_REQUESTS}"
        status, raw = self._exchange("GET", f"{self._base_path}{_REQUESTS}", None, what)
        try:
            rows = msgspec.json.decode(raw, type=list[dict[str, Any]]) if status == http.client.OK else None
        except msgspec.DecodeError:
            rows = None
        if rows is None:
            raise RegistryError(f"{what}: HTTP {status}; is that a Kveik router of this version, and the token right?")
        return rows

    def status(self) -> FleetStatus:
        """What the router shows of the whole fleet, without its histories."""
        answer = self._call("GET", "?history=no", where="/fleet/status")
        try:
            return msgspec.convert(answer, FleetStatus)
        except msgspec.ValidationError as error:
            raise RegistryError(f"{self.url} shows the fleet in a way that is not understood here: {error}") from error

    def prefixes(self) -> Mapping[str, Any]:
        """What breaks prefixes, as this router saw it."""
        return self._call("GET", "", where="/fleet/prefixes")

    def report(self, report: NodeReport) -> None:
        """Tell how a node is."""
        self._call("PUT", f"/{_quoted(report.node)}", msgspec.to_builtins(report), where="/fleet/nodes")

    def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, where: str = _PATH
    ) -> Mapping[str, Any]:
        what = f"{method} {self.url}{where}{path}"
        status, raw = self._exchange(method, f"{self._base_path}{where}{path}", body, what)
        answer = _document(raw)
        if status < 300:
            if answer is None:
                raise RegistryError(f"{what}: the answer is no JSON: {raw[:200]!r}; is that a Kveik router?")
            return answer
        error = answer.get("error") if answer else None
        message = error.get("message") if isinstance(error, dict) else raw[:200].decode("utf8", "replace")
        text = f"{self.url}: {message} (HTTP {status})"
        if status == http.client.NOT_FOUND and isinstance(error, dict) and error.get("code") == "engine_not_found":
            raise UnknownEngineError(text)
        raise _ERRORS.get(status, RegistryError)(text)

    def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None, what: str) -> tuple[int, bytes]:
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection = self._kind(self._netloc, timeout=self._deadline_s)
        try:
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            raise RegistryError(f"{what}: {error or type(error).__name__}") from error
        finally:
            connection.close()


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe=":")


def _document(raw: bytes) -> dict[str, Any] | None:
    try:
        answer = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None
