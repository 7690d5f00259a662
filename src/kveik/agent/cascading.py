"""From the arena down: which of its blocks are written to lower tiers, and when."""

from collections.abc import Sequence
from functools import partial

from kveik.records import AdmissionRecord, FailureRecord, Listener
from kveik.store.admission import Remembered, goes_down
from kveik.store.arena import Arena
from kveik.store.tiered import LowerTiers


class Cascade:
    """Gives blocks of the arena to the lower tiers: at once what may go, the rest when it is asked for again.

    A block is wanted more than once if it was computed before and lost, if a second engine computes it, or if a request
    asks for it. Such blocks go down before others; with ``admission`` ``second_touch`` nothing else goes down. Not
    locked: called by the agent's server thread, but for what the tiers call back.
    """

    def __init__(self, arena: Arena, lower: LowerTiers, admission: str, listener: Listener) -> None:
        self._arena = arena
        self._lower = lower
        self._admission = admission
        self._listener = listener
        self._remembered = Remembered()

    def committed(self, slots: Sequence[int]) -> None:
        """New blocks in pinned slots, each of which is unpinned when no tier needs it any more."""
        if not self._lower.names:
            self._arena.unpin(slots)
            return
        wanted: list[int] = []
        others: list[int] = []
        for slot in slots:
            key = self._arena.key(slot)
            (wanted if self._remembered.seen(key) else others).append(slot)
            self._remembered.note(key)
        if not goes_down(self._admission, touches=0):
            self._arena.unpin(others)
            self._tell("single_use", len(others))
            others = []
        self._arena.to_give([*wanted, *others])
        self._give(wanted, first=True)
        self._give(others, first=False)

    def brought_up(self, slots: Sequence[int]) -> None:
        """Pinned slots whose blocks came from a lower tier: they need not go there again."""
        self._arena.to_give(slots)

    def asked_for(self, slots: Sequence[int]) -> None:
        """A request asks for these slots' blocks: what did not go down goes now, and what waits for it goes first."""
        if not self._lower.names:
            return
        wanted, given = self._arena.asked_for(slots)
        self._give(wanted, first=True)
        if given and self._lower.waiting:
            self._lower.prefer(given)

    def _give(self, slots: Sequence[int], *, first: bool) -> None:
        """Slots that are pinned, and marked as given."""
        dropped = 0
        for slot in slots:
            stored: list[bool] = []
            taken = self._lower.cascade(
                self._arena.key(slot),
                self._arena.view(slot),
                None,
                partial(self._ended, slot, stored),
                first=first,
                stored=partial(stored.append, True),
            )
            if not taken:
                self._ended(slot, stored)
                dropped += 1
        self._tell("wanted" if first else "new", len(slots) - dropped)
        if dropped:
            self._tell("queue_full", dropped)
            self._listener(FailureRecord("cascade", "put", "failed", "busy", dropped))

    def _ended(self, slot: int, stored: Sequence[bool]) -> None:
        if not stored:  # it is offered again when it is asked for again
            self._arena.not_given([slot])
        self._arena.unpin([slot])

    def _tell(self, outcome: str, blocks: int) -> None:
        if blocks:
            self._listener(AdmissionRecord(outcome, blocks))
