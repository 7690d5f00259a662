"""What breaks prefixes, of one router or several, in words for people and values for programs. Pure."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from kveik.errors import RegistryError
from kveik.router.break_tally import BreakPlace, ClientShare, PrefixesDocument

#: What is seen less often may be chance, such as a message that somebody edited; people are not shown it.
REQUESTS_MIN = 3
CLIENTS_SHOWN = 3

_PARTS = {
    "system": "system prompt",
    "tool": "tools",
    "user": "a user's message",
    "assistant": "an earlier answer",
    "reasoning": "reasoning of an earlier answer",
    "calls": "calls of tools",
    "tool result": "a tool's result",
    "media": "an image, sound or file",
    "options": "options of the request",
    "prompt": "the prompt",
    "token ids": "the prompt's token ids",
    "conversation": "the conversation",
}


def read_document(answer: object, router: str) -> PrefixesDocument:
    """What a router answered. Raises :class:`RegistryError` for something else."""
    try:
        return msgspec.convert(answer, PrefixesDocument)
    except msgspec.ValidationError as error:
        raise RegistryError(f"{router} shows prefixes in a way that is not understood here: {error}") from error


def joined(documents: Sequence[PrefixesDocument]) -> PrefixesDocument:
    """Several routers' documents as one."""
    tokens = sum(document.prompt_tokens for document in documents)
    places: dict[tuple[str, str, str], BreakPlace] = {}
    for place in (place for document in documents for place in document.places):
        key = place.model, place.kind, place.part
        places[key] = place if key not in places else _both(places[key], place)
    for place in places.values():
        place.share = round(place.lost_tokens / max(1, tokens), 4)
    return PrefixesDocument(
        any(document.on for document in documents),
        min((document.since_s for document in documents), default=0.0),
        max((document.now_s for document in documents), default=0.0),
        sum(document.requests for document in documents),
        sum(document.looked_at for document in documents),
        tokens,
        sum(document.lost_tokens for document in documents),
        sum(document.remembered_prompts for document in documents),
        sum(document.memory_bytes for document in documents),
        sorted(places.values(), key=lambda place: -place.lost_tokens),
    )


def _both(one: BreakPlace, other: BreakPlace) -> BreakPlace:
    clients: dict[str, ClientShare] = {}
    for share in (*one.clients, *other.clients):
        known = clients.setdefault(share.client, ClientShare(share.client, 0, 0))
        known.requests += share.requests
        known.lost_tokens += share.lost_tokens
    return msgspec.structs.replace(
        max(one, other, key=lambda place: place.last_s),
        requests=one.requests + other.requests,
        lost_tokens=one.lost_tokens + other.lost_tokens,
        prompt_tokens=one.prompt_tokens + other.prompt_tokens,
        messages=(min(one.messages[0], other.messages[0]), max(one.messages[1], other.messages[1])),
        tokens=(min(one.tokens[0], other.tokens[0]), max(one.tokens[1], other.tokens[1])),
        clients=sorted(clients.values(), key=lambda share: -share.lost_tokens),
    )


def worth_telling(document: PrefixesDocument) -> list[BreakPlace]:
    """What was seen often enough, the greatest loss first."""
    return [place for place in document.places if place.requests >= REQUESTS_MIN]


def summary(document: PrefixesDocument) -> str:
    """One sentence: how much was looked at, and how much of it was lost."""
    if not document.on:
        return "prefixes are not looked at: router.explain_prompts is 0"
    if not document.looked_at:
        return "no request was looked at yet"
    share = document.looked_at / max(document.looked_at, document.requests)
    since = f"in the last {age(document.now_s - document.since_s)} "
    return (
        f"{since}{document.looked_at:,} of {document.requests:,} answered requests were looked at ({share:.0%}): of "
        f"{document.prompt_tokens:,} prompt tokens {document.lost_tokens:,} "
        f"({document.lost_tokens / max(1, document.prompt_tokens):.1%}) stood behind something that changed"
    )


def columns_of(place: BreakPlace) -> tuple[str, ...]:
    """One place as a row: what, where, model, requests, tokens lost, share of all, clients."""
    return (
        place.meaning,
        where(place),
        place.model,
        f"{place.requests:,}",
        f"{place.lost_tokens:,}",
        f"{place.share:.1%}",
        clients_of(place),
    )


def where(place: BreakPlace) -> str:
    """In which part, and from which token on."""
    first, last = place.messages
    message = "" if last < 1 else f", message {_range(max(1, first), last)}"
    return f"{_PARTS.get(place.part, place.part)}{message}, at token {_range(*place.tokens)}"


def clients_of(place: BreakPlace) -> str:
    """Whose requests, the greatest loss first."""
    shown = ", ".join(f"{share.client or 'unknown'} ({share.lost_tokens:,})" for share in place.clients[:CLIENTS_SHOWN])
    more = len(place.clients) - CLIENTS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def age(seconds: float) -> str:
    """How long something is ago, in the unit that says it best."""
    for unit, size_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def advice(places: Iterable[BreakPlace], now_s: float) -> list[str]:
    """What to do, a line for each place: its remedy, and the latest request that shows it."""
    lines = []
    for number, place in enumerate(places, 1):
        excerpt = f"; there: {place.excerpt!r}" if place.excerpt else ""
        seen = f"last seen {age(now_s - place.last_s)} ago in request {place.last_request}"
        lines.append(f"{number}. {place.remedy} ({seen}{excerpt})")
    return lines


def values_of(document: PrefixesDocument, away: Sequence[str]) -> dict[str, Any]:
    """The same for programs; ``away``: routers that did not answer, with reasons."""
    values: dict[str, Any] = msgspec.to_builtins(document)
    return {**values, "routers_away": list(away)}


def _range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
