"""Why a block that a hit needed was not there: what the agent remembers of it, or how the prompt differs. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kveik.agent.funnel import CORRUPT, DROPPED, ELSEWHERE, EVICTED, GIVEN_UP, REFUSED, KnownNamespace, RequestFunnel
from kveik.diagnose.funnel_twin import Twin, earlier, most_alike, with_same_beginning
from kveik.diagnose.request_ids import client_id
from kveik.kv.namespace import Namespace


@dataclass(frozen=True, slots=True)
class Cause:
    """``code`` is short and for programs, ``sentence`` for people."""

    code: str
    sentence: str


@dataclass(frozen=True, slots=True)
class Known:
    """What else the agent knows: the other requests, and the namespaces by digest."""

    others: Sequence[RequestFunnel] = ()
    namespaces: Mapping[bytes, KnownNamespace] = field(default_factory=dict)


_UNANSWERED = {
    "deadline": ("no_answer", "The agent did not answer within the lookup's deadline, so the request was computed."),
    "failed": ("no_answer", "The agent could not be asked (its connection failed), so the request was computed."),
    "breaker_open": ("no_answer", "The agent was left out after failures, so the request was computed."),
    "detached": ("detached", "The engine was not attached to its agent, so the request was computed."),
    "pending": ("starting", "The engine was still identifying its model, so nothing could be looked up yet."),
    "skipped": ("skipped", "The request itself asked for no cached prefix (prompt log probabilities do)."),
    "short": ("too_few", "What lies beyond the engine's own hit is less than connector.min_hit_tokens."),
}


def why_missing(record: RequestFunnel, known: Known) -> Cause:
    """Why no more was found than was found."""
    if record.lookup in _UNANSWERED:
        return Cause(*_UNANSWERED[record.lookup])
    missing = record.missing
    if missing is None:
        return Cause("unknown", "Not all of it was there; the record does not say which block was missing.")
    where = f"the block of tokens {missing.first_token} to {missing.end_token - 1}"
    if missing.failed:
        return Cause("failed_lately", f"A load of {where} failed less than half a minute ago, so it is left out.")
    if missing.ranks:
        ranks = ", ".join(map(str, missing.ranks))
        return Cause("ranks", f"Rank {ranks} lacks {where}, which the other ranks have: one rank's save was lost.")
    if record.fate:
        return _FATES[record.fate](record, where)
    return _by_comparison(record, missing.end_token, where, known)


def _evicted(record: RequestFunnel, where: str) -> Cause:
    return Cause(
        "evicted",
        f"Evicted: {where} had been stored and made room for others{_ago(record)}, and no tier below had it either. "
        "A larger arena or tier keeps it longer.",
    )


def _refused(record: RequestFunnel, where: str) -> Cause:
    return Cause(
        "put_rejected",
        f"Never stored: the agent had refused {where} when it was to be saved{_ago(record)} ({record.fate_reason}).",
    )


def _given_up(record: RequestFunnel, where: str) -> Cause:
    return Cause("save_given_up", f"Never stored: the save of {where} was begun and given up{_ago(record)}.")


def _dropped(record: RequestFunnel, where: str) -> Cause:
    return Cause("dropped", f"Dropped: somebody had deleted {where}{_ago(record)} (kveik cache drop).")


def _corrupt(record: RequestFunnel, where: str) -> Cause:
    return Cause("corrupt", f"Thrown away: {where} had wrong bytes and was given up{_ago(record)}.")


def _elsewhere(record: RequestFunnel, where: str) -> Cause:
    return Cause(
        "namespace",
        f"Another namespace has {where}: an engine whose bytes cannot be used here stored it ({record.fate_reason}).",
    )


_FATES: Mapping[str, Callable[[RequestFunnel, str], Cause]] = {
    EVICTED: _evicted,
    REFUSED: _refused,
    GIVEN_UP: _given_up,
    DROPPED: _dropped,
    CORRUPT: _corrupt,
    ELSEWHERE: _elsewhere,
}


def _ago(record: RequestFunnel) -> str:
    return f" {record.fate_age_s:.0f} s before" if record.fate_age_s >= 0 else ""


def _by_comparison(record: RequestFunnel, end_token: int, where: str, known: Known) -> Cause:
    """Nothing is remembered of the block: compare the prompt with those of earlier requests."""
    before = earlier(record, known.others)
    if not record.prints:
        return Cause("not_stored", f"Nothing is known of {where}, and the prompt cannot be compared with others.")
    same = with_same_beginning(record, before)
    if same is not None and same.leading_tokens >= min(end_token, record.prompt_tokens):
        return _same_tokens(record, _best_of_equals(record, before, same), where, known)
    if same is not None and same.leading_tokens >= record.hash_tokens:
        return _differs(same)
    alike = most_alike(record, before)
    if alike is None:
        return Cause("new", "No request that is remembered began like this one: the prompt is new here.")
    return _differs(alike)


def _best_of_equals(record: RequestFunnel, before: Iterable[RequestFunnel], same: Twin) -> Twin:
    """Of the requests that share as much, one of the same namespace: it could have stored what was wanted."""
    equals = [
        twin
        for other in before
        if (twin := with_same_beginning(record, [other])) is not None and twin.leading_tokens >= same.leading_tokens
    ]
    return next((twin for twin in equals if twin.record.namespace == record.namespace), same)


def _differs(twin: Twin) -> Cause:
    first, end = twin.differs_in
    name = client_id(twin.record.request_id)
    if twin.goes_on:
        return Cause(
            "goes_on",
            f"The prompt goes on where that of request {name} ended, at token {twin.record.prompt_tokens}: "
            "what follows is new.",
        )
    rest = f", though {twin.alike:.0%} of the prompt is the same" if twin.alike >= 0.5 else ""
    if first == 0:
        return Cause(
            "first_tokens_differ",
            f"The prompt differs from that of request {name} at its very beginning (tokens 0 to {end - 1}){rest}: "
            "everything behind a difference is another prefix. A time, date or id at the start does that.",
        )
    return Cause(
        "prompt_differs",
        f"The prompt is that of request {name} up to token {first} and differs within tokens {first} to {end - 1}"
        f"{rest}: nothing behind that place can be shared.",
    )


def _same_tokens(record: RequestFunnel, twin: Twin, where: str, known: Known) -> Cause:
    """An earlier request had the same tokens up to there, and yet they are not found."""
    other, name = twin.record, client_id(twin.record.request_id)
    if other.namespace != record.namespace:
        return Cause(
            "namespace",
            f"Request {name} had the same tokens on an engine of another namespace, so its blocks have other names: "
            f"{_differences(record.namespace, other.namespace, known.namespaces)}.",
        )
    if other.first_hash and record.first_hash and other.first_hash != record.first_hash:
        return Cause(
            "salt",
            f"Request {name} had the same tokens with another cache salt (tenant), adapter or image, so its blocks "
            "have other names.",
        )
    if not other.saves:
        return Cause("not_saved", f"Request {name} had the same tokens, on an engine that saves nothing.")
    if other.dropped_blocks:
        reasons = ", ".join(sorted(other.dropped_blocks))
        return Cause(
            "not_saved", f"Never stored: request {name} had the same tokens, and its blocks were not saved ({reasons})."
        )
    if not other.ended or other.saving:
        return Cause("not_yet", f"Request {name} had the same tokens and had not saved {where} yet.")
    return Cause(
        "lost", f"Request {name} had the same tokens and saved them; what became of {where} is not remembered any more."
    )


def _differences(mine: bytes, other: bytes, namespaces: Mapping[bytes, KnownNamespace]) -> str:
    ours, theirs = namespaces.get(mine), namespaces.get(other)
    if ours is None or theirs is None:
        return "its facts are not known any more"
    differing = Namespace(ours.facts).differences(Namespace(theirs.facts))
    text = "; ".join(f"{one} there" for one in differing[:3])
    if any(one.startswith("hash_seed ") for one in differing):
        text += ". Set PYTHONHASHSEED to one value on all engines"
    return text
