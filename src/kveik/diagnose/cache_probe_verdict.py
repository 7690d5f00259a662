"""From what a probe of the cache saw to what is wrong: pure.

A hit passes many doors, and each can be the one that is shut. They are asked in order, and the first that did not
let the tokens through is named::

    connected -> asked -> answered -> stored -> found -> usable -> allowed -> loaded -> right -> fast
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from kveik.diagnose import cache_probe_remedies as remedies
from kveik.diagnose.cache_counters import Connector, Counts, KveikCounts
from kveik.diagnose.cache_log import LogEvidence
from kveik.engine.client import Completion
from kveik.errors import VerifyError
from kveik.verify.parity import distance, exact, float32_rule, rounded_rule


class Result(Enum):
    """How the probe ended."""

    WORKS = "works"
    NOT_CONNECTED = "not connected"
    NOT_ASKED = "not asked"
    NO_ANSWER = "no answer in time"
    NOT_STORED = "not stored"
    NOT_FOUND = "not found"
    NOT_USABLE = "found, but nothing usable"
    NOT_ALLOWED = "usable, but not allowed"
    NOT_LOADED = "allowed, but not loaded"
    SLOW = "loaded, but slow"
    WRONG = "loaded, and wrong"


#: A hit that takes longer than this part of a cold run saves nothing that a user would notice.
SLOW_SHARE = 0.9
#: A hit shorter than this part of what was possible is told as a partial one.
WHOLE_SHARE = 0.9
_UNANSWERED = ("deadline", "failed", "breaker_open")
_SHOWN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class Answer:
    """Whether the answer after the hit is the cold one. ``complaint``: how it differs; empty if it does not."""

    rule: str
    complaint: str = ""
    compared: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What one probe saw. Tokens of its prompt; seconds to the first token.

    ``fill`` is what the engine that was filled counted from the cold run until its saves were done, ``again`` what the
    engine that was asked last counted for the same prompt. ``reported_tokens``: how many cached tokens the last answer
    told of, -1 for none. ``own_tokens``: how many the first engine's own cache gave at once. ``foreign_tokens``: prompt
    tokens of others in ``again``. ``unit_tokens``: in which hits come. ``namespaces``: of both engines, empty where
    they tell none. ``across``: the engines are two.
    """

    connector: Connector
    prompt_tokens: int
    unit_tokens: int
    fill: Counts
    again: Counts
    cold_s: float
    hit_s: float
    answer: Answer
    reported_tokens: int = -1
    own_tokens: int = 0
    foreign_tokens: int = 0
    namespaces: tuple[str, str] = ("", "")
    across: bool = False
    log: LogEvidence = field(default_factory=LogEvidence)
    log_read: bool = False

    @property
    def possible_tokens(self) -> int:
        """The longest hit of whole units that leaves the last token to be computed."""
        return (self.prompt_tokens - 1) // self.unit_tokens * self.unit_tokens

    @property
    def used_tokens(self) -> int:
        """Tokens of this prompt that came from the shared cache, without those of others as far as can be told."""
        used = min(self.again.used, self.prompt_tokens)
        return min(used, self.reported_tokens) if self.foreign_tokens and self.reported_tokens >= 0 else used


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """The result in a sentence, and what to do. ``notes``: what else was seen."""

    result: Result
    told: str
    remedy: str = ""
    notes: Sequence[str] = ()

    @property
    def works(self) -> bool:
        """Whether hits are right and worth having."""
        return self.result is Result.WORKS


def answer_of(cold: Completion, own: Completion, hit: Completion, dtype: str) -> Answer:
    """Whether a hit gave what a cold run gives, by the rules of ``kveik verify``.

    In float32 it must be the cold answer. Rounded numbers are compared with what the engine's ``own`` cache gave.
    """
    try:
        if exact(dtype):
            rule, found = float32_rule(), distance(cold, hit)
        else:
            rule, found = rounded_rule([distance(cold, own)]), distance(own, hit)
    except VerifyError:  # no log probabilities
        return Answer("not compared", compared=False)
    return Answer(rule.why, rule.complaint(found))


def judge(seen: Observed) -> ProbeVerdict:
    """The verdict on what was seen."""
    if seen.used_tokens > 0:
        verdict = _used(seen)
    elif seen.again.kveik is not None:
        verdict = _lost_with_kveik(seen, seen.again.kveik)
    else:
        verdict = _lost_with_another(seen)
    return ProbeVerdict(verdict.result, verdict.told, verdict.remedy, tuple(_notes(seen)))


