"""One JSON line a request: who asked for what, which engine answered, how fast, and why it went there.

A line holds no prompt, no answer and no key. What clients control (path, model, request id) is
written as JSON in ASCII, so it can neither end the line nor move a terminal's cursor; the query of
a path, where some clients put secrets, is left out.
"""

import json
import os
import sys
import time
from dataclasses import replace

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import ConfigError
from kveik.router.records import RequestRecord

#: Lines that wait for being written (about 10 MB); beyond that they are dropped and counted.
LINES_MAX = 16_384
#: Longest text of a field that a client controls.
TEXT_MAX = 256
#: How a record ends: what its body told is no part of a line.
_NO_FACTS = b',"facts":null'
_CLIENT_TEXTS = ("path", "model", "request_id", "method", "why")


class AccessLog:
    """A listener that keeps lines until they are written (see :mod:`kveik.router.background`).

    If writing does not keep up, lines are dropped and counted: the log is worth less than the
    router's memory.
    """

    name = "access log"

    def __init__(self, target: str, clock: Clock = SYSTEM_CLOCK) -> None:
        """``target``: a path, or ``-`` for standard error.

        Raises :class:`ConfigError` for a path that cannot be written: better now than a line later.
        """
        self._target = target
        try:
            self.write(b"")
        except OSError as error:
            raise ConfigError(f"cannot write the access log {target}: {error.strerror}") from error
        self._clock = clock
        self._lines: list[bytes] = []
        self._encode = msgspec.json.Encoder().encode
        self._second = -1
        self._prefix = b""
        self.dropped = 0

    def __repr__(self) -> str:
        return f"AccessLog({self._target}, {len(self._lines)} lines waiting, dropped={self.dropped})"

    def __call__(self, record: RequestRecord) -> None:
        """Add the line of one finished request."""
        if len(self._lines) >= LINES_MAX:
            self.dropped += 1
            return
        now_s = self._clock.wall()
        second = int(now_s)
        if second != self._second:
            self._second = second
            self._prefix = time.strftime('{"time":"%Y-%m-%dT%H:%M:%S', time.gmtime(second)).encode()
        path = record.path
        if len(path) > TEXT_MAX or len(record.model) > TEXT_MAX or "?" in path or record.why or record.facts:
            record = _shortened(record)
        try:
            fields = self._encode(record)
        except UnicodeEncodeError:  # half a surrogate pair, which a JSON body can carry by an escape
            fields = _with_plain_texts(record)
        if not fields.isascii():
            fields = json.dumps(json.loads(fields.decode("utf8", "replace")), separators=(",", ":")).encode()
        fields = fields[1:-1].removesuffix(_NO_FACTS)
        self._lines.append(b'%s.%03dZ",%s}\n' % (self._prefix, (now_s - second) * 1000, fields))

    def take(self) -> bytes | None:
        """The lines since the last time."""
        if not self._lines:
            return None
        lines = b"".join(self._lines)
        self._lines.clear()
        return lines

    def write(self, lines: bytes) -> None:
        """Write whole lines. A file that was moved away (log rotation) is begun anew."""
        if self._target == "-":
            sys.stderr.buffer.write(lines)
            sys.stderr.buffer.flush()
            return
        descriptor = os.open(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            left = memoryview(lines)
            while left:
                left = left[os.write(descriptor, left) :]
        finally:
            os.close(descriptor)

    def not_written(self, lines: bytes) -> None:
        """Count what is lost: writing it again could double half of it."""
        self.dropped += lines.count(b"\n")


def _shortened(record: RequestRecord) -> RequestRecord:
    path = record.path.partition("?")[0]
    return replace(record, path=path[:TEXT_MAX], model=record.model[:TEXT_MAX], why=record.why[:TEXT_MAX], facts=None)


def _with_plain_texts(record: RequestRecord) -> bytes:
    texts = {name: getattr(record, name).encode("utf8", "replace").decode() for name in _CLIENT_TEXTS}
    return msgspec.json.encode(replace(record, **texts))
