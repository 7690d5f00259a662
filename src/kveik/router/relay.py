"""The way of one answer to the client: held while it is short, passed on as it comes, ended honestly.

A stream's head is kept back until the first byte of its body: engines send it before they compute
anything, and what has not begun for the client can still be had from another engine. Whole answers
(all but chunked ones that are no JSON, such as speech) are kept until they are complete, up to
``HOLD_MAX_BYTES``, for the same reason. After that bytes go through as they came, in the framing
they came in; only a client of HTTP/1.0 gets the body alone.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final

from kveik.router import http1
from kveik.router.records import RequestRecord
from kveik.router.stream import KEEP_ALIVE, TAIL_BYTES, StreamWatch, error_event, error_status, usage_in

HOLD_MAX_BYTES: Final = 256 << 10
#: Streams of these paths end with an event by name, or with ``[DONE]``; of others, with the body.
_NAMED: Final = (b"/responses", b"/messages")
_BODILESS: Final = (204, 304)
_MARKED: Final = (b"/chat/completions", b"/completions", *_NAMED)


class ClientLink:
    """What answers need of the client's connection. A base for the reason that :class:`.upstream.Answered` is one."""

    __slots__ = ("http10", "keep_alive")

    http10: bool
    keep_alive: bool

    def write(self, data: bytes) -> None:
        """Send bytes."""
        raise NotImplementedError

    def respond(self, status: int, body: bytes, *, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Send a whole answer of the router's own."""
        raise NotImplementedError

    def answered(self) -> None:
        """The answer is complete and the connection is kept: the next request may be handled."""
        raise NotImplementedError

    def cut(self) -> None:
        """End the connection after what was written."""
        raise NotImplementedError

    def break_off(self) -> None:
        """End the connection so that nobody takes it for the end of the answer."""
        raise NotImplementedError


class Step(Enum):
    """Where the answer is after some of its bytes."""

    MORE = "more"  # nothing is decided
    COMPLETE = "complete"
    UNFINISHED = "unfinished"  # the body ended properly, but the stream in it did not
    MISFIT = "misfit"  # the client was told to expect a stream, and this is none


class Framing(Enum):
    """How the client knows where the body ends."""

    CHUNKS = "chunks"
    LENGTH = "length"
    CONNECTION = "connection"  # it ends with the connection


# Looking a member up in its enum costs as much as passing a piece on.
_MORE: Final = Step.MORE
_COMPLETE: Final = Step.COMPLETE
_CHUNKS: Final = Framing.CHUNKS
_LENGTH: Final = Framing.LENGTH
_CONNECTION: Final = Framing.CONNECTION


class Relay:
    """One answer.

    ``begun``: something of it has gone to the client; ``error_status``: what a stream that came to its end said of an
    error, 0 if nothing; ``head_sent``: a head has, perhaps with
    comments only; ``wants_pieces``: the body is needed without the engine's framing; ``looks_whole``:
    it is cut, and nothing but the way in which the connection ends can tell.
    """

    __slots__ = (
        "_chunks_ours", "_client", "_framing", "_head", "_held", "_holds", "_marked", "_path", "_record", "_reframes",
        "_size", "_status", "_watch", "begun", "error_status", "head_sent", "looks_whole", "wants_pieces",
    )  # fmt: skip

    def __init__(self, client: ClientLink, record: RequestRecord, path: bytes, *, reframes: bool = False) -> None:
        """``reframes``: chunks are made anew, so that another engine can go on with a stream."""
        self._client, self._record, self._path = client, record, path
        self._marked = path.endswith(_MARKED)
        self._reframes = reframes and not client.http10
        self.wants_pieces = client.http10 or reframes
        self.begun = False
        self.head_sent = False
        self.looks_whole = False
        self.error_status = 0
        self.reset()

    def reset(self) -> None:
        """Forget an attempt of which nothing has gone to the client."""
        self._watch: StreamWatch | None = None
        self._head = b""
        self._framing = _CHUNKS
        self._holds = True
        self._held: list[bytes] = []
        self._size = 0
        self._status = 0
        self._chunks_ours = False

    def go_on(self) -> bool:
        """Another engine goes on with what this one began; False if its framing does not let it."""
        return self._chunks_ours or self._framing is _CONNECTION

    # -- the engine's answer --------------------------------------------------------------------

    def whole(self, head: bytes, body: bytes) -> None:
        """A whole answer of status 200 with its length, if no head has been sent.

        ``head`` is without the blank line, and nothing of it stays here.
        """
        client, record = self._client, self._record
        close = b"" if client.keep_alive else b"connection: close\r\n"
        data = b"%s\r\nx-request-id: %s\r\n%s\r\n%s" % (head, record.request_id.encode(), close, body)
        self.begun = self.head_sent = True
        self._status = 200
        record.response_bytes += len(data)
        client.write(data)
        self._completed(body)

    def began(self, status: int, head: bytes, data: bytes, *, complete: bool) -> Step:
        """The head of a good answer, and what came of the body with it."""
        lower = head.lower()
        framed = b"\r\ntransfer-encoding:" in lower
        self._status = status
        if b"text/event-stream" in lower:
            self._watch = StreamWatch(named_events=self._path.endswith(_NAMED))
            self._chunks_ours = self._reframes if framed else self.head_sent
        elif self.head_sent:
            return Step.MISFIT
        self._holds = not framed or b"json" in lower
        self._take_head(head, lower)
        return self.went_on(data, complete)

    def _take_head(self, head: bytes, lower: bytes) -> None:
        """Make the head that the client gets of the engine's."""
        if self.head_sent:
            return
        if b"\r\ntransfer-encoding:" not in lower:
            sized = b"\r\ncontent-length:" in lower or self._status in _BODILESS
            self._framing = _LENGTH if sized else _CONNECTION
        elif self.wants_pieces and not self._reframes:
            self._framing = _CONNECTION
            head = _without_framing(head)
        if self._framing is _CONNECTION:
            self._client.keep_alive = False
        self._head = self._with_own_headers(head, lower)

    def went_on(self, data: bytes, complete: bool) -> Step:
        """More of the body."""
        watch = self._watch
        if watch is None and not self.begun and self._holds:
            return self._hold(data, complete)
        if not data and not complete:
            return _MORE
        if watch is not None and not complete and self.head_sent and not self._chunks_ours:  # most pieces of a stream
            watch.saw(data)
            self._record.response_bytes += len(data)
            self.begun = True
            self._client.write(data)
            return _MORE
        if watch is not None:
            if data:
                watch.saw(data)
            if complete and self._marked and not watch.complete:
                return self._unfinished(data)
        self._write(data)
        return self._completed(watch.tail if watch is not None else data) if complete else _MORE

    def _unfinished(self, data: bytes) -> Step:
        """The last bytes of a stream without an end mark: all but what would end the body for the client."""
        if self._framing is _LENGTH and not self._chunks_ours:
            kept: bytes | None = data[:-1]
        elif self._framing is _CONNECTION or self._chunks_ours:
            kept = data
        else:
            kept = http1.without_last_chunk(data)
        if kept:
            self._write(kept)
        self.looks_whole = kept is None and self.begun
        return Step.UNFINISHED

    def _hold(self, data: bytes, complete: bool) -> Step:
        held = self._held
        if complete:
            answer = b"".join((*held, data)) if held else data
            self._write(answer)
            return self._completed(answer)
        held.append(data)
        self._size += len(data)
        if self._size > HOLD_MAX_BYTES:
            self._write(b"".join(held))
        return _MORE

    def _completed(self, tail: bytes) -> Step:
        record = self._record
        record.status = self._status
        record.prompt_tokens, record.completion_tokens, record.cached_tokens = usage_in(tail[-TAIL_BYTES:])
        if self._watch is not None:
            self.error_status = error_status(tail)
        if self._chunks_ours:
            self._client.write(http1.LAST_CHUNK)
        return _COMPLETE

    def _write(self, data: bytes) -> None:
        """Body, after the head if that is still here."""
        if self._chunks_ours:
            data = http1.chunk(data)
        if not self.head_sent:
            data = self._head + data
        self.begun = self.head_sent = True
        self._record.response_bytes += len(data)
        self._client.write(data)

    def _with_own_headers(self, head: bytes, lower: bytes) -> bytes:
        """The head with our headers, and without those of the engine's connection."""
        if b"\r\nconnection:" in lower or b"\r\nkeep-alive:" in lower or b"\r\nx-request-id:" in lower:
            head = http1.without_hop_by_hop(head)
        if not head.startswith(b"HTTP/1.1"):
            head = b"HTTP/1.1" + head[8:]
        close = b"" if self._client.keep_alive else b"connection: close\r\n"
        return b"%sx-request-id: %s\r\n%s\r\n" % (head[:-2], self._record.request_id.encode(), close)

    # -- what the router says -------------------------------------------------------------------

    def pass_error(self, status: int, answer: bytes) -> None:
        """An engine's error answer, whole, as it is."""
        end = answer.find(b"\r\n\r\n") + 4
        head = answer[:end]
        self._record.status = status
        self._take_head(head, head.lower())
        self._client.write(self._head + answer[end:])

    def refuse(self, status: int, message: str, *, code: str, retry_after_s: int = 0) -> bool:
        """An error of the router's own; False if the connection has to end with it, as after a begun answer."""
        if self.head_sent:
            self.end_with_error(message, code)
            return False
        self._record.status = status
        headers = [(b"x-request-id", self._record.request_id.encode())]
        if retry_after_s:
            headers.append((b"retry-after", b"%d" % retry_after_s))
        self._client.respond(status, http1.error_body(status, message, code=code), headers=headers)
        return self._client.keep_alive

    def end_with_error(self, message: str, code: str) -> None:
        """An error event in a begun stream; the connection must then be cut, so that nobody takes it for an end.

        A begun answer that is no stream is just cut: there is no place in it for words.
        """
        self._record.cut = True
        watch = self._watch
        if self.begun and watch is None:
            self.looks_whole = self._framing is _CONNECTION
        if self.looks_whole or (self.begun and watch is None):
            return
        event = error_event(message, code=code, after_partial=watch is not None and not watch.between_events)
        if self._framing is _CHUNKS or self._chunks_ours:
            self._client.write(http1.chunk(event))
        elif self._framing is _CONNECTION:
            self._client.write(event)

    def comment(self) -> None:
        """A line that says only that the router is there, so that nobody between cuts a silent stream."""
        if self._client.http10:
            return
        if not self.head_sent:
            self._client.write(http1.stream_head(self._record.request_id.encode()))
            self.head_sent = True
            if self._watch is not None and b"\r\ntransfer-encoding:" not in self._head.lower():
                self._chunks_ours = True
        self._client.write(http1.chunk(KEEP_ALIVE))


def _without_framing(head: bytes) -> bytes:
    """A head for a body that comes without its chunks."""
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"transfer-encoding:")]
    return b"\r\n".join(lines) + b"\r\n\r\n"
