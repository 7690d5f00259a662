"""Where an event stream stands: seen from its bytes, which are passed on untouched.

A stream of server-sent events is complete only if its last event says so: ``[DONE]`` for
completions, ``response.completed`` (``.incomplete``, ``.failed``) for the Responses API,
``message_stop`` for messages. An engine that dies between two events, or whose framework ends the
body properly after an exception, must not look like one that finished.
"""

import json
import re
from typing import Final

from kveik.router.http1 import without_last_chunk

#: The end of a stream is looked for in so many last bytes.
TAIL_BYTES: Final = 4096
_DONE: Final = re.compile(rb"(?:^|\n)data: ?\[DONE\]\s*(?:\r?\n[0-9a-fA-F]*\s*)*$")
#: Where one chunk ends and the next begins: a mark may be cut there.
_FRAMES: Final = re.compile(rb"\r\n[0-9a-fA-F]+(?:;[^\r\n]*)?\r\n")
_LAST_EVENT: Final = re.compile(rb"(?:^|\n)event: ?(?:response\.(?:completed|incomplete|failed)|message_stop)\r?\n")
#: An event's name is found across two pieces if so many bytes of the first are looked at again;
#: pieces that are shorter are put together.
_OVERLAP_BYTES: Final = 64
#: How engines say within a stream that its request failed: vLLM and OpenAI's completions by their data, the Responses
#: API and messages by the event's name.
_ERROR: Final = rb'(?:data: ?\{"error": ?\{|event: ?error\r?\n)'
_ERROR_EVENT: Final = re.compile(rb"(?:^|\n)" + _ERROR)
_ERROR_FIRST: Final = re.compile(rb"(?:[0-9a-fA-F]+\r\n)?" + _ERROR)
_ERROR_CODE: Final = re.compile(rb'"code": ?"?([45]\d\d)\b')
_BEFORE_NUMBER: Final = b" \t\r\n:"
_ZERO: Final = 0x30
_NINE: Final = 0x39
_DIGITS_MAX: Final = 12
_NO_USAGE: Final = (-1, -1, -1)

KEEP_ALIVE: Final = b": keep-alive\n\n"


class StreamWatch:
    """Follows one event stream. Feed each piece of the body with :meth:`saw`, framed in chunks or not.

    ``named_events``: the end is an event by name (Responses API, messages), whose data may be long;
    else it is ``[DONE]``.
    """

    __slots__ = ("_before", "_last", "_named_end", "_named_events")

    def __init__(self, *, named_events: bool = False) -> None:
        self._named_events = named_events
        self._named_end = False
        self._before = b""
        self._last = b""

    def saw(self, data: bytes) -> None:
        """One piece of the body, as it came from the socket."""
        before = self._last
        if len(before) < _OVERLAP_BYTES:  # an end mark and what ends its chunk may come one by one
            before = (self._before + before)[-TAIL_BYTES:]
        self._before, self._last = before, data
        if self._named_events and not self._named_end:
            self._named_end = _LAST_EVENT.search(before[-_OVERLAP_BYTES:] + data) is not None

    @property
    def tail(self) -> bytes:
        """The last bytes, of the last two pieces at most; of more if those are short."""
        return (self._before + self._last)[-TAIL_BYTES:]

    @property
    def complete(self) -> bool:
        """Whether the stream's last event says that it is the last one."""
        if self._named_events:
            return self._named_end
        tail = self.tail
        if _ends_with_done(tail):
            return True
        body = without_last_chunk(tail)  # as most engines never write it: cut by a chunk's end, or with trailers
        return body is not None and _ends_with_done(_FRAMES.sub(b"", body))

    @property
    def between_events(self) -> bool:
        """Whether the bytes so far end with a whole event."""
        tail = self.tail
        return not tail or tail.endswith((b"\n\n", b"\r\n\r\n", b"\r\r"))


def _ends_with_done(tail: bytes) -> bool:
    """Whether the last event is ``[DONE]``. Only the last data can be; a search from the start costs far more."""
    at = tail.rfind(b"data:")
    return at >= 0 and _DONE.match(tail, max(0, at - 1)) is not None


def error_event(message: str, *, code: str, kind: str = "engine_error", after_partial: bool = False) -> bytes:
    """An error as the last event of a stream. OpenAI's clients raise on it.

    ``after_partial`` ends an event that was cut in the middle first.
    """
    error = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return (b"\n\n" if after_partial else b"") + b"data: " + json.dumps(error).encode() + b"\n\n"


def error_status(events: bytes, *, first: bool = False) -> int:
    """The HTTP status that an error event among ``events`` states; 500 where it states none, 0 without such an event.

    ``first``: only the first event is asked, which may come in the framing of a chunk. vLLM sends the head of a
    stream, with status 200, before it looks at the request, so even an error of the client's comes as an event
    (``entrypoints/openai/``, ``create_streaming_error_response``).
    """
    if b"error" not in events:  # as nearly always, and found out at a fraction of the search's cost
        return 0
    event = _ERROR_FIRST.match(events) if first else _ERROR_EVENT.search(events)
    if event is None:
        return 0
    code = _ERROR_CODE.search(events, event.start())
    return int(code[1]) if code is not None else 500


def usage_in(tail: bytes) -> tuple[int, int, int]:
    """``(prompt tokens, completion tokens, cached tokens)`` that the end of an answer states; -1 where it does not.

    Reads the last mention of each, without decoding what may be a long answer. Anthropic's input tokens are
    those that were neither read from a cache nor written to one.
    """
    start = tail.find(b'"usage"')
    if start < 0:
        return _NO_USAGE
    prompt = _number(tail, b'"prompt_tokens"', start)
    if prompt >= 0:
        return prompt, _number(tail, b'"completion_tokens"', start), _number(tail, b'"cached_tokens"', start)
    prompt, completion = _number(tail, b'"input_tokens"', start), _number(tail, b'"output_tokens"', start)
    cached = _number(tail, b'"cached_tokens"', start)
    if cached < 0:
        cached = _number(tail, b'"cache_read_input_tokens"', start)
        if prompt >= 0 and cached >= 0:
            prompt += cached + max(0, _number(tail, b'"cache_creation_input_tokens"', start))
    return prompt, completion, cached


def _number(text: bytes, name: bytes, start: int) -> int:
    """The last number of that name (in quotes) after ``start``; -1 if there is none."""
    at, value = text.rfind(name, start), -1
    if at < 0:
        return value
    at, size = at + len(name), len(text)
    while at < size and text[at] in _BEFORE_NUMBER:
        at += 1
    end = min(size, at + _DIGITS_MAX)
    while at < end and _ZERO <= text[at] <= _NINE:
        value = max(value, 0) * 10 + text[at] - _ZERO
        at += 1
    return value
