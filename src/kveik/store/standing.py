"""Whether a tier may be used: its breaker, its fence, and the log of its outages, kept together under one lock.

The *breaker* answers failures that every call sees. The *fence* answers what only a probe sees
(:mod:`kveik.store.probing`): a tier that does what it is told and yet lies. While either stands, the tier is out.
"""

import threading

from kveik.breaker import CLOSED, Breaker, BreakerPolicy
from kveik.clock import Clock
from kveik.records import Listener, OutageRecord, StateRecord
from kveik.store.base import BlockResult, failed
from kveik.store.outages import Outage, OutageLog

#: What ``breaker_state`` says while the fence stands.
FENCED = "fenced"
#: A probe that has not taken a trial for this long after it was due is not waited for any longer.
PROBE_GRACE_S = 30.0


class Standing:
    """Thread-safe; every decision is one of :mod:`kveik.breaker` or :mod:`kveik.store.outages`."""

    def __init__(self, name: str, *, policy: BreakerPolicy, listener: Listener, clock: Clock) -> None:
        self._name = name
        self._listener = listener
        self._clock = clock
        self._lock = threading.Lock()
        self._breaker = Breaker(policy)
        self._fence = ""
        self._away = ""
        self._probed = False
        self._log = OutageLog(name)

    def __repr__(self) -> str:
        return f"Standing({self._name!r}, breaker {self.breaker_state})"

    @property
    def breaker_state(self) -> str:
        """``closed``, ``open``, ``half-open`` or ``fenced``."""
        return FENCED if self._fence else self._breaker.state

    @property
    def fence(self) -> str:
        """Why the tier is fenced; empty if it is not."""
        return self._fence

    @property
    def breaker_out(self) -> bool:
        """Whether the breaker alone keeps calls from going through."""
        return self._breaker.state != CLOSED

    @property
    def usable(self) -> bool:
        """Whether calls go through."""
        return not self._fence and self._breaker.state == CLOSED

    @property
    def outages(self) -> OutageLog:
        """The last times in which the tier was out."""
        return self._log

    def leave_trials_to_probe(self, probed: bool = True) -> None:
        """From now on the breaker's trials are taken by :meth:`begin_trial` and not by whoever calls next."""
        self._probed = probed

    def refusal(self) -> BlockResult | None:
        """Why a call may not go through now, if so. Takes the breaker's trial when it is due and left to calls."""
        with self._lock:
            if self._fence:
                return failed("fenced", self._fence)
            before = self._breaker
            if self._probed and before.state != CLOSED:
                waited_s = self._clock.monotonic() - before.until_s
                if waited_s < PROBE_GRACE_S:
                    return failed("breaker_open")
            permitted, after = self._permit()
        self._report_change(before, after, "trying again")
        return None if permitted else failed("breaker_open")

    def refused(self) -> BlockResult:
        """What to tell of a call that waited and is ended because the tier is out."""
        fence = self._fence
        return failed("fenced", fence) if fence else failed("breaker_open")

    def begin_trial(self) -> bool:
        """Take the breaker's one trial, if it is out and a trial is due."""
        with self._lock:
            before = self._breaker
            if before.state == CLOSED:
                return False
            permitted, after = self._permit()
        self._report_change(before, after, "trying again")
        return permitted

    def _permit(self) -> tuple[bool, Breaker]:
        self._breaker, permitted = self._breaker.permit(self._clock.monotonic())
        return permitted, self._breaker

    def note(self, failure: str, *, timed_out: bool = False) -> None:
        """Count how a call ended; an empty ``failure`` means that it worked."""
        with self._lock:
            before = self._breaker
            now_s = self._clock.monotonic()
            after = before.failed(now_s, timed_out=timed_out) if failure else before.succeeded()
            self._breaker = after
            ended = self._settle(failure)
        self._report_change(before, after, failure or "it answers again")
        self._report_end(ended)

    def put_fence(self, why: str) -> None:
        """Leave the tier out for a reason that a probe found."""
        with self._lock:
            before, self._fence = self._fence, why
            self._settle(why)
        if not before:
            self._listener(StateRecord(f"{self._name}.fence", "sound", FENCED, why))

    def lift_fence(self, why: str, lost_keys: int | None = None) -> None:
        """The tier is sound again; ``lost_keys`` are those that it forgot meanwhile, as far as known."""
        with self._lock:
            before, self._fence = self._fence, ""
            if lost_keys is not None:
                self._log = self._log.lost(lost_keys)
            ended = self._settle("")
        if before:
            self._listener(StateRecord(f"{self._name}.fence", FENCED, "sound", why))
        self._report_end(ended)

    def note_medium(self, away: str) -> None:
        """Whether there is anything behind the tier at all: why its medium is not open, or empty if it is.

        Calls go through all the same, and are refused further in; but it is an outage.
        """
        if bool(away) == bool(self._away):
            return
        with self._lock:
            self._away = away
            ended = self._settle(away)
        self._report_end(ended)

    def cost(self, *, not_stored: int = 0, not_read: int = 0) -> None:
        """Count blocks that the outage kept from being moved."""
        with self._lock:
            self._log = self._log.cost(not_stored=not_stored, not_read=not_read)

    def _settle(self, why: str) -> Outage | None:
        """Begin or end an outage, as breaker and fence now stand; the outage that ended. Under the lock."""
        now_s = self._clock.wall()
        current = self._log.current
        if self._away or not self.usable:
            self._log = self._log.began(why, now_s)
        elif current is not None:
            self._log = self._log.ended(now_s)
            return self._log.outages[-1]
        return None

    def _report_change(self, before: Breaker, after: Breaker, why: str) -> None:
        if before.state != after.state:
            self._listener(StateRecord(f"{self._name}.breaker", before.state, after.state, why))

    def _report_end(self, ended: Outage | None) -> None:
        if ended is not None:
            self._listener(
                OutageRecord(
                    self._name,
                    ended.duration_s,
                    ended.not_stored_blocks,
                    ended.not_read_blocks,
                    ended.lost_keys or 0,
                    ended.text,
                )
            )
