"""All that listens to finished requests, opened from the settings: metrics, usage, access lines, spans."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from kveik.config import RouterSettings
from kveik.router.access_log import AccessLog
from kveik.router.background import BackgroundWriter
from kveik.router.break_tally import PrefixesDocument
from kveik.router.engines import EngineView
from kveik.router.limits import Places
from kveik.router.metrics import EngineNow, RouterMetrics, RouterNow
from kveik.router.prefix_learning import PrefixLearner
from kveik.router.records import RequestListener
from kveik.router.trace import Exporter, Tracing, open_exporter
from kveik.router.usage import Usage


class Gated(Protocol):
    """What metrics read of the gate."""

    places: Places[Any]
    refusals: dict[str, int]


class Routing(Protocol):
    """What metrics read of the router when somebody scrapes; see :class:`kveik.router.core.Router`."""

    retries_refused: int

    @property
    def gate(self) -> Gated:
        """Places and refusals."""

    @property
    def engines(self) -> Iterable[EngineView]:
        """The engines now."""

    @property
    def quarantine(self) -> "Sized":
        """Requests in quarantine."""

    @property
    def under_way(self) -> int:
        """Requests that are not over."""


class Sized(Protocol):
    """Something that can be counted."""

    def __len__(self) -> int:
        """How many."""


class Indexed(Protocol):
    """What metrics read of the prefix index."""

    def index_document(self) -> Mapping[str, Any]:
        """Its ``entries`` and ``bytes``, among others."""


class Telemetry:
    """Listeners of one router. ``listeners`` go to it, in this order; the rest is called by its app.

    ``learner`` finds what breaks prefixes; None if it is switched off.
    """

    def __init__(self, settings: RouterSettings, index: Indexed) -> None:
        """Raises :class:`ConfigError` for a file that cannot be used, or an SDK that is not there."""
        self._index = index
        self._router: Routing | None = None
        self.learner: PrefixLearner | None = None
        self._flush_s = settings.telemetry_flush_s
        self._flush_at_s = 0.0
        self._metrics = RouterMetrics(self._now)
        self._process = ProcessCollector(registry=None)
        self._usage = Usage(Path(settings.usage_file) if settings.usage_file else None)
        self._access_log = AccessLog(settings.access_log) if settings.access_log else None
        self._exporter: Exporter | None = open_exporter(settings.traces_endpoint) if settings.traces_endpoint else None
        self.tracing = Tracing(exports=self._exporter is not None, ratio=settings.traces_ratio)
        sinks = (self._usage, self._access_log)
        self._writer = BackgroundWriter([sink for sink in sinks if sink is not None])

    @property
    def listeners(self) -> list[RequestListener]:
        """What gets every finished request."""
        listening = (self._metrics, self._usage, self._access_log, self._exporter)
        return [listener for listener in listening if listener is not None]

    def scrape(self, router: Routing) -> Callable[[], bytes]:
        """Copy the counts now; what this returns makes the text of ``/metrics`` of them, on whatever thread.

        That takes tens of milliseconds for many engines and models (64 with 20: 31 ms), too long for an event loop.
        """
        self._router = router
        scraped, process = self._metrics.scraped(), self._process

        def text() -> bytes:
            registry = CollectorRegistry(auto_describe=False)
            registry.register(scraped)
            registry.register(process)
            return generate_latest(registry)

        return text

    def usage_document(self) -> dict[str, Any]:
        """What each key used of each model."""
        return self._usage.document()

    def prefixes_document(self) -> dict[str, Any]:
        """What breaks prefixes."""
        document = PrefixesDocument(False) if self.learner is None else self.learner.document()
        plain: dict[str, Any] = msgspec.to_builtins(document)
        return plain

    def tick(self, now_s: float) -> None:
        """Write what has come together, every ``telemetry_flush_s``; call it more often than that."""
        if now_s >= self._flush_at_s:
            self._flush_at_s = now_s + self._flush_s
            self._writer.tick()

    def close(self) -> None:
        """Write and send what is left; waits for that a few seconds at most."""
        self._writer.close()
        if self._exporter is not None:
            self._exporter.close()

    def _now(self) -> RouterNow:
        router = self._router
        if router is None:
            return RouterNow()
        index = self._index.index_document()
        return RouterNow(
            engines=tuple(_engine_now(engine) for engine in router.engines),
            in_flight=router.under_way - router.gate.places.waiting,
            waiting=router.gate.places.waiting,
            prefix_index_blocks=int(index.get("entries", 0)),
            prefix_index_bytes=int(index.get("bytes", 0)),
            quarantined=len(router.quarantine),
            refused=dict(router.gate.refusals),
            retries_refused=router.retries_refused,
            access_lines_dropped=self._access_log.dropped if self._access_log is not None else 0,
            prefix_looked_at=self.learner.tally.looked_at if self.learner is not None else 0,
            prefix_lost=dict(self.learner.tally.lost) if self.learner is not None else {},
        )


def _engine_now(engine: EngineView) -> EngineNow:
    return EngineNow(
        engine.name,
        engine.state,
        engine.breaker.state,
        engine.in_flight,
        engine.waiting_tokens,
        engine.share,
        engine.exact,
    )
