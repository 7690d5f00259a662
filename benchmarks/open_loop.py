"""Sends streamed chat requests at their moments, however slow the answers are, and notes what became of each."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec
import uvloop

from benchmarks.workloads import Planned, percentile

_EVENT_END = b"\n\n"
_DATA = b"data: "
_DONE = b"[DONE]"


@dataclass
class Outcome:
    """What became of one request. ``first_s``: from its moment to the first token; -1 without one.

    ``status``: of HTTP, 0 without an answer. ``whole``: the stream came to its proper end.
    """

    first_s: float = -1.0
    status: int = 0
    whole: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True)
class Played:
    """All outcomes of a schedule. ``patience_s``: how long answers were waited for after the last request."""

    outcomes: Sequence[Outcome]
    patience_s: float

    @property
    def shed(self) -> int:
        """Requests that got another status than 200."""
        return sum(outcome.status not in (0, 200) for outcome in self.outcomes)

    @property
    def failed(self) -> int:
        """Requests without an answer, and those whose stream did not come to its end."""
        return sum(outcome.status in (0, 200) and not outcome.whole for outcome in self.outcomes)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that engines had in their caches."""
        return sum(outcome.cached_tokens for outcome in self.outcomes)

    @property
    def cached_share(self) -> float:
        """Their share of all prompt tokens of the requests that came to their end."""
        return self.cached_tokens / max(1, sum(outcome.prompt_tokens for outcome in self.outcomes))

    def first_token_s(self, part: float) -> float:
        """A percentile of the times to the first token; whoever got none counts as one that waited to the end."""
        times = [one.first_s if one.first_s >= 0 else self.patience_s for one in self.outcomes]
        return percentile(times, part)


def play(port: int, schedule: Sequence[Planned], patience_s: float) -> Played:
    """Send all requests to a port of this machine and wait for their ends, but not beyond ``patience_s``."""
    return uvloop.run(_play(port, schedule, patience_s))


async def _play(port: int, schedule: Sequence[Planned], patience_s: float) -> Played:
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    outcomes: list[Outcome] = []
    under_way: set[asyncio.Task[None]] = set()
    for planned in schedule:
        due_s = began_s + planned.due_s
        await asyncio.sleep(due_s - loop.time())
        outcomes.append(Outcome())
        task = loop.create_task(_ask(port, planned.body, due_s, outcomes[-1]))
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    if under_way:
        _, late = await asyncio.wait(set(under_way), timeout=patience_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
    return Played(outcomes, patience_s)


async def _ask(port: int, body: bytes, due_s: float, outcome: Outcome) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    try:
        transport, _ = await loop.create_connection(
            lambda: _Stream(body, due_s, outcome, ended, loop), "127.0.0.1", port
        )
    except OSError:
        return  # its status stays 0: it has failed
    try:
        await ended
    finally:
        transport.close()


class EventReader:
    """Reads the events of a streamed chat: whether it has a token yet, its usage, and whether it is done."""

    def __init__(self) -> None:
        self.has_token = False
        self.done = False
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take in some bytes of the stream, cut anywhere. Raises ValueError for an event that is no JSON."""
        *events, self._rest = (self._rest + data).split(_EVENT_END)
        for event in events:
            if not event.startswith(_DATA):
                continue  # a comment, which keeps the connection alive
            said = event[len(_DATA) :]
            if said == _DONE:
                self.done = True
            elif not self.has_token or b'"usage"' in said:
                self._look_at(msgspec.json.decode(said))

    def _look_at(self, event: dict[str, Any]) -> None:
        for choice in event.get("choices") or ():
            self.has_token = self.has_token or bool(choice.get("delta", {}).get("content"))
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


_HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n"
)


@dataclass(eq=False)
class _Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    body: bytes
    due_s: float
    outcome: Outcome
    ended: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    events: EventReader = field(default_factory=EventReader)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._parser = httptools.HttpResponseParser(self)
        cast("asyncio.Transport", transport).write(_HEAD % len(self.body) + self.body)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, whether or not the answer is."""
        self._end()

    def on_headers_complete(self) -> None:
        """The status is known."""
        self.outcome.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        """A part of the stream."""
        events, outcome = self.events, self.outcome
        events.feed(data)
        if outcome.first_s < 0 and events.has_token:
            outcome.first_s = self.loop.time() - self.due_s

    def on_message_complete(self) -> None:
        """The answer is whole, as far as HTTP can tell."""
        outcome, events = self.outcome, self.events
        outcome.whole = outcome.status == 200 and events.done
        if outcome.whole:
            outcome.prompt_tokens, outcome.cached_tokens = events.prompt_tokens, events.cached_tokens
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
