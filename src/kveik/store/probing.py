"""Read-back probes: small known blocks, put into each tier, read back, compared, deleted.

A store may acknowledge what it never serves, serve other bytes, or be empty after a restart, while
each of its calls works. Only who reads back what it put can see that. A probe does, beside all
other calls: on a thread of its own, past breaker and fence, and not counted in any metric of
transfers. Two bad rounds in a row fence the tier, good ones let it in again; while its breaker is
open, the probe also makes the trial, so that no request has to.

A round puts one canary (:mod:`kveik.store.canary`) of 4 KiB and reads it back, reads the canary of
the round before once more, and deletes older ones: at most a few are in a tier at any time. They
are deleted only after no store's lease on a block that was read can last any more.
"""

import logging
import secrets
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.errors import FrameError, StoreError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.base import READY, BlockResult, BlockStore, failed
from kveik.store.canary import LARGE_BYTES, SMALL_BYTES, Canary
from kveik.store.guarded import GuardedStore
from kveik.store.probe_verdict import Finding, ProbeCourse, Verdict, of_get, of_put, together
from kveik.store.tier_threads import TierThreads

#: A block that was read may be leased that long (Mooncake: 10 s), and cannot be deleted before.
LEASE_S = 12.0
#: Canaries that could not be deleted yet; of more, the oldest are left to the tier's eviction.
LEFT_MAX = 16
#: A tier that takes no puts is judged by a block of a user's, if it is no larger than this.
READ_MAX_BYTES = 32 << 20
TICK_S = 0.25
CLOSE_S = 2.0

_log = logging.getLogger(__name__)


