"""What Mooncake's master tells over HTTP: sizes, segments and keys; none of it makes the store keep anything.

The master serves it on its metrics port (``--metrics_port``), which is not its RPC port.
"""

import http.client
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import ConfigError, StoreError

REFRESH_S = 2.0
_TIMEOUT_S = 2.0
_PIECE_BYTES = 1 << 16
_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{[^}]*\})? (?P<value>[-+.\deE]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MasterSizes:
    """What all of the store holds, whoever put it there."""

    blocks: int
    bytes: int
    capacity_bytes: int


def sizes_in(metrics: str) -> MasterSizes:
    """The sizes in the master's metrics (Prometheus text). Raises :class:`StoreError` if they are not there."""
    samples = {found["name"]: float(found["value"]) for found in _SAMPLE.finditer(metrics)}
    try:
        return MasterSizes(
            int(samples["master_key_count"]),
            int(samples["master_allocated_bytes"]),
            int(samples["master_total_capacity_bytes"]),
        )
    except KeyError as error:
        raise StoreError(f"the Mooncake master's metrics do not tell {error.args[0]}") from error


def segments_on(host: str, segments: str) -> list[str]:
    """Those of a list of segments (``HOST:PORT``, one a line) that lie on ``host``."""
    return [name for name in segments.split() if name.rpartition(":")[0].strip("[]") == host]


class MasterPage:
    """The pages of one master. Raises :class:`ConfigError` for an address that is not HOST:PORT."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"mooncake.master_http is {address!r}, expected HOST:PORT of the master's metrics")
        self._host, self._port = host.strip("[]"), int(port)

    def text(self, path: str) -> str:
        """One page. Raises :class:`StoreError` if it cannot be had."""
        return b"".join(self._pieces(path)).decode()

    def lines(self, path: str) -> Iterator[list[str]]:
        """The lines of one page, in portions, as they arrive. Raises :class:`StoreError`, also while iterating."""
        rest = b""
        for piece in self._pieces(path):
            *lines, rest = (rest + piece).split(b"\n")
            yield [line.decode("utf8", "replace") for line in lines]
        yield [rest.decode("utf8", "replace")] if rest else []

    def _pieces(self, path: str) -> Iterator[bytes]:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=_TIMEOUT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise StoreError(f"the Mooncake master answers {answer.status} to {path}")
            while piece := answer.read(_PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"the Mooncake master's page {path} cannot be read: {error}") from error
        finally:
            connection.close()


class MasterWatch:
    """Sizes and segments, refreshed in the background while somebody asks for them; asking never waits."""

    def __init__(self, page: MasterPage, host: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self._page = page
        self._host = host
        self._clock = clock
        self._lock = threading.Lock()
        self._asked_s = float("-inf")
        self._looking = False
        self._sizes: MasterSizes | None = None
        self._segments: list[str] = []
        self._trouble = "the Mooncake master was not asked yet"

    def __repr__(self) -> str:
        return f"MasterWatch({self._sizes}, segments here {self._segments}, {self._trouble!r})"

    @property
    def sizes(self) -> MasterSizes | None:
        """What was told last; None as long as nothing was, or while the master does not answer."""
        self._refresh()
        return self._sizes

    @property
    def segments(self) -> list[str]:
        """The segments on this machine, as told last."""
        self._refresh()
        return self._segments

    @property
    def trouble(self) -> str:
        """Why there are no sizes, in words; empty if there are."""
        return self._trouble

    def look(self) -> None:
        """Ask now, and wait for the answer."""
        try:
            sizes = sizes_in(self._page.text("/metrics"))
            segments = segments_on(self._host, self._page.text("/get_all_segments"))
        except StoreError as error:
            self._sizes, self._trouble = None, str(error)
        else:
            self._sizes, self._segments, self._trouble = sizes, segments, ""

    def _refresh(self) -> None:
        now_s = self._clock.monotonic()
        with self._lock:
            if self._looking or now_s - self._asked_s < REFRESH_S:
                return
            self._looking, self._asked_s = True, now_s
        threading.Thread(target=self._look_once, name="kveik-mooncake-master", daemon=True).start()

    def _look_once(self) -> None:
        try:
            self.look()
        finally:
            self._looking = False
