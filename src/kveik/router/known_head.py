"""Heads that a connection has had before: equal bytes mean the same, and need not be parsed again. No I/O.

What a client's library or an engine sends on one connection mostly begins with the same head, but for the digits
of its ``Content-Length``. The first one goes through the parser, which refuses what is not valid; the next ones
are compared. Only messages that come whole, in one piece, are taken this way; all others go through the parser.
"""

from typing import Final, NamedTuple

_BLANK: Final = b"\r\n\r\n"
_LENGTH: Final = b"\r\ncontent-length:"
#: Longer heads are parsed each time: they are rare, and each connection keeps one.
KNOWN_MAX_BYTES: Final = 4096
#: A length of more digits is for the parser.
_DIGITS_MAX: Final = 12


class KnownHead(NamedTuple):
    """A head up to the digits of its length, and from there to its blank line, which is not part of it."""

    before: bytes
    after: bytes

    def split(self, data: bytes, bytes_max: int) -> tuple[bytes, bytes] | None:
        """Head and body, if ``data`` is exactly one message with this head and at most so long a body."""
        before, after = self
        head, _, body = data.partition(_BLANK)
        if not (head.startswith(before) and head.endswith(after)):
            return None
        digits = head[len(before) : len(head) - len(after)]
        if not digits.isdigit() or len(digits) > _DIGITS_MAX or int(digits) != len(body) or len(body) > bytes_max:
            return None
        return head, body


def known_head(data: bytes) -> KnownHead | None:
    """The head of one whole message that the parser took; None if it has no length, or none that this can follow."""
    end = data.find(_BLANK, 0, KNOWN_MAX_BYTES)
    head = data[: max(end, 0)].lower()
    at = head.find(_LENGTH)
    if at < 0 or head.find(_LENGTH, at + 1) >= 0:
        return None
    start = at + len(_LENGTH)
    while head[start : start + 1] == b" ":
        start += 1
    line_end = head.find(b"\r", start)
    known = KnownHead(data[:start], data[line_end if line_end >= 0 else end : end])
    return known if known.split(data, len(data)) is not None else None
