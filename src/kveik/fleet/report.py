"""What a node tells the routers every few seconds: its engines, processes and tiers in figures.

The watchdog posts it (``PUT /fleet/nodes/NODE``), the router keeps the last one and a short history, and
``kveik status`` and the dashboard show it. Rates are means since the report before. What is not known is None.
"""

import msgspec


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


class TierReport(msgspec.Struct, frozen=True, kw_only=True):
    """One tier of the node's cache. ``state`` is ``on`` or why it is not."""

    name: str
    state: str
    blocks: int | None = None
    bytes: int | None = None
    bytes_max: int | None = None
    read_bytes_s: float | None = None
    write_bytes_s: float | None = None


class PartReport(msgspec.Struct, frozen=True, kw_only=True):
    """One process of the node, as its supervisor sees it."""

    name: str
    kind: str
    state: str
    restarts: int = 0
    why: str = ""


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node at one moment (``at_s``: wall time)."""

    node: str
    fleet: str
    at_s: float
    engines: tuple[EngineReport, ...] = ()
    tiers: tuple[TierReport, ...] = ()
    parts: tuple[PartReport, ...] = ()
    events: tuple[str, ...] = ()
