"""Whether the router turns bodies into the same tokens as an engine: tried out with bodies of 14 kinds.

Engines tell tokens at ``/tokenize``, for prompts and chats. For other endpoints, and for prompts that are
token ids already, the engine gets a real request for one token. Its prompt stands under a salt of its own,
by which its blocks are known among the engine's KV events: their tokens are what it really computed.
"""

import asyncio
import json
import secrets
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kveik.errors import EngineError, RenderError
from kveik.router.fetch import fetch
from kveik.router.parity_bodies import KINDS, BodyOfKind
from kveik.router.rendering import Renders, given_ids
from kveik.router.upstream import EnginePool

SAME, DIFFERS, NOT_OFFERED, UNKNOWN = "same", "differs", "not offered", "unknown"

#: Begins to watch the engine's events for blocks under a salt. What it returns waits a short time for
#: their tokens, and gives those that came.
Watch = Callable[[str], Callable[[], Awaitable[Sequence[int]]]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one kind of body came to. ``how``: by ``/tokenize``, by the tokens in events, or by their number only."""

    kind: str
    result: str
    how: str = ""
    why: str = ""
    tokens: int = 0

    @property
    def document(self) -> dict[str, Any]:
        """As plain values."""
        shown = {"kind": self.kind, "result": self.result, "how": self.how, "why": self.why, "tokens": self.tokens}
        return {name: value for name, value in shown.items() if value}


async def check_parity(
    pool: EnginePool, model: str, rendering: Renders | None, watch: Watch, deadline_s: float
) -> list[Verdict]:
    """A verdict on each kind, in order. Without a ``rendering`` only prompts of token ids can be compared."""
    return [await _check(one, pool, model, rendering, watch, deadline_s) for one in KINDS]


async def _check(
    one: BodyOfKind, pool: EnginePool, model: str, rendering: Renders | None, watch: Watch, deadline_s: float
) -> Verdict:
    salt = f"kveik-parity-{secrets.token_hex(8)}"
    body = one.request(model, salt)
    try:
        if one.kind == "prompt ids":
            prompt = given_ids(one.target, body)
        elif rendering is None:
            return Verdict(one.kind, UNKNOWN, why="no folder with the model's tokenizer is known")
        else:
            prompt = await asyncio.to_thread(rendering.prompt, one.target, body)
    except RenderError as error:
        return Verdict(one.kind, UNKNOWN, why=str(error))
    ours = array("I", prompt.packed).tolist()
    try:
        if one.told:
            status, answer = await fetch(pool, b"POST", b"/tokenize", one.question(model), deadline_s=deadline_s)
        else:
            stored = watch(salt)
            status, answer = await fetch(pool, b"POST", one.target, body, deadline_s=deadline_s)
    except EngineError as error:
        return Verdict(one.kind, UNKNOWN, why=str(error), tokens=len(ours))
    if status != 200:
        why = f"status {status}: {answer[:200].decode('utf8', 'replace')}"
        return Verdict(one.kind, UNKNOWN if status >= 500 else NOT_OFFERED, why=why, tokens=len(ours))
    text_of = rendering.text_of if rendering is not None else str
    if one.told:
        return await asyncio.to_thread(verdict, one.kind, ours, _told_tokens(answer), "tokenize", text_of)
    theirs = await stored()
    count = _counted_tokens(answer)
    if count not in (-1, len(ours)):
        where = await asyncio.to_thread(first_difference, ours[: len(theirs)], theirs, text_of)
        return Verdict(
            one.kind, DIFFERS, "count", f"{len(ours)} tokens, the engine counted {count}. {where}", len(ours)
        )
    if not theirs:
        return Verdict(one.kind, SAME if count >= 0 else UNKNOWN, "count", "no event told its tokens", len(ours))
    return await asyncio.to_thread(verdict, one.kind, ours[: len(theirs)], theirs, "events", text_of)


def verdict(
    kind: str, ours: Sequence[int], theirs: Sequence[int] | None, how: str, text_of: Callable[[int], str]
) -> Verdict:
    """The verdict on two lists of tokens."""
    if theirs is None:
        return Verdict(kind, UNKNOWN, how, "the engine's answer has no tokens", len(ours))
    why = first_difference(ours, theirs, text_of)
    return Verdict(kind, DIFFERS if why else SAME, how, why, len(ours))


def first_difference(ours: Sequence[int], theirs: Sequence[int], text_of: Callable[[int], str]) -> str:
    """The first token in which two lists differ, in words; empty if they are equal."""
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"token {number} is {our} ({text_of(our)!r}), the engine's is {their} ({text_of(their)!r})"
    if len(ours) == len(theirs):
        return ""
    number = min(len(ours), len(theirs))
    longer, where = (ours, "here") if len(ours) > number else (theirs, "in the engine")
    lengths = f"{len(ours)} tokens here, {len(theirs)} in the engine"
    return f"token {number} is {longer[number]} ({text_of(longer[number])!r}) only {where}: {lengths}"


def _told_tokens(answer: bytes) -> list[int] | None:
    try:
        tokens = json.loads(answer)["tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, list) and all(type(one) is int for one in tokens) else None


def _counted_tokens(answer: bytes) -> int:
    """How many prompt tokens an answer says it had; -1 if it doesn't say."""
    try:
        usage = json.loads(answer)["usage"]
        if "prompt_tokens" in usage:
            return int(usage["prompt_tokens"])
        cached = (usage.get("cache_read_input_tokens") or 0) + (usage.get("cache_creation_input_tokens") or 0)
        return int(usage["input_tokens"]) + int(cached)
    except (ValueError, KeyError, TypeError, AttributeError):
        return -1
