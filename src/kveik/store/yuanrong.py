"""Blocks in openYuanrong datasystem, shared by the nodes of its cluster.

The worker of this node hands out values as views of its shared memory; each is copied once, into the
caller's buffer, digested on the way, and given back at once. Nothing is ever written into a buffer after
a call returned: the copy is made here. Values are written under the condition that the key is new, which
the cluster decides, so the first writer wins.

A node that dies takes its blocks with it, and the cluster says for up to ``node_dead_timeout_s`` that they
are there. Until ``node_timeout_s`` is over, a call that asks for one of them fails as a whole, also for
those that are sound; so it is made again in halves, once.
"""

from collections.abc import Sequence

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import FrameCorruptError, FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import MISS, BlockResult, Capabilities, Status, StoreStats, corrupt, failed, unsealed
from kveik.store.batching import take
from kveik.store.copying import copy_and_digest, copy_bytes
from kveik.store.key_text import KeyTexts
from kveik.store.yuanrong_client import EXIST_KEYS_MAX, KvClient, ReadOnlyBuffer, YuanrongOptions, connected
from kveik.store.yuanrong_errors import Meaning, trouble_of

#: Bytes asked for by one call, so that it fits into the library's time-out also where networks are slow.
CALL_BYTES = 32 << 20
#: Bytes of one call where calls are quick: each costs some milliseconds, as much as the copy of ten megabytes.
CALL_BYTES_MAX = 128 << 20
#: A full call that took no longer may be twice as large. Far below the library's time-out.
QUICK_S = 0.1

_Found = ReadOnlyBuffer | BlockResult | None


