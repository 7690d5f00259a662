"""Redis or Valkey as a tier: one key a block, whole frames as values.

A batch is one round trip: MGET, whose values are received where they belong and verified there
while the next ones come, or a pipeline of SET NX (the first writer wins). No call leaves anything
behind that could touch a buffer later.
"""

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from kveik.clock import Deadline
from kveik.config_stores import RedisSettings
from kveik.errors import FrameError, StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import Namespace
from kveik.store.base import MISS, BlockResult, Capabilities, Status, StoreStats, corrupt, failed, unsealed
from kveik.store.key_text import KeyTexts
from kveik.store.redis_answers import ServerFacts, reason_of
from kveik.store.redis_link import RedisLink, RedisPipeline, connect

NAME = "redis"
#: A server outlives agents; whether it survives its machine is a matter of its own settings.
CAPABILITIES = Capabilities(durable=False, shared=True, bounded=False, batch_keys=16)
#: How often the server is asked for its sizes, beside all calls.
REFRESH_S = 5.0
#: The same after a failure.
DOUBT_S = 0.25
SCAN_KEYS = 1000
#: What a value can have at most (proto-max-bulk-len).
VALUE_MAX_BYTES = 512 << 20
_TEXTS = KeyTexts()


class RedisStore:
    """Blocks in one database of a server. Raises :class:`StoreError` if the server does not take this client."""

    def __init__(self, link: RedisLink, *, ttl_s: float = 0.0, refresh_s: float = REFRESH_S) -> None:
        self._link = link
        self._client = link.client
        self._ttl_ms = round(ttl_s * 1000) or None
        self._lock = threading.Lock()
        self._facts = ServerFacts()
        self._blocks = 0
        self._bytes = 0
        self._trouble = ""
        self._stop = threading.Event()
        self._doubtful = threading.Event()
        try:
            self._client.ping()
        except link.errors as error:
            raise StoreError(f"redis tier: {link.place} does not take this client: {error}") from error
        self._refresh()
        threading.Thread(target=self._keep_fresh, args=(refresh_s,), name="kveik-redis-sizes", daemon=True).start()

    @classmethod
    def open(cls, settings: RedisSettings, link: RedisLink | None = None) -> "RedisStore":
        """The store that the ``[redis]`` section names; ``link`` if that was made already.

        Raises ``ConfigError`` and ``StoreError``.
        """
        return cls(link or connect(settings), ttl_s=settings.ttl_hours * 3600)

    def __repr__(self) -> str:
        return f"RedisStore({self._link.place!r}, {self._blocks} blocks)"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return NAME

    @property
    def capabilities(self) -> Capabilities:
        """Shared by all that reach the server; best asked for several blocks at once."""
        return CAPABILITIES

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Whether each key is there. While the server does not answer, nothing is."""
        if self._refusal(deadline) is not None or not keys:
            return [False] * len(keys)
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.exists(_TEXTS.of(key))
        return [answer == 1 for answer in self._execute(pipe, len(keys))]

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Read all values in one round trip, each into its buffer, and verify it there."""
        refusal = self._refusal(deadline)
        if refusal is not None or not keys:
            return [refusal or MISS] * len(keys)
        results: list[BlockResult] = []
        try:
            with self._link.reading([_TEXTS.of(key) for key in keys]) as values:
                for key, buffer in zip(keys, buffers, strict=True):
                    size = values.next_into(buffer)
                    results.append(MISS if size is None else self._received(key, size, buffer))
        except self._link.errors as error:
            results += [self._failure(error)] * (len(keys) - len(results))
        return results

    def _received(self, key: BlockKey, size: int, buffer: memoryview) -> BlockResult:
        if size > len(buffer):
            return failed("too_large", f"a value of {size} bytes, buffer of {len(buffer)}")
        try:
            header = frame.verify(buffer[:size], key)
        except FrameError as error:
            return self._quarantine(key, corrupt(error))
        if header.frame_bytes != size:
            found = BlockResult(Status.CORRUPT, reason="truncated", detail=f"a value of {size} bytes")
            return self._quarantine(key, found)
        return BlockResult(Status.HIT, size)

    def _quarantine(self, key: BlockKey, found: BlockResult) -> BlockResult:
        """Delete a wrong value, so that it can be stored anew; a miss if somebody else was faster."""
        (deleted,) = self.delete([key])
        return MISS if deleted.status is Status.MISS else found

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Store all frames that are not there yet in one round trip."""
        refusal = self._refusal(deadline)
        if refusal is not None or not keys:
            return [refusal or MISS] * len(keys)
        judged = [_sealed(key, sealed) for key, sealed in zip(keys, frames, strict=True)]
        pipe = self._client.pipeline(transaction=False)
        for key, found in zip(keys, judged, strict=True):
            if isinstance(found, memoryview):
                pipe.set(_TEXTS.of(key), found, px=self._ttl_ms, nx=True)
        answers = iter(self._execute(pipe, sum(isinstance(found, memoryview) for found in judged)))
        return [self._stored(len(found), next(answers)) if isinstance(found, memoryview) else found for found in judged]

    def _stored(self, size: int, answer: Any) -> BlockResult:
        if isinstance(answer, Exception):
            return self._failure(answer)
        if answer is None:
            return BlockResult(Status.EXISTS)
        self._count(1, size)
        return BlockResult(Status.STORED, size)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Delete each key, in one round trip."""
        if self._stop.is_set() or not keys:
            return [failed("closed")] * len(keys)
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.strlen(_TEXTS.of(key))
            pipe.unlink(_TEXTS.of(key))
        answers = self._execute(pipe, 2 * len(keys))
        return [self._deleted(size, gone) for size, gone in zip(answers[::2], answers[1::2], strict=True)]

    def _deleted(self, size: Any, gone: Any) -> BlockResult:
        if isinstance(gone, Exception):
            return self._failure(gone)
        if not gone:
            return MISS
        known = size if isinstance(size, int) else 0
        self._count(-1, -known)
        return BlockResult(Status.DELETED, known)

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks of one namespace, or all (empty digest), as SCAN gives them. Raises ``StoreError``."""
        cursor = 0
        while True:
            try:
                cursor, names = self._client.scan(cursor, match=f"{_TEXTS.start(namespace)}*", count=SCAN_KEYS)
            except self._link.errors as error:
                raise StoreError(f"redis tier: cannot list {self._link.place}: {error}") from error
            texts = (name.decode("ascii", "replace") for name in dict.fromkeys(names))
            yield [key for text in texts if (key := _TEXTS.key(text)) is not None]
            if cursor == 0:
                return

    def describe(self, namespace: Namespace) -> None:
        """Keep the namespace's facts under ``kveik:namespace:DIGEST``. Raises ``OSError``."""
        facts = {"digest": namespace.digest.hex(), "label": namespace.label, "facts": dict(namespace.facts)}
        try:
            self._client.set(f"kveik:namespace:{namespace.digest.hex()}", json.dumps(facts), nx=True)
        except self._link.errors as error:
            raise OSError(f"redis tier: {error}") from error

    def stats(self) -> StoreStats:
        """Sizes as the server said last, and as this process changed them since; it holds other keys as well."""
        with self._lock:
            facts, trouble = self._facts, self._trouble
            blocks, size = self._blocks, self._bytes
        limit = facts.limit_bytes
        notes = (self._link.place, *facts.notes, *filter(None, [trouble]))
        return StoreStats(blocks, min(size, limit) if limit else size, limit, notes=notes)

    def close(self) -> None:
        """Close all connections. Blocks stay."""
        if not self._stop.is_set():
            self._stop.set()
            self._doubtful.set()
            self._client.close()

    def _refusal(self, deadline: Deadline) -> BlockResult | None:
        if self._stop.is_set():
            return failed("closed")
        return failed("timeout") if deadline.passed else None

    def _execute(self, pipe: RedisPipeline, commands: int) -> list[Any]:
        """An answer to each command, or the error that it met."""
        if not commands:
            return []
        try:
            return pipe.execute(raise_on_error=False)
        except self._link.errors as error:
            return [error] * commands

    def _failure(self, error: Exception) -> BlockResult:
        if self._stop.is_set():
            return failed("closed")
        reason = reason_of(error)
        if reason in ("unavailable", "timeout"):
            self._doubtful.set()  # it may come back without what it had
        return failed(reason, f"{self._link.place}: {str(error).rstrip('.')}")

    def _count(self, blocks: int, size: int) -> None:
        with self._lock:
            self._blocks = max(0, self._blocks + blocks)
            self._bytes = max(0, self._bytes + size)

    def _keep_fresh(self, every_s: float) -> None:
        """Ask for the sizes now and then, and soon after it failed; whoever closes sets both events."""
        while not self._stop.is_set():
            if self._doubtful.wait(every_s):
                self._stop.wait(DOUBT_S)
            if not self._stop.is_set():
                self._refresh()

    def _refresh(self) -> None:
        try:
            facts, blocks = ServerFacts.of(self._client.info()), self._client.dbsize()
        except self._link.errors as error:
            with self._lock:
                self._trouble = f"its sizes are not known: {error}"
            self._doubtful.set()
            return
        self._doubtful.clear()
        with self._lock:
            self._facts, self._trouble = facts, ""
            self._blocks, self._bytes = blocks, facts.used_bytes


def _sealed(key: BlockKey, sealed: memoryview) -> memoryview | BlockResult:
    """The frame without what lies behind it, or why it cannot be stored."""
    try:
        size = frame.verify_header(sealed, key).frame_bytes
    except FrameError as error:
        return unsealed(error)
    if size > VALUE_MAX_BYTES:
        return failed("too_large", f"frame of {size} bytes, a value has at most {VALUE_MAX_BYTES}")
    return sealed[:size]