class TierProbe:
    """The probe of one tier. ``store`` is the bare store, ``guard`` the same store as everybody else uses it."""

    def __init__(
        self,
        store: BlockStore,
        guard: GuardedStore,
        *,
        period_s: float,
        deadline_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._guard = guard
        self._deadline_s = deadline_s
        self._clock = clock
        self._owner = f"{secrets.token_hex(8)}/{store.name}"
        self._thread = TierThreads(f"{store.name}-probe", 1, clock)
        self._course = ProbeCourse(period_s, clock.monotonic() + period_s)
        self._number = 0
        self._earlier: Canary | None = None
        self._left: list[tuple[Canary, float]] = []
        self._busy: list[tuple[BlockResult, memoryview]] = []
        self._blocks_before_round = 0
        self._blocks_when_sound = 0
        self._job: Future[Finding] | None = None
        self._judge_at_s = 0.0
        self._judged = False
        self._trial = False
        self._emptied = False
        guard.standing.leave_trials_to_probe()

    def __repr__(self) -> str:
        running = "" if self._job is None else ", a round runs"
        return f"TierProbe({self._store.name!r}, {self._course!r}, {len(self._left)} canaries left{running})"

    def tick(self) -> None:
        """Begin a round if one is due, judge one that ended or lasts too long. Never waits."""
        now_s = self._clock.monotonic()
        self._note_medium()
        if self._job is None:
            self._trial = self._guard.standing.begin_trial()
            if self._trial or now_s >= self._course.due_s:
                self._begin(now_s)
        elif self._job.done():
            self._end(self._job, now_s)
        elif now_s >= self._judge_at_s:
            self._judged = True
            self._take(Finding(Verdict.SLOW, f"nothing within {self._deadline_s:g} s"), now_s)
            self._judge_at_s = self._course.due_s  # it hangs on: once more when the next round would be due

    def _note_medium(self) -> None:
        stats = self._store.stats()
        notes = "; ".join(stats.notes) or "its medium is not open"
        self._guard.standing.note_medium("" if stats.state == READY else notes)

    def close(self) -> None:
        """Stop, and take the canaries away if that is quickly done."""
        self._guard.standing.leave_trials_to_probe(False)
        if self._guard.standing.usable:
            wait([self._thread.submit(self._clear)], timeout=CLOSE_S)
        self._thread.close()

    def _begin(self, now_s: float) -> None:
        self._judged, self._judge_at_s = False, now_s + self._deadline_s
        sizes = (SMALL_BYTES, LARGE_BYTES) if self._trial else (SMALL_BYTES,)
        self._job = self._thread.submit(partial(self._round, sizes))

    def _end(self, job: "Future[Finding]", now_s: float) -> None:
        self._job = None
        if self._judged or job.cancelled():
            return
        error = job.exception()
        self._take(job.result() if error is None else Finding(Verdict.FAILING, str(error) or repr(error)), now_s)

    def _take(self, finding: Finding, now_s: float) -> None:
        """Let a finding have its consequences: the fence first, so that a breaker never closes upon a lying tier."""
        standing, before, verdict = self._guard.standing, self._course, finding.verdict
        self._course = before.after(finding, now_s, breaker_open=standing.breaker_out)
        self._emptied = self._emptied or verdict is Verdict.EMPTIED
        if self._course.fence and not before.fence:
            standing.put_fence(self._course.fence)
        if self._trial:
            self._trial = False
            standing.note(finding.words if verdict.bad and verdict is not Verdict.EMPTIED else "")
        if before.fence and not self._course.fence:
            lost = max(0, self._blocks_when_sound - self._blocks()) if self._emptied else None
            standing.lift_fence(f"{self._course.good} probes in a row were right", lost)
            self._emptied = False
        if verdict is Verdict.SOUND and not self._course.fence:
            self._blocks_when_sound = self._blocks_before_round

    def _blocks(self) -> int:
        """Blocks of others in the tier, as far as it knows."""
        ours = len(self._left) + (self._earlier is not None)
        return max(0, self._store.stats().blocks - ours)

    # -- what runs on the probe's own thread --------------------------------------------------

    def _round(self, sizes: Sequence[int]) -> Finding:
        deadline = Deadline.after(self._deadline_s, self._clock)
        self._busy = [held for held in self._busy if held[0].buffer_busy]
        self._delete_old()
        self._blocks_before_round = self._blocks()
        earlier, found = self._earlier, Finding(Verdict.UNKNOWN)
        if earlier is not None:
            found = self._read(earlier, Verdict.EMPTIED, deadline)
            if found.verdict in (Verdict.SLOW, Verdict.FAILING, Verdict.UNKNOWN):
                return found  # it says nothing of the canary, which is asked for again
        new = self._put_all(sizes, deadline)
        found = together(found, new)
        if earlier is not None and (new.verdict is Verdict.SOUND or found.verdict is Verdict.EMPTIED):
            self._left.append((earlier, self._clock.monotonic()))
            self._earlier = self._earlier if self._earlier is not earlier else None
        if found.verdict is Verdict.UNKNOWN:
            found = self._read_a_users(deadline) or found
        return found

    def _put_all(self, sizes: Sequence[int], deadline: Deadline) -> Finding:
        found = Finding(Verdict.UNKNOWN)
        for size in sizes:
            self._number += 1
            one = self._put_and_read(Canary.of(self._owner, self._number, size), deadline)
            if one.verdict is Verdict.UNKNOWN and found.verdict is Verdict.SOUND:
                break  # a small one fits, a large one does not
            found = one
            if found.verdict is not Verdict.SOUND:
                break
        return found

    def _put_and_read(self, canary: Canary, deadline: Deadline) -> Finding:
        sealed = canary.sealed(self._clock.wall())
        (result,) = self._store.put([canary.key], [sealed], deadline)
        self._hold(result, sealed)
        refused = of_put(result)
        if refused is not None:
            if result.buffer_busy or result.reason == "timeout":
                self._left.append((canary, self._clock.monotonic()))
            return refused
        found = self._read(canary, Verdict.NOT_SERVED, deadline)
        if found.verdict is Verdict.SOUND and canary.payload_bytes == SMALL_BYTES:
            self._earlier = canary
        else:
            self._left.append((canary, self._clock.monotonic()))
        return found

    def _read(self, canary: Canary, missing: Verdict, deadline: Deadline) -> Finding:
        buffer = canary.buffer()
        (result,) = self._store.get([canary.key], [buffer], deadline)
        self._hold(result, buffer)
        return of_get(result, result.ok and canary.is_in(buffer), missing)

    def _read_a_users(self, deadline: Deadline) -> Finding | None:
        """Where nothing can be put: read a block that the tier served before; a missing one was evicted."""
        last = self._guard.last_hit
        if last is None or last[1] > READ_MAX_BYTES:
            return None
        key, size = last
        buffer = memoryview(bytearray(size))
        (result,) = self._store.get([key], [buffer], deadline)
        self._hold(result, buffer)
        return of_get(result, result.ok and _is_frame_of(buffer, key), Verdict.UNKNOWN)

    def _hold(self, result: BlockResult, buffer: memoryview) -> None:
        """Keep memory that the store may still touch."""
        if result.buffer_busy:
            self._busy.append((result, buffer))

    def _delete_old(self) -> None:
        now_s = self._clock.monotonic()
        old = [canary for canary, read_s in self._left if now_s - read_s >= LEASE_S]
        kept = [entry for entry in self._left if entry[0] not in old]
        for canary, result in zip(old, self._delete(old), strict=True):
            if result.reason == "busy":
                kept.append((canary, now_s))
        self._left = kept[-LEFT_MAX:]

    def _delete(self, canaries: Sequence[Canary]) -> list[BlockResult]:
        if not canaries:
            return []
        try:
            return self._store.delete([canary.key for canary in canaries])
        except StoreError as error:
            return [failed("unavailable", str(error))] * len(canaries)

    def _clear(self) -> None:
        last = [] if self._earlier is None else [self._earlier]
        self._delete([*last, *(canary for canary, _ in self._left)])
        self._left, self._earlier = [], None


def _is_frame_of(buffer: memoryview, key: BlockKey) -> bool:
    try:
        frame.verify(buffer, key)
    except FrameError:
        return False
    return True


class TierProbes:
    """The probes of all tiers, on one thread that never waits for a tier; ``period_s`` 0 means none."""

    def __init__(
        self,
        tiers: Sequence[tuple[BlockStore, GuardedStore]],
        *,
        period_s: float,
        deadline_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._probes = [
            TierProbe(store, guard, period_s=period_s, deadline_s=deadline_s, clock=clock)
            for store, guard in (tiers if period_s > 0 else [])
        ]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kveik-tiers-probe", daemon=True)

    def __repr__(self) -> str:
        return f"TierProbes({self._probes!r})"

    def start(self) -> "TierProbes":
        """Probe from now on."""
        if self._probes:
            self._thread.start()
        return self

    def close(self) -> None:
        """Stop probing; never waits for a stuck call."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        for probe in self._probes:
            probe.close()

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            for probe in self._probes:
                try:
                    probe.tick()
                except Exception:  # noqa: BLE001
                    # Supervision: without further rounds, a fenced tier would stay so for ever.
                    _log.exception("unexpected error in %r", probe)