class YuanrongStore:
    """Blocks behind ``client``, under keys that begin with the options' prefix."""

    def __init__(
        self, client: KvClient, options: YuanrongOptions, *, name: str = "yuanrong", clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._client = client
        self._options = options
        self._texts = KeyTexts(options.prefix)
        self._name = name
        self._clock = clock
        self._call_bytes = CALL_BYTES
        self._closed = False

    def __repr__(self) -> str:
        return f"YuanrongStore({self._options.host}:{self._options.port})"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Shared; how much is kept is the worker's business."""
        return self._options.capabilities

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Whether the cluster knows each key; blocks of a node that died lately are known too."""
        present: list[bool] = []
        for start in range(0, len(keys), EXIST_KEYS_MAX):
            if self._closed or deadline.passed:
                break
            try:
                present += self._client.exist(self._names(keys[start : start + EXIST_KEYS_MAX]))
            except RuntimeError:
                break
        return present + [False] * (len(keys) - len(present))

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Copy each frame into its buffer and verify it there. Corrupt ones are deleted."""
        refusal = self._refusal(deadline)
        if refusal is not None or not keys:
            return [refusal or MISS] * len(keys)
        results: list[BlockResult] = []
        sizes = [len(buffer) for buffer in buffers]
        while len(results) < len(keys):
            start = len(results)
            end = start + take(sizes[start:], len(keys), self._call_bytes)
            results += self._copied(keys[start:end], buffers[start:end], deadline)
        bad = [key for key, result in zip(keys, results, strict=True) if result.status is Status.CORRUPT]
        if bad:
            self.delete(bad)
        return results

    def _copied(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        if deadline.passed:
            return [failed("timeout")] * len(keys)
        begun_s = self._clock.monotonic()
        found = self._find(self._names(keys), deadline)
        self._call_bytes = next_call_bytes(
            self._call_bytes,
            sum(len(buffer) for buffer in buffers),
            self._clock.monotonic() - begun_s,
            failed=any(isinstance(value, BlockResult) for value in found),
        )
        results = []
        for index, (key, buffer) in enumerate(zip(keys, buffers, strict=True)):
            value, found[index] = found[index], None  # given back as soon as it is copied
            results.append(_taken(key, value, buffer, deadline))
        return results

    def _find(self, names: list[str], deadline: Deadline, *, again: bool = True) -> list[_Found]:
        try:
            return list(self._client.get_read_only_buffers(names))
        except RuntimeError as error:
            trouble = trouble_of(str(error))
        if trouble.meaning is Meaning.ABSENT:
            return [None] * len(names)
        if again and len(names) > 1 and trouble.reason != "no_room" and not deadline.passed:
            middle = len(names) // 2
            first = self._find(names[:middle], deadline, again=False)
            return first + (
                [failed("timeout", trouble.detail)] * (len(names) - middle)
                if deadline.passed
                else self._find(names[middle:], deadline, again=False)
            )
        if trouble.meaning is Meaning.LOST:
            return [None] * len(names)
        return [failed(trouble.reason, trouble.detail)] * len(names)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Store each frame whose key is not there yet."""
        known = self.lookup(keys, deadline)
        return [
            self._put(key, sealed, present, deadline) for key, sealed, present in zip(keys, frames, known, strict=True)
        ]

    def _put(self, key: BlockKey, sealed: memoryview, present: bool, deadline: Deadline) -> BlockResult:
        refusal = self._refusal(deadline)
        if refusal is not None:
            return refusal
        try:
            size = frame.verify_header(sealed, key).frame_bytes
        except FrameError as error:
            return unsealed(error)
        if present:
            return BlockResult(Status.EXISTS)
        try:
            self._client.set_new(self._names([key])[0], sealed[:size])
        except RuntimeError as error:
            trouble = trouble_of(str(error))
            if trouble.meaning is Meaning.PRESENT:
                return BlockResult(Status.EXISTS)
            return failed(trouble.reason or "io_error", trouble.detail)
        return BlockResult(Status.STORED, size)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Forget each key that is known."""
        if self._closed:
            return [failed("closed")] * len(keys)
        names = self._names(keys)
        try:
            known = self._client.exist(names) if names else []
            gone = [name for name, present in zip(names, known, strict=True) if present]
            left = set(self._client.delete(gone)) if gone else set()
        except RuntimeError as error:
            trouble = trouble_of(str(error))
            return [failed(trouble.reason or "io_error", trouble.detail)] * len(keys)
        return [
            MISS if not present else failed("busy") if name in left else BlockResult(Status.DELETED)
            for name, present in zip(names, known, strict=True)
        ]

    def stats(self) -> StoreStats:
        """No sizes: the client cannot ask for them."""
        return StoreStats(0, 0, 0, notes=(f"{self._options.host}:{self._options.port}",))

    def close(self) -> None:
        """Refuse further calls; the connection ends with the process."""
        self._closed = True

    def _refusal(self, deadline: Deadline) -> BlockResult | None:
        if self._closed:
            return failed("closed")
        return failed("timeout") if deadline.passed else None

    def _names(self, keys: Sequence[BlockKey]) -> list[str]:
        return [self._texts.of(key) for key in keys]


def open_yuanrong(**options: str | float | bool) -> YuanrongStore:
    """A store from plain options, as a process apart makes it. Raises :class:`~kveik.errors.StoreError`."""
    told = YuanrongOptions(**options)  # type: ignore[arg-type]
    return YuanrongStore(connected(told), told)


def next_call_bytes(now: int, asked: int, took_s: float, *, failed: bool) -> int:
    """How many bytes the next call may ask for, after one for ``asked`` of at most ``now``."""
    if failed:
        return CALL_BYTES
    if took_s > QUICK_S:
        return max(now // 2, CALL_BYTES)
    return min(2 * now, CALL_BYTES_MAX) if asked > now // 2 else now


def _taken(key: BlockKey, value: _Found, buffer: memoryview, deadline: Deadline) -> BlockResult:
    """Copy one value into its buffer and judge it there."""
    if value is None:
        return MISS
    if isinstance(value, BlockResult):
        return value
    if deadline.passed:
        return failed("timeout")
    view = value.immutable_data()
    try:
        header = frame.verify_header(view, key)
        size = header.frame_bytes
        if len(buffer) < size:
            return failed("too_large", f"frame of {size} bytes, buffer of {len(buffer)}")
        copy_bytes(buffer[: frame.HEADER_BYTES], view[: frame.HEADER_BYTES])
        digest = copy_and_digest(buffer[frame.HEADER_BYTES : size], view[frame.HEADER_BYTES : size])
        if digest != header.payload_digest:
            raise FrameCorruptError("payload checksum differs")
        frame.verify_header(buffer[:size], key)
    except FrameError as error:
        return corrupt(error)
    return BlockResult(Status.HIT, size)