def _used(seen: Observed) -> ProbeVerdict:
    tokens = f"{seen.used_tokens:,} of {seen.prompt_tokens:,} tokens came from the shared cache"
    times = f"first token after {seen.hit_s:.2f} s, {seen.cold_s:.2f} s when all is computed"
    if seen.answer.complaint:
        told = f"{tokens}, and the answer is not that of the cold run: {seen.answer.complaint}"
        return ProbeVerdict(Result.WRONG, told, remedies.WRONG)
    if seen.hit_s >= SLOW_SHARE * seen.cold_s:
        return ProbeVerdict(Result.SLOW, f"{tokens}, which was no faster: {times}", remedies.SLOW)
    return ProbeVerdict(Result.WORKS, f"{tokens}; {times}")


def _lost_with_kveik(seen: Observed, again: KveikCounts) -> ProbeVerdict:
    return (
        _not_connected(seen, again)
        or _no_answer(again)
        or _not_let_through(seen, again)
        or _not_stored(seen.fill.kveik or KveikCounts())
        or _not_found(seen, again)
    )


def _not_connected(seen: Observed, again: KveikCounts) -> ProbeVerdict | None:
    which = f"the connector of the {'second ' if seen.across else ''}engine"
    if again.lookups.get("pending"):
        return ProbeVerdict(Result.NOT_CONNECTED, f"{which} does not know its namespace yet", remedies.PENDING)
    if again.serving is False:
        return ProbeVerdict(Result.NOT_CONNECTED, f"{which} is loaded and does not cache", remedies.NOT_SERVING)
    if again.lookups.get("detached") or again.attached is False:
        return ProbeVerdict(Result.NOT_CONNECTED, f"{which} has no agent", remedies.NO_AGENT)
    filled = seen.fill.kveik
    if seen.across and filled is not None and filled.attached is False and not filled.there_blocks:
        return ProbeVerdict(Result.NOT_CONNECTED, "the connector of the first engine has no agent", remedies.NO_AGENT)
    return None


def _no_answer(again: KveikCounts) -> ProbeVerdict | None:
    late = {outcome: count for outcome, count in again.lookups.items() if outcome in _UNANSWERED}
    if not late or again.found:
        return None
    told = f"the agent was asked and did not answer in time (lookups: {in_words(late)})"
    return ProbeVerdict(Result.NO_ANSWER, told, remedies.NO_ANSWER)


def _not_let_through(seen: Observed, again: KveikCounts) -> ProbeVerdict | None:
    """What was found and not taken, or not even asked for."""
    if again.lost or again.failures:
        told = f"{again.allowed:,} tokens were to be loaded and none arrived; blocks that failed: "
        told += in_words(again.failures) or "none counted"
        return ProbeVerdict(Result.NOT_LOADED, told, remedies.LOAD_FAILED)
    if again.allowed:
        told = f"{again.allowed:,} tokens were to be loaded, and none of them was used"
        return ProbeVerdict(Result.NOT_LOADED, told, remedies.NOT_TAKEN)
    if again.found:
        told = f"{again.found:,} usable tokens were found, and loading them would take longer than computing them"
        return ProbeVerdict(Result.NOT_ALLOWED, told, remedies.NOT_ALLOWED)
    if not again.asked and not again.lookups:
        told = f"the connector asked for none of the {seen.prompt_tokens:,} tokens (units of {seen.unit_tokens:,})"
        return ProbeVerdict(Result.NOT_ASKED, told, remedies.TOO_SHORT)
    return None


def _not_stored(filled: KveikCounts) -> ProbeVerdict | None:
    if filled.there_blocks:
        return None
    if filled.dropped:
        told = f"no block of the prompt was stored; dropped: {in_words(filled.dropped)}"
        return ProbeVerdict(Result.NOT_STORED, told, remedies.SAVE_DROPPED)
    told = "no block of the prompt was stored and none was dropped: the connector saves nothing"
    return ProbeVerdict(Result.NOT_STORED, told, remedies.SAVES_NOTHING)


def _not_found(seen: Observed, again: KveikCounts) -> ProbeVerdict:
    stored = f"{seen.fill.kveik.there_blocks if seen.fill.kveik else 0:,} blocks were stored"
    first, second = seen.namespaces
    if again.known_blocks:
        told = f"{again.known_blocks:,} blocks were found, and no token is usable in all KV cache groups at once"
        return ProbeVerdict(Result.NOT_USABLE, told, remedies.GROUP_LACKS)
    if seen.across and first and second and first != second:
        told = f"{stored} in namespace {first[:_SHOWN_DIGITS]}, and the second engine looks in {second[:_SHOWN_DIGITS]}"
        return ProbeVerdict(Result.NOT_FOUND, told, remedies.OTHER_NAMESPACE)
    if seen.across:
        told = f"{stored} by the first engine, and the second one finds none of them"
        return ProbeVerdict(Result.NOT_FOUND, told, remedies.NOT_SHARED)
    told = f"{stored}, and none of them was there any more when the prompt came again"
    return ProbeVerdict(Result.NOT_FOUND, told, remedies.EVICTED)


