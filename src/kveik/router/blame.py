"""Whose fault a failed attempt is, by evidence: pure functions.

======== =========================================== ============= =====================
blame    evidence                                     breaker       another engine?
======== =========================================== ============= =====================
client   4xx; any status whose error text says that   untouched     only if one takes
         the prompt is too long                                     longer prompts
overload 429, or 503 that does not say the engine is  untouched     yes
         dead
engine   500, 502, 504, other 5xx; connection cut     counts        yes, if repeatable
         before or within the answer; no answer in    (time-out,
         time; an answer that is no HTTP; the engine  death: opens)
         gone after a kept connection ended
engine   isolated before it answered                  untouched     yes, if repeatable
network  connection refused or not made in time       counts        yes, nothing was sent
request  failed in the same way on two engines that   not counted   no
         serve others, or runs when engines die       against them
======== =========================================== ============= =====================
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache


class Blame(Enum):
    """Whose fault it is. The values are metric labels."""

    NONE = "ok"
    CLIENT = "client"
    REQUEST = "request"
    ENGINE = "engine"
    NETWORK = "network"
    OVERLOAD = "overload"


class Failure(Enum):
    """What happened to an attempt, as the connection saw it."""

    STATUS = "status"  # an error status with a body
    REFUSED = "refused"  # no connection: nothing was sent
    CONNECT_TIMEOUT = "connect_timeout"
    CUT = "cut"  # the connection ended before the answer did
    STALE = "stale"  # a kept connection that failed before the answer began: it was closed while the request travelled
    DIED = "died"  # a kept connection ended before any byte, and then no new one could be made
    SILENT = "silent"  # no first byte in time
    STALLED = "stalled"  # no next byte in time
    MALFORMED = "malformed"  # no HTTP, or a stream without its end mark
    ISOLATED = "isolated"  # it was isolated while the request waited: whoever did that has judged it


@dataclass(frozen=True, slots=True)
class Evidence:
    """One failed attempt. ``answered``: bytes of a successful answer have gone to the client."""

    failure: Failure
    status: int = 0
    text: str = ""
    answered: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do about it.

    ``elsewhere``: another engine may be tried. ``same``: the same engine may be tried at once, on
    a fresh connection. ``counts``: it counts against the engine; ``opens``: it alone opens its
    breaker. ``too_long``: the prompt does not fit this engine. ``died``: the engine may have died
    while it ran the request.
    """

    blame: Blame
    elsewhere: bool = False
    same: bool = False
    counts: bool = False
    opens: bool = False
    too_long: bool = False
    died: bool = False


_TOO_LONG = re.compile(
    r"maximum context length|context_length_exceeded|maximum model length|max_model_len|"
    r"longer than the maximum|prompt is too long|exceeds? the (?:model'?s )?context",
    re.IGNORECASE,
)
_DEAD = re.compile(r"EngineDeadError|EngineCore (?:encountered|died|is dead)|engine (?:is )?dead", re.IGNORECASE)

TOO_LONG_CODE = "context_length_exceeded"


def too_long(text: str) -> bool:
    """Whether an error text says that the prompt does not fit the model."""
    return _TOO_LONG.search(text) is not None


def judge(evidence: Evidence, *, repeatable: bool) -> Verdict:
    """The verdict on one attempt. ``repeatable``: running the request twice does no harm."""
    failure = evidence.failure
    if failure is Failure.STATUS:
        return _judge_status(evidence, repeatable)
    if failure in (Failure.REFUSED, Failure.CONNECT_TIMEOUT):
        return Verdict(Blame.NETWORK, elsewhere=True, counts=True, opens=True)
    if failure is Failure.STALE:
        return Verdict(Blame.NETWORK, elsewhere=True, same=True)
    again = repeatable and not evidence.answered
    if failure is Failure.ISOLATED:
        return Verdict(Blame.ENGINE, elsewhere=again)
    opens = failure in (Failure.SILENT, Failure.STALLED, Failure.DIED)
    died = failure in (Failure.CUT, Failure.DIED)
    return Verdict(Blame.ENGINE, elsewhere=again, counts=True, opens=opens, died=died)


def _judge_status(evidence: Evidence, repeatable: bool) -> Verdict:
    status, text = evidence.status, evidence.text
    if too_long(text):
        return Verdict(Blame.CLIENT, elsewhere=True, too_long=True)
    if status < 500:
        return Verdict(Blame.OVERLOAD, elsewhere=True) if status == 429 else Verdict(Blame.CLIENT)
    dead = _DEAD.search(text) is not None
    if status == 503 and not dead:
        return Verdict(Blame.OVERLOAD, elsewhere=True)
    if status == 501:  # the engine does not have this function: nobody's fault
        return Verdict(Blame.CLIENT)
    return Verdict(Blame.ENGINE, elsewhere=repeatable, counts=True, opens=dead, died=dead)


#: Requests that only compute: running one twice costs time and nothing else.
_REPEATABLE = re.compile(
    rb"^(?:/v\d+)?/(?:chat/completions|completions|responses|messages|embeddings|rerank|score|pooling|classify|"
    rb"tokenize|detokenize|audio/(?:transcriptions|translations|speech)|images/generations|"
    rb"messages/count_tokens)(?:/render)?/?(?:\?|$)"
)


@lru_cache(256)
@lru_cache(maxsize=1024)
def repeatable(method: bytes, target: bytes) -> bool:
    """Whether a request may be sent to a second engine although the first may have carried it out."""
    return method in (b"GET", b"HEAD", b"OPTIONS") or (method == b"POST" and _REPEATABLE.match(target) is not None)
