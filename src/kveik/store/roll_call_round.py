"""One round of the roll call in one tier: keep this node's own block fresh, read those of the others. Decides nothing.

It runs on a thread that may hang, on a copy of what it was given, as a probe's round does.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kveik.clock import Clock, Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.store.base import MISS, BlockResult, BlockStore, Status
from kveik.store.roll_call import NAMES, Entry, Roster, empty, read, sealed
from kveik.store.roll_call_verdict import Sight

#: Of a node's own blocks so many are left there, so that who is slow still finds the one before.
KEPT = 2
#: Blocks that one call asks for at most.
CALL_KEYS = 64


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: the roster, and what this agent's blocks say of it. It renews its own each ``renew_s``."""

    roster: Roster
    host: str
    nonce: str
    renew_s: float
    deadline_s: float


@dataclass(slots=True)
class Calls:
    """What one round leaves to the next. ``number``: of the newest own block; ``put_s``: when it was put."""

    number: int
    sights: dict[str, Sight]
    put_s: float | None = None
    busy: list[tuple[BlockResult, memoryview]] = field(default_factory=list)

    def copy(self) -> "Calls":
        """The same, to be changed by a round."""
        return replace(self, sights=dict(self.sights), busy=list(self.busy))

    @property
    def own_blocks(self) -> int:
        """How many blocks of this node may be in the tier."""
        return 0 if self.put_s is None else KEPT


class RollCallRound:
    """One round on ``store``; :attr:`calls` is what came of it."""

    def __init__(self, store: BlockStore, caller: Caller, calls: Calls, clock: Clock) -> None:
        self._store = store
        self._caller = caller
        self._clock = clock
        self.calls = calls.copy()

    def run(self) -> None:
        """Renew the own block if that is due or it is gone, and look for everybody's."""
        calls = self.calls
        calls.busy = [held for held in calls.busy if held[0].buffer_busy]
        if calls.put_s is None:
            self._delete(range(NAMES))  # what an earlier life of this agent may have left
        due = calls.put_s is None or self._clock.monotonic() - calls.put_s >= self._caller.renew_s
        if due or not self._read_own():
            self._renew()
        self._read_others()

    def clear(self) -> None:
        """Take this node's blocks away."""
        if self.calls.put_s is not None:
            self._delete([self.calls.number - back for back in range(KEPT)])
            self.calls.put_s = None

    def _renew(self) -> None:
        """Put the next block and read it back; the one before the last is taken away."""
        caller, number, wall_s = self._caller, self.calls.number + 1, self._clock.wall()
        self.calls.number = number  # whatever comes of it: under this name somebody else's may lie
        self._delete([number, number - KEPT])
        key = self._key(number)
        block = sealed(key, caller.roster.entry(caller.host, caller.nonce, number, wall_s, caller.renew_s))
        (result,) = self._store.put([key], [block], self._deadline())
        self._hold(result, block)
        if not result.ok:
            self._see(self._own.refused_for(f"its block was not put, {_words(result)}"))
            return
        self.calls.put_s = self._clock.monotonic()
        if not self._read_own():
            self._see(self._own.missed())
        self._look_for_a_twin()

    def _read_own(self) -> bool:
        """Read this node's newest block; False if it is not there."""
        (found,) = self._get([(self._caller.roster.node, self.calls.number)])
        if found == MISS:
            return False
        if isinstance(found, Entry) and found.nonce != self._caller.nonce:
            return False  # a stranger's, which is looked for when the next one is put
        self._see(self._taken(self._own, found))
        return True

    def _look_for_a_twin(self) -> None:
        """Whether an agent that is not this one puts blocks under this node's names."""
        node, nonce = self._caller.roster.node, self._caller.nonce
        found = self._get([(node, number) for number in range(NAMES)])
        strangers = [entry for entry in found if isinstance(entry, Entry) and entry.nonce != nonce]
        newest = max(strangers, key=lambda entry: entry.number, default=None)
        self._see(self._own.alone() if newest is None else self._own.met(newest))

    def _read_others(self) -> None:
        now_s = self._clock.monotonic()
        asked = [
            (node, number) for node in self._caller.roster.others for number in self.calls.sights[node].wanted(now_s)
        ]
        for start in range(0, len(asked), CALL_KEYS):
            part = asked[start : start + CALL_KEYS]
            for (node, _), found in zip(part, self._get(part), strict=True):
                self._see(self._taken(self.calls.sights[node], found))

    def _taken(self, sight: Sight, found: "Entry | BlockResult | str") -> Sight:
        if isinstance(found, Entry):
            return sight.read(found, self._clock.monotonic(), self._clock.wall())
        if isinstance(found, str):
            return sight.misread(found)
        return sight.missed() if found == MISS else sight.refused_for(_words(found))

    def _get(self, asked: Sequence[tuple[str, int]]) -> list["Entry | BlockResult | str"]:
        """Of each block what it says, or why it is not what its writer put there (text), or why there is none."""
        keys = [self._caller.roster.key(node, number) for node, number in asked]
        buffers = [empty() for _ in keys]
        results = self._store.get(keys, buffers, self._deadline())
        found: list[Entry | BlockResult | str] = []
        for key, buffer, result in zip(keys, buffers, results, strict=True):
            self._hold(result, buffer)
            if result.status is Status.CORRUPT:
                found.append(_words(result))
            else:
                found.append(read(buffer, key) if result.ok else result)
        return found

    def _delete(self, numbers: Sequence[int]) -> None:
        """As far as that can be done: a block that stays is found by its number to be an old one."""
        with contextlib.suppress(StoreError):
            self._store.delete([self._key(number) for number in numbers])

    @property
    def _own(self) -> Sight:
        return self.calls.sights[self._caller.roster.node]

    def _see(self, sight: Sight) -> None:
        self.calls.sights[sight.node] = sight

    def _key(self, number: int) -> BlockKey:
        return self._caller.roster.key(self._caller.roster.node, number)

    def _deadline(self) -> Deadline:
        return Deadline.after(self._caller.deadline_s, self._clock)

    def _hold(self, result: BlockResult, buffer: memoryview) -> None:
        """Keep memory that the store may still touch."""
        if result.buffer_busy:
            self.calls.busy.append((result, buffer))


def _words(result: BlockResult) -> str:
    return result.detail or result.reason or result.status.value