def _lost_with_another(seen: Observed) -> ProbeVerdict:
    """By vLLM's own counters, those of a connector that counts less than Kveik's, and the log if it was given."""
    log = seen.log
    if not seen.again.queried and not seen.fill.queried and not log.exists and log.hit_tokens is None:
        told = "vLLM asked no connector for any token: none is loaded"
        return ProbeVerdict(Result.NOT_CONNECTED, told, remedies.NO_CONNECTOR)
    return _told_by_log(seen) or _told_by_store(seen) or _told_by_nobody(seen)


def _told_by_log(seen: Observed) -> ProbeVerdict | None:
    log = seen.log
    groups = ", ".join(map(str, log.exists))
    if log.exist_blocks and not log.hit_tokens:
        told = f"the pool has blocks of the prompt ({groups} by group), and no token of them is usable (final hit=0)"
        return ProbeVerdict(Result.NOT_USABLE, told, remedies.GRANULARITY)
    if log.too_short_to_load:
        found = "tokens" if log.hit_tokens is None else f"{log.hit_tokens:,} tokens"
        told = f"{found} were found, and fewer than min_retrieve_tokens were left to load"
        return ProbeVerdict(Result.NOT_ALLOWED, told, remedies.MIN_RETRIEVE)
    if log.hit_tokens and log.need_tokens != 0:
        told = f"{log.hit_tokens:,} tokens were found, and none was loaded"
        return ProbeVerdict(Result.NOT_LOADED, told, remedies.OTHER_LOAD_FAILED)
    if log.exists and not log.exist_blocks and not _stored_by_others_count(seen):
        told = f"the pool has none of the prompt's blocks ({groups} by group)"
        return ProbeVerdict(Result.NOT_STORED, told, remedies.PUTS_FAIL)
    return None


def _stored_by_others_count(seen: Observed) -> bool:
    return bool((seen.fill.stored and seen.fill.stored.count) or (seen.log.stored and seen.log.stored.count))


def _told_by_store(seen: Observed) -> ProbeVerdict | None:
    stored, told = seen.fill.stored, seen.log.stored
    if stored is None and told is None:
        return None
    if not _stored_by_others_count(seen):
        said = "nothing of the prompt was stored, as the connector itself counts"
        return ProbeVerdict(Result.NOT_STORED, said, remedies.PUTS_FAIL)
    amount = str(stored) if stored is not None and stored.count else f"{told} tokens"
    said = f"{amount} were stored, and the lookup found none of them"
    return ProbeVerdict(Result.NOT_FOUND, said, remedies.OTHER_HASHES)


def _told_by_nobody(seen: Observed) -> ProbeVerdict:
    told = f"vLLM asked its connector for {seen.again.queried or seen.fill.queried:,} tokens and got none"
    told += "; it does not count what it stores, so whether they were there cannot be said"
    return ProbeVerdict(Result.NOT_FOUND, told, remedies.SAY_MORE)


def _notes(seen: Observed) -> Iterator[str]:
    if seen.foreign_tokens:
        others = f"others used the engine meanwhile ({seen.foreign_tokens:,} prompt tokens)"
        yield f"{others}: what was counted is not the probe's alone, and times are longer than they would be"
    if 0 < seen.used_tokens < WHOLE_SHARE * seen.possible_tokens:
        yield f"only a part of the prompt: a hit of {seen.possible_tokens:,} tokens was possible"
    if seen.used_tokens and not seen.answer.compared:
        yield "the answers were not compared: the engine tells no log probabilities"
    if not seen.own_tokens:
        yield "the engine's own cache gave nothing for the same prompt at once: is prefix caching on?"
    kveik, filled = seen.again.kveik, seen.fill.kveik
    if kveik is not None and seen.used_tokens and kveik.failures:
        yield f"some blocks failed to load and were computed: {in_words(kveik.failures)}"
    if filled is not None and filled.there_blocks and filled.dropped:
        yield f"some blocks were not stored: {in_words(filled.dropped)}"
    if seen.log_read and not seen.log.lines and seen.connector is not Connector.KVEIK:
        yield "no line of the log told of a lookup: is it this engine's log, and at DEBUG?"


def in_words(counts: Mapping[str, int]) -> str:
    """Counts by name, such as ``3 timeout, 1 checksum``."""
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())
