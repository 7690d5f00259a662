"""What a node tells the routers every few seconds: its engines, processes and tiers in figures.

The watchdog posts it (``PUT /fleet/nodes/NODE``), the router keeps the last one and a short history, and
``kveik status`` and the dashboard show it. Rates are means since the report before. What is not known is None.
It comes from outside, so :func:`read_report` bounds it: what is too long is shortened, not refused, since a node whose
reports are refused is one that nobody sees.
"""

import re
from collections.abc import Mapping

import msgspec

from kveik.errors import ConfigError

#: Conditions (:class:`kveik.watchdog.verdict.Condition`) of engines that must not get requests.
SICK_CONDITIONS = frozenset({"hung", "half-dead", "dead"})
#: Longest body of a report.
REPORT_MAX_BYTES = 64 << 10
#: Longest text in it, in characters; names are shorter.
TEXT_MAX, NAME_MAX = 300, 128
#: Most entries of each list in a report. Of events the last ones are kept, of all else the first.
LIST_MAX: Mapping[str, int] = {
    "engines": 64,
    "tiers": 16,
    "parts": 128,
    "events": 50,
    "warnings": 8,
    "sights": 64,
    "faults": 24,
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+-]{0,127}")
_NAMES = frozenset({"engine_id", "name", "kind", "fleet", "part", "node", "presence"})
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
#: Figures are below this; what is beyond was no measurement.
FIGURE_MAX = 1e18
_ALWAYS = frozenset({"at_s", "restarts"})
_SHARES = frozenset({"kv_use", "local_hit_share", "external_hit_share", "acceptance"})


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """One engine. Shares are of prompt tokens, 0 to 1; ``ttft_s`` is a mean; ``kv_use`` a share of its KV cache.

    ``restarts`` counts those since its supervisor began, ``degraded`` says why it runs in a simpler mode.
    ``warnings`` are sentences (leaks, slowness). ``acceptance``: share of drafted tokens that were taken.
    """

    engine_id: str
    condition: str
    why: str = ""
    running: int | None = None
    waiting: int | None = None
    kv_use: float | None = None
    local_hit_share: float | None = None
    external_hit_share: float | None = None
    ttft_s: float | None = None
    prompt_tokens_s: float | None = None
    output_tokens_s: float | None = None
    acceptance: float | None = None
    resident_bytes: int | None = None
    restarts: int = 0
    degraded: str = ""
    warnings: tuple[str, ...] = ()


class SightReport(msgspec.Struct, frozen=True, kw_only=True):
    """How a node stands in a tier in the eyes of the one that reports: in a word, and in words unless all is well."""

    node: str
    presence: str
    told: str = ""


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of the node's cache. ``state`` is ``on`` or why it is not; ``sights``: who is seen there, if shared."""

    name: str
    state: str
    blocks: int | None = None
    bytes: int | None = None
    bytes_max: int | None = None
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None
    sights: tuple[SightReport, ...] = ()


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the node, as its supervisor sees it."""

    name: str
    kind: str
    state: str
    restarts: int = 0
    why: str = ""


class EventReport(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened on the node: when (``at_s``: wall time), to which part, and what, in plain words."""

    at_s: float
    part: str
    told: str


class FaultReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one check of the doctor found: ``outcome`` is ``wrong``, ``not done`` or ``beware``."""

    check: str
    outcome: str
    about: str
    told: str = ""
    remedy: str = ""


class ChecksReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor's checks of a machine said there. ``at_s``: wall time; ``checks``: how many were carried out.

    ``trouble``: why there is no answer; then the rest is empty.
    """

    at_s: float
    checks: int = 0
    faults: tuple[FaultReport, ...] = ()
    trouble: str = ""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node at one moment (``at_s``: wall time). ``events``: the last ones, the newest last.

    ``own_checks``: None until its machine was looked at.
    """

    node: str
    fleet: str
    at_s: float
    engines: tuple[EngineReport, ...] = ()
    tiers: tuple[TierReport, ...] = ()
    parts: tuple[PartReport, ...] = ()
    events: tuple[EventReport, ...] = ()
    own_checks: ChecksReport | None = None


def read_report(body: bytes, node: str) -> NodeReport:
    """The report that node ``node`` sent, within its bounds. Raises :class:`ConfigError` naming field and value.

    Control characters become spaces, shares lie within 0 to 1, and figures that are negative or no numbers
    become None.
    """
    if not _NAME.fullmatch(node):
        raise ConfigError(f"node is {node[:NAME_MAX]!r}, expected 1 to 128 letters, digits and . _ : @ + -")
    if len(body) > REPORT_MAX_BYTES:
        raise ConfigError(f"body is {len(body)} bytes, expected {REPORT_MAX_BYTES} at most")
    try:
        report = msgspec.json.decode(body, type=NodeReport)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"report is not valid: {error}") from None
    if report.node != node:
        raise ConfigError(f"node is {report.node[:NAME_MAX]!r}, expected {node!r} as in the path")
    bounded = _bounded("", report)
    assert isinstance(bounded, NodeReport)
    return bounded


def plain_text(text: str, length_max: int = TEXT_MAX) -> str:
    """One line of text that is safe to print: no control characters or changes of direction, and not too long."""
    line = " ".join(_UNSEEN.sub(" ", text[: 4 * length_max]).split())
    return line if len(line) <= length_max else line[: length_max - 1] + "\u2026"


def _bounded(name: str, value: object) -> object:
    if isinstance(value, msgspec.Struct):
        fields = {field: _bounded(field, getattr(value, field)) for field in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    if isinstance(value, tuple):
        kept = value[-LIST_MAX[name] :] if name == "events" else value[: LIST_MAX[name]]
        return tuple(_bounded("", entry) for entry in kept)
    if isinstance(value, str):
        return plain_text(value, NAME_MAX if name in _NAMES else TEXT_MAX)
    if isinstance(value, int | float):
        return _figure(name, value)
    return value


def _figure(name: str, value: float) -> float | None:
    if not 0 <= value < FIGURE_MAX:
        return 0 if name in _ALWAYS else None
    return min(1.0, value) if name in _SHARES else value
