"""What connectors tell of lookups, stores and loads in their engine's log alone, while one request runs. Pure.

Lines of vllm-ascend's AscendStoreConnector (`pool_worker.py`, `pool_scheduler.py`; its lookups at DEBUG in most
versions), of vLLM's MooncakeStoreConnector, which says the same (`mooncake/store/scheduler.py`), of its
OffloadingConnector (`offloading/scheduler.py`, 0.32, at DEBUG), and of LMCache, engine or server (`vllm_v1_adapter.py`,
`cache_engine.py`, `engine_driven_transfer.py`; 0.5.6).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from re import Match

from kveik.doctor.log_line import read_line

_QUOTED_MAX = 8
_QUOTE_CHARS = 200


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    of: int
    count: int

    def __str__(self) -> str:
        return f"{self.count}/{self.of}"


@dataclass(slots=True)
class LogEvidence:
    """What the lines say. None and empty: no line says it.

    ``exists``: blocks that the pool has, for each group that it was asked about. ``hit_tokens``: the usable length of
    the last lookup. ``need_tokens``: how many of those are to be loaded. ``stored`` and ``loaded``: tokens. ``lines``:
    the first of them, for people.
    """

    exists: list[Share] = field(default_factory=list)
    hit_tokens: int | None = None
    need_tokens: int | None = None
    too_short_to_load: bool = False
    stored: Share | None = None
    loaded: Share | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def exist_blocks(self) -> int:
        """Blocks that are there, of all groups."""
        return sum(share.count for share in self.exists)


_EXISTS = re.compile(r"exists?(?:_chunks|_count)?\D{0,3}(?P<count>\d+)/(?P<of>\d+)")
_FINAL = re.compile(r"lookup final token_len=\d+ .*\b(?:hit|result)=(?P<hit>\d+)|\bfinal hit=(?P<short>\d+)")
_ASKED = re.compile(
    r"(?:kvpool|LMCache) hit tokens: (?P<hit>\d+), (?:but )?need to load: (?P<need>\d+)(?P<skip> < min_retrieve)?"
)
_OFFLOADED = re.compile(r"\bhit (?P<hit>\d+) offloaded tokens after \d+ GPU hit tokens")
_STORED = re.compile(r"\bStored (?P<count>\d+)(?: out of total (?P<of>\d+))? tokens")
_LOADED = re.compile(r"\bRetrieved (?P<count>\d+)(?: out of (?P<of>\d+))? (?:required )?tokens")


def read_evidence(lines: Iterable[str]) -> LogEvidence:
    """The evidence in the lines that an engine wrote while one request ran."""
    seen = LogEvidence()
    for raw in lines:
        text = read_line(raw).text
        if _take(seen, text) and len(seen.lines) < _QUOTED_MAX:
            seen.lines.append(text.strip()[:_QUOTE_CHARS])
    return seen


def _take(seen: LogEvidence, text: str) -> bool:
    """Whether the line says something; then it is remembered."""
    if found := _EXISTS.search(text):
        seen.exists.append(_share(found))
    elif found := _FINAL.search(text):
        seen.hit_tokens = int(found["hit"] or found["short"])
    elif found := _ASKED.search(text):
        seen.hit_tokens = int(found["hit"])
        seen.need_tokens = int(found["need"])
        seen.too_short_to_load = bool(found["skip"])
    elif found := _OFFLOADED.search(text):
        seen.hit_tokens = int(found["hit"])
    elif found := _STORED.search(text):
        seen.stored = _more(seen.stored, found)
    elif found := _LOADED.search(text):
        seen.loaded = _more(seen.loaded, found)
    else:
        return False
    return True


def _share(found: Match[str]) -> Share:
    return Share(int(found["of"] or found["count"]), int(found["count"]))


def _more(before: Share | None, found: Match[str]) -> Share:
    """Chunks of one prompt are told one after the other."""
    share = _share(found)
    return share if before is None else Share(before.of + share.of, before.count + share.count)
