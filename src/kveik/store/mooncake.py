"""Mooncake Store as a tier: frames go straight between the arena and the memory of other nodes.

Results are decided here. The library runs in a process of its own
(:mod:`~kveik.store.mooncake_host`, kept by :mod:`~kveik.store.mooncake_client`), its numbers are
translated in :mod:`~kveik.store.mooncake_codes`; what joins this node to the store is in
:mod:`~kveik.store.mooncake_link`.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from kveik.clock import Deadline
from kveik.errors import FrameCorruptError, FrameError, StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import (
    MISS,
    OPENING,
    READY,
    BlockResult,
    Capabilities,
    Status,
    StoreStats,
    corrupt,
    failed,
    unsealed,
)
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.key_text import DEFAULT_PREFIX, KeyTexts
from kveik.store.mooncake_client import Call
from kveik.store.mooncake_codes import INVALID_PARAMS, THERE_ALREADY, absent, failure, of_removal
from kveik.store.mooncake_link import MooncakeLink, Spot
from kveik.store.mooncake_seen import SeenKeys

CAPABILITIES = Capabilities(durable=False, shared=True, bounded=False, batch_keys=32)
#: Keys of one portion of a list.
_PORTION_KEYS = 1000
#: How often a frame that came wrong is read again before it is said to be wrong: each look may meet a removal.
_LOOKS_AGAIN = 2

#: The result of a key whose bytes have moved: of its index, its spot and the library's number.
_Moved = Callable[[int, Spot, int], BlockResult]


class MooncakeStore:
    """Blocks in the memory of all nodes that lend some to one Mooncake master, under one prefix.

    Closes the link when it is closed, unless ``keep_link``: others use it as well.
    """

    def __init__(
        self, link: MooncakeLink, prefix: str = DEFAULT_PREFIX, *, name: str = "mooncake", keep_link: bool = False
    ) -> None:
        self._link = link
        self._texts = KeyTexts(prefix)
        self._name = name
        self._keep_link = keep_link
        self._clock = link.clock
        self._lock = threading.Lock()
        self._seen = SeenKeys()
        self._joined_by = link.host_pid
        self._being_put: set[BlockKey] = set()
        self._closed = False

    def __repr__(self) -> str:
        return f"MooncakeStore({self._link!r}, {self._texts!r}, {self._seen!r})"

    @property
    def name(self) -> str:
        """Short name used in metrics and messages."""
        return self._name

    @property
    def capabilities(self) -> Capabilities:
        """Seen by every node; gone with the nodes that hold it; its limit is the memory that nodes lend."""
        return CAPABILITIES

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """Whether each key is there, as far as the master knows: a dead owner is noticed by it after 10 s."""
        if self._closed or deadline.passed:
            return [False] * len(keys)
        now_s = self._clock.monotonic()
        with self._lock:
            seen = self._seen_there()
            unknown = [key for key in dict.fromkeys(keys) if not seen.believed(key, now_s)]
        present = dict(zip(unknown, self._exist(unknown, deadline), strict=True))
        return [present.get(key, True) for key in keys]

    def _exist(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        codes, _ = self._ask("exist", keys, deadline)
        now_s = self._clock.monotonic()
        with self._lock:
            for key, code in zip(keys, codes or (), strict=False):
                if code == 1:
                    self._seen.saw(key, 0, now_s)
                else:
                    self._seen.gone(key)
        return [code == 1 for code in codes] if codes is not None else [False] * len(keys)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Read each frame into its buffer and verify it; a wrong one is removed, so that it can be stored anew.

        Memory of a block that somebody removes while it is read may hold another block before the read has ended: what
        came wrong says something about the store only if it comes wrong again.
        """
        if refusal := self._refusal(deadline):
            return [refusal] * len(keys)
        results = self._look(keys, buffers, range(len(keys)), deadline)
        wrong = _wrong(results)
        for _ in range(_LOOKS_AGAIN):
            if not wrong or deadline.passed:
                break
            results |= self._look(keys, buffers, wrong, deadline)
            wrong = _wrong(results)
        if wrong:
            self._remove([keys[index] for index in wrong], deadline)
        return [results[index] for index in range(len(keys))]

    def _look(
        self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], indexes: Iterable[int], deadline: Deadline
    ) -> dict[int, BlockResult]:
        results: dict[int, BlockResult] = {}
        spots: dict[int, Spot] = {}
        for index in indexes:
            spot = self._link.spot(buffers[index])
            if isinstance(spot, BlockResult):
                results[index] = spot
            else:
                spots[index] = spot
        return results | self._transfer("get", keys, spots, deadline, partial(self._got, keys, buffers))

    def _got(
        self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], index: int, spot: Spot, size: int
    ) -> BlockResult:
        """The result of a key of which ``size`` bytes arrived."""
        key = keys[index]
        try:
            header = frame.verify(spot.view[:size], key)
            if header.frame_bytes != size:
                raise FrameCorruptError(f"{size} bytes are stored, the header says {header.frame_bytes}")
        except FrameError as error:
            return corrupt(error)
        if spot.piece is not None:
            buffers[index][:size] = spot.view[:size]
        with self._lock:
            self._seen_there().saw(key, size, self._clock.monotonic())
        return BlockResult(Status.HIT, size)

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Store each frame. EXISTS also where another node is storing it at this moment."""
        if refusal := self._refusal(deadline):
            return [refusal] * len(keys)
        results: dict[int, BlockResult] = {}
        sizes: dict[int, int] = {}
        for index, (key, sealed) in enumerate(zip(keys, frames, strict=True)):
            try:
                sizes[index] = frame.verify_header(sealed, key).frame_bytes
            except FrameError as error:
                results[index] = unsealed(error)
        mine = self._claim({keys[index]: index for index in reversed(sizes)})
        try:
            chosen = {index: frames[index][: sizes[index]] for index in mine.values()}
            results |= self._put(keys, chosen, deadline)
        finally:
            with self._lock:
                self._being_put -= mine.keys()
        twice = BlockResult(Status.EXISTS)
        for index in sizes.keys() - results.keys():
            first = results[mine[keys[index]]] if keys[index] in mine else failed("busy", "it is being put already")
            results[index] = twice if first.ok else replace(first, bytes=0)
        return [results[index] for index in range(len(keys))]

    def _claim(self, indexes: Mapping[BlockKey, int]) -> dict[BlockKey, int]:
        """Those that nobody else puts at this moment, who would find it there as little as we."""
        with self._lock:
            mine = {key: index for key, index in indexes.items() if key not in self._being_put}
            self._being_put |= mine.keys()
        return mine

    def _put(
        self, keys: Sequence[BlockKey], frames: Mapping[int, memoryview], deadline: Deadline
    ) -> dict[int, BlockResult]:
        results: dict[int, BlockResult] = {}
        spots: dict[int, Spot] = {}
        for index, sealed in frames.items():
            spot = self._link.spot(sealed)
            if isinstance(spot, BlockResult):
                results[index] = spot
            else:
                if spot.piece is not None:
                    spot.view[:] = sealed
                spots[index] = spot
        return results | self._transfer("put", keys, spots, deadline, partial(self._stored, keys))

    def _stored(self, keys: Sequence[BlockKey], index: int, spot: Spot, _: int) -> BlockResult:
        size = len(spot.view)
        with self._lock:
            self._seen_there().stored(keys[index], size)
        return BlockResult(Status.STORED, size)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """Remove each key, also one that somebody reads: readers verify what they got."""
        deadline = Deadline.after(self._link.hang_s, self._clock)
        refusal = self._refusal(deadline)
        return [refusal] * len(keys) if refusal else self._remove(keys, deadline)

    def _remove(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[BlockResult]:
        codes, problem = self._ask("remove", keys, deadline)
        if codes is None:
            return [problem] * len(keys)
        with self._lock:
            known = [self._seen.gone(key) for key in keys]
        results = [of_removal(code) for code in codes]
        return [
            replace(result, bytes=size) if result.status is Status.DELETED else result
            for result, size in zip(results, known, strict=True)
        ]

    def keys(self, namespace: bytes) -> Iterator[Sequence[BlockKey]]:
        """The blocks of one namespace, or all (empty digest). Raises ``StoreError`` without ``master_http``."""
        for names in self._link.all_names():
            found = [self._texts.key(name) for name in names if name.startswith(self._texts.start(namespace))]
            for start in range(0, len(found), _PORTION_KEYS):
                yield [key for key in found[start : start + _PORTION_KEYS] if key is not None]

    def drop(self, namespace: bytes) -> int | None:
        """Remove all blocks of a namespace, or all but probes' (empty digest), at once; how many they were.

        Raises :class:`StoreError` if the store did not answer within the time that a call may take.
        """
        expression = self._texts.regex(namespace, spared=PROBE_NAMESPACE)
        call = None if self._closed else self._link.ask("drop", [expression])
        codes, problem = self._answer(call, Deadline.after(self._link.hang_s, self._clock))
        if codes is not None and codes[0] < 0:
            problem = failure(codes[0], _idle)
        if codes is None or codes[0] < 0:
            what = namespace.hex() or "all blocks"
            raise StoreError(f"the {self._name} tier did not drop {what}: {problem.detail or problem.reason}")
        with self._lock:
            self._seen.forget_all()
        return codes[0]

    def stats(self) -> StoreStats:
        """What all of the store holds, if its master tells it; else the blocks that this node saw there."""
        ready = self._link.ready
        state, notes = (READY, []) if ready else (OPENING, [self._link.why_not])
        sizes = self._link.sizes
        if sizes is not None:
            return StoreStats(sizes.blocks, sizes.bytes, sizes.capacity_bytes, notes=tuple(notes), state=state)
        with self._lock:
            seen = self._seen_there()
            blocks, size = len(seen), seen.bytes
        notes.append(f"sizes are of what this node saw there: {self._link.why_no_sizes}")
        return StoreStats(blocks, size, 0, notes=tuple(notes), state=state)

    def close(self) -> None:
        """Leave the store. Memory that this node lent is gone from it."""
        with self._lock:
            closed, self._closed = self._closed, True
        if not closed and not self._keep_link:
            self._link.close()

    def _seen_there(self) -> SeenKeys:
        """What is known to be there: nothing after it was joined anew, since the master may be an empty one now."""
        if self._link.host_pid != self._joined_by:
            self._joined_by = self._link.host_pid
            self._seen.forget_all()
        return self._seen

    def _refusal(self, deadline: Deadline) -> BlockResult | None:
        if self._closed:
            return failed("closed")
        return failed("timeout") if deadline.passed else None

    def _transfer(
        self,
        op: str,
        keys: Sequence[BlockKey],
        spots: Mapping[int, Spot],
        deadline: Deadline,
        moved: _Moved,
    ) -> dict[int, BlockResult]:
        """Move frames between the spots and the store; ``moved`` gives the result of a key that went well."""
        if not spots:
            return {}
        call = self._link.move(op, [self._texts.of(keys[index]) for index in spots], list(spots.values()))
        codes, problem = self._answer(call, deadline)
        results: dict[int, BlockResult] = {}
        for (index, spot), code in zip(spots.items(), codes or [0] * len(spots), strict=True):
            if codes is None:
                results[index] = problem
            elif code >= 0:
                results[index] = moved(index, spot, code)
            elif op == "get" and absent(code):
                with self._lock:
                    self._seen.gone(keys[index])
                results[index] = MISS
            elif op == "put" and code == THERE_ALREADY:
                results[index] = BlockResult(Status.EXISTS)
            elif op == "put" and code == INVALID_PARAMS:
                results[index] = failed("busy", "a put of it that was given up has not ended")
            else:
                results[index] = failure(code, _touching(call))
            self._link.give(spot, _touching(call))
        return results

    def _ask(self, op: str, keys: Sequence[BlockKey], deadline: Deadline) -> tuple[list[int] | None, BlockResult]:
        """Numbers for keys, or the result that all of them have instead."""
        if not keys:
            return [], MISS
        return self._answer(self._link.ask(op, [self._texts.of(key) for key in keys]), deadline)

    def _answer(self, call: Call | None, deadline: Deadline) -> tuple[list[int] | None, BlockResult]:
        if call is None:
            return None, failed("closed" if self._closed else "unavailable", self._link.why_not)
        if not call.wait(deadline.remaining_s):
            late = failed("timeout", f"{self._name} did not answer in time")
            return None, replace(late, still_running=call.may_touch_buffers)
        if call.codes is None:
            return None, failed("closed" if self._closed else "unavailable", self._link.why_not)
        return call.codes, MISS


def _wrong(results: Mapping[int, BlockResult]) -> list[int]:
    return [index for index, result in results.items() if result.status is Status.CORRUPT]


def _touching(call: Call | None) -> Callable[[], bool]:
    return call.may_touch_buffers if call is not None else _idle


def _idle() -> bool:
    return False
