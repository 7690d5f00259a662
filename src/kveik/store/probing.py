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

import secrets
from collections.abc import Sequence
from concurrent.futures import Future, wait
from functools import partial

from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.store.base import READY, BlockStore
from kveik.store.canary import LARGE_BYTES, SMALL_BYTES
from kveik.store.guarded import GuardedStore
from kveik.store.probe_round import Kept, ProbeRound, blocks_of_others
from kveik.store.probe_verdict import Finding, ProbeCourse, Verdict
from kveik.store.ticking import Ticking
from kveik.store.tier_threads import TierThreads

CLOSE_S = 2.0
#: A round that has not ended by then may never end, though the tier is sound again (a mount that was made anew):
#: it is left alone and the next one begins, as long as a thread is free.
GIVE_UP_S = 60.0
THREADS = 3


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
        self._threads = TierThreads(f"{store.name}-probe", THREADS, clock)
        self._course = ProbeCourse(period_s, clock.monotonic() + period_s)
        self._kept = Kept()
        self._blocks_when_sound = 0
        self._round = self._new_round()
        self._sizes: tuple[int, ...] = ()
        self._job: Future[Finding] | None = None
        self._began_s = self._judge_at_s = 0.0
        self._judged = False
        self._trial = False
        self._emptied = False
        guard.standing.leave_trials_to_probe()

    def __repr__(self) -> str:
        running = "" if self._job is None else ", a round runs"
        return f"TierProbe({self._store.name!r}, {self._course!r}, {self._kept.canaries} canaries{running})"

    @property
    def course(self) -> ProbeCourse:
        """Where the tier stands in the eyes of its probe."""
        return self._course

    @property
    def canaries_put(self) -> int:
        """How many canaries were put in rounds that ended."""
        return self._kept.number

    @property
    def idle(self) -> bool:
        """Whether no round runs."""
        return self._job is None

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
            if now_s - self._began_s >= GIVE_UP_S and self._threads.overdue(0.0) < THREADS:
                self._kept = self._kept.given_up(self._owner, self._sizes, now_s)
                self._job = None

    def _note_medium(self) -> None:
        stats = self._store.stats()
        notes = "; ".join(stats.notes) or "its medium is not open"
        self._guard.standing.note_medium("" if stats.state == READY else notes)

    def close(self) -> None:
        """Stop, and take the canaries away if that is quickly done."""
        self._guard.standing.leave_trials_to_probe(False)
        if self._job is not None:
            wait([self._job], timeout=CLOSE_S if self._guard.standing.usable else 0.0)
        if self._job is None or self._job.done():
            self._kept = self._round.kept
            wait([self._threads.submit(self._new_round().clear)], timeout=CLOSE_S)
        self._threads.close()

    def _new_round(self) -> ProbeRound:
        deadline = Deadline.after(self._deadline_s, self._clock)
        return ProbeRound(self._store, self._owner, self._kept, deadline, self._clock, self._guard.last_hit)

    def _begin(self, now_s: float) -> None:
        self._judged, self._began_s, self._judge_at_s = False, now_s, now_s + self._deadline_s
        self._sizes = (SMALL_BYTES, LARGE_BYTES) if self._trial else (SMALL_BYTES,)
        self._round = self._new_round()
        self._job = self._threads.submit(partial(self._round.run, self._sizes))

    def _end(self, job: "Future[Finding]", now_s: float) -> None:
        self._job = None
        self._kept = self._round.kept
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
            left = blocks_of_others(self._store, self._kept)
            lost = max(0, self._blocks_when_sound - left) if self._emptied else None
            standing.lift_fence(f"{self._course.good} probes in a row were right", lost)
            self._emptied = False
        if verdict is Verdict.SOUND and not self._course.fence:
            self._blocks_when_sound = self._round.blocks_before


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
        self._ticking = Ticking("kveik-tiers-probe", self._probes)

    def __repr__(self) -> str:
        return f"TierProbes({self._probes!r})"

    def start(self) -> "TierProbes":
        """Probe from now on."""
        self._ticking.start()
        return self

    def close(self) -> None:
        """Stop probing; never waits for a stuck call."""
        self._ticking.close()
