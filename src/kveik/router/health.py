"""Whether engines work: seen by requests of the router's own, beside those of clients.

*Admission*: an announced engine gets traffic when it has listed its models and answered a
request. *Look*: an engine that was silent for longer than expected is asked for its counters
twice; if they move it is busy, and if they stand still, or do not come, it is stuck. *Trial*: an
engine whose breaker is open gets one small request at the end of each pause.
"""

import asyncio
import json
from collections.abc import Sequence
from enum import Enum
from typing import Any

from kveik.engine import json_shape as shape
from kveik.errors import EngineError
from kveik.router.engines import EngineView
from kveik.router.fetch import fetch
from kveik.router.upstream import EnginePool

#: Between two readings of an engine's counters; both within one deadline.
LOOK_PAUSE_S = 0.4
LOOK_DEADLINE_S = 0.8
#: Counters of vLLM that grow while it computes.
_PROGRESS = (
    b"vllm:prompt_tokens_total",
    b"vllm:generation_tokens_total",
    b"vllm:iteration_tokens_total_count",
    b"vllm:request_success_total",
)


class Seen(Enum):
    """What a look at an engine shows."""

    MOVING = "moving"  # it computes
    STILL = "still"  # it answers, and computes nothing although requests wait
    SILENT = "silent"  # it does not even tell its counters
    UNKNOWN = "unknown"  # it has no counters to tell


async def look(pool: EnginePool) -> Seen:
    """Whether an engine with requests under way makes progress."""
    try:
        first = await _progress(pool)
        if first is None:
            return Seen.UNKNOWN
        await asyncio.sleep(LOOK_PAUSE_S)
        second = await _progress(pool)
    except EngineError:
        return Seen.SILENT
    return Seen.MOVING if first != second else Seen.STILL


async def _progress(pool: EnginePool) -> list[bytes] | None:
    status, text = await fetch(pool, b"GET", b"/metrics", deadline_s=LOOK_DEADLINE_S, fresh=True)
    lines = [line for line in text.splitlines() if line.startswith(_PROGRESS)]
    return lines if status == 200 and lines else None


async def read_models(pool: EnginePool, deadline_s: float) -> list[dict[str, Any]]:
    """The engine's model cards. Raises :class:`EngineError` if it does not list any."""
    status, body = await fetch(pool, b"GET", b"/v1/models", deadline_s=deadline_s)
    listed: Sequence[Any] = []
    if status == 200:
        document = shape.mapping(shape.parsed(body, "its /v1/models"), "its /v1/models")
        listed = shape.sequence(document.get("data"), "data of its /v1/models")
    cards = [card for card in listed if isinstance(card, dict) and isinstance(card.get("id"), str)]
    if not cards:
        raise EngineError(f"its /v1/models lists no model (status {status})")
    return cards


async def try_out(engine: EngineView, deadline_s: float) -> None:
    """One small request, which the engine must really carry out. Raises :class:`EngineError` if it does not.

    An engine that does not generate text (embeddings only) answers 4xx at once: then it works, too.
    """
    assert engine.pool is not None
    model = engine.models[0] if engine.models else ""
    body = json.dumps({"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0}).encode()
    status, answer = await fetch(engine.pool, b"POST", b"/v1/completions", body, deadline_s=deadline_s, fresh=True)
    if status >= 500 or status == 429:
        raise EngineError(f"it answered a small request with status {status}: {answer[:120].decode('utf8', 'replace')}")
