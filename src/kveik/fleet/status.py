"""A fleet as a router shows it (``GET /fleet/status``): one document for ``kveik status`` and the dashboard.

What nodes report (:mod:`kveik.fleet.report`) is joined with what the router sees itself. Shares are 0 to 1, what is
not known is None. ``troubles`` say what is not well, ``warnings`` what may become so, and ``notes`` what is not known
and why.
"""

import msgspec

from kveik.fleet.report import ChecksReport, EngineReport, PartReport, TierReport


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a router saw of requests that ended within the last ``window_s`` seconds.

    ``ttft_p50_s`` and ``ttft_p95_s``: from a request to the first byte of its stream, at the router.
    ``output_tokens_s`` counts tokens when their request ends. ``errors``: requests that an engine or its network
    failed; ``retries``: attempts after the first one of requests that ended here. ``cached_share``: part of the
    prompts' tokens that engines say they did not compute, and ``expected_cached_share`` what the router expected of
    the same requests.
    """

    window_s: float
    requests: int = 0
    requests_s: float = 0.0
    errors: int = 0
    retries: int = 0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    prompt_tokens_s: float = 0.0
    output_tokens_s: float = 0.0
    cached_share: float | None = None
    expected_cached_share: float | None = None


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. ``state`` is the registry's, or ``out`` while its breaker is open; ``since_s`` is wall time.

    An engine that a watchdog reports and the registry does not know is ``gone``, and has no ``url``.

    ``share``: part of a full engine's load that it may get now. ``exact``: the router knows exactly what it holds.
    ``report`` is None where no watchdog speaks of it; else ``node`` is whose, and ``report_age_s`` its age.
    """

    id: str
    url: str
    state: str
    why: str = ""
    well: bool = True
    since_s: float | None = None
    models: tuple[str, ...] = ()
    simulated: bool = False
    breaker: str = "closed"
    failures_in_a_row: int = 0
    share: float = 1.0
    exact: bool = False
    in_flight: int = 0
    waiting_tokens: int = 0
    measured: Measured
    node: str = ""
    report: EngineReport | None = None
    report_age_s: float | None = None


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node that reports. ``silent``: its last report, ``age_s`` old, is too old to go by.

    ``own_checks``: what the doctor's checks said of its machine, there.
    """

    node: str
    fleet: str
    age_s: float
    silent: bool = False
    tiers: tuple[TierReport, ...] = ()
    parts: tuple[PartReport, ...] = ()
    own_checks: ChecksReport | None = None


class EventLine(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened, in plain words. ``source`` is ``router``, or the node that reports it.

    ``at_s`` is wall time.
    """

    at_s: float
    source: str
    text: str


class RouterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The router that answers. Times are wall time; ``under_way`` and ``waiting`` are requests."""

    version: str
    started_s: float
    now_s: float
    policy: str = ""
    draining: bool = False
    under_way: int = 0
    waiting: int = 0
    registry_trouble: str = ""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """The whole fleet. Hit shares and ``output_tokens_s`` are those of the reports, weighted by prompt tokens."""

    engines: int = 0
    ready: int = 0
    simulated: int = 0
    in_flight: int = 0
    measured: Measured
    local_hit_share: float | None = None
    external_hit_share: float | None = None


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One sample. ``number`` counts from the router's start, ``at_s`` is wall time.

    ``in_flight``: requests at each engine, a mean over the window.
    """

    number: int
    at_s: float
    requests_s: float = 0.0
    errors_s: float = 0.0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    prompt_tokens_s: float = 0.0
    output_tokens_s: float = 0.0
    cached_share: float | None = None
    expected_cached_share: float | None = None
    local_hit_share: float | None = None
    external_hit_share: float | None = None
    in_flight: dict[str, float] = {}


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Short histories: a row every ``sample_s``, each over the ``window_s`` before it, the oldest first.

    The rows are :class:`HistoryRow` as JSON: each is written once, when it is taken.
    """

    sample_s: float
    window_s: float
    rows: tuple[msgspec.Raw, ...] = ()


class FleetStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. ``well``: there is nothing in ``troubles``."""

    fleet: str
    well: bool
    troubles: tuple[str, ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    router: RouterStatus
    totals: Totals
    engines: tuple[EngineStatus, ...]
    refused_engines: dict[str, str]
    nodes: tuple[NodeStatus, ...]
    events: tuple[EventLine, ...]
    history: History
