"""Rates and places: how many requests may run, who waits, and whose turn it is. Pure; time is passed in."""

from collections import OrderedDict, deque
from enum import Enum
from typing import Any, Final, Generic, TypeVar


class TokenBucket:
    """A rate with a burst: ``per_min`` a minute, and as much at once after a quiet minute.

    The level may go below zero, where what something costs is known only afterwards: then nothing
    more is let through until the debt has been refilled.
    """

    __slots__ = ("_at_s", "_level", "burst", "per_s")

    def __init__(self, per_min: float, now_s: float) -> None:
        self.per_s = per_min / 60.0
        self.burst = float(per_min)
        self._level = self.burst
        self._at_s = now_s

    def __repr__(self) -> str:
        return f"TokenBucket({self.burst:g}/min, level={self._level:g})"

    def level(self, now_s: float) -> float:
        """What could be taken now; negative while in debt. A clock that steps back adds nothing."""
        passed_s = now_s - self._at_s
        if passed_s > 0:
            self._at_s = now_s
            self._level = min(self.burst, self._level + passed_s * self.per_s)
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until ``amount`` (at most the burst) is there; 0 if it is."""
        missing = min(amount, self.burst) - self.level(now_s)
        return 0.0 if missing <= 0 else missing / self.per_s

    def take(self, amount: float, now_s: float) -> float:
        """Take ``amount`` and give 0 if it is there (or the bucket full); else give the seconds until it will be."""
        level = self.level(now_s)
        if level < amount and level < self.burst:
            return self.wait_s(amount, now_s)
        self._level = level - amount
        return 0.0

    def spend(self, amount: float, now_s: float) -> None:
        """Take ``amount`` in any case. A negative one gives back what was taken too much."""
        self._level = min(self.burst, self.level(now_s) - amount)

    def moved_to(self, per_min: float, now_s: float) -> "TokenBucket":
        """A bucket of another rate that is as full as this one; a debt stays."""
        level = self.level(now_s)
        moved = TokenBucket(per_min, now_s)
        moved._level = min(level, 0.0) if level <= 0 else level / self.burst * moved.burst
        return moved


class Standing(Enum):
    """Where a request stands."""

    INSIDE = "inside"
    WAITING = "waiting"
    OUTSIDE = "outside"


# Looking a member up in its enum costs more than all else that most requests need here.
_INSIDE: Final = Standing.INSIDE
_WAITING: Final = Standing.WAITING
_OUTSIDE: Final = Standing.OUTSIDE


class Place:
    """One request's place, of one queue (that of its key)."""

    __slots__ = ("entered_s", "queue", "standing")

    def __init__(self, queue: "KeyQueue[Any]") -> None:
        self.queue = queue
        self.standing = _OUTSIDE
        self.entered_s = 0.0


_Place = TypeVar("_Place", bound=Place)


class KeyQueue(Generic[_Place]):
    """One key's share: ``limit`` requests at once (0: no limit of its own), the others in order of arrival."""

    __slots__ = ("inside", "limit", "name", "waiting")

    def __init__(self, name: str, limit: int = 0) -> None:
        self.name = name
        self.limit = limit
        self.inside = 0
        self.waiting: OrderedDict[_Place, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"KeyQueue({self.name}, inside={self.inside}/{self.limit}, waiting={len(self.waiting)})"

    @property
    def has_room(self) -> bool:
        """Whether one more of this key may run, as far as the key's own limit goes."""
        return not self.limit or self.inside < self.limit


class Places(Generic[_Place]):
    """The places of all keys: at most ``limit`` requests inside (0: no limit), ``waiting_max`` waiting.

    Those who wait get in by turns, one key after the other, and in order of arrival within a key.
    When the queue is full, the key that has most requests in it loses its newest one to a key that
    has fewer: a key that floods the router crowds out itself.
    """

    def __init__(self, limit: int, waiting_max: int, timeout_s: float) -> None:
        self.limit = limit
        self.waiting_max = waiting_max
        self.timeout_s = timeout_s
        self.inside = 0
        self.waiting = 0
        self._turns: deque[KeyQueue[_Place]] = deque()  # keys with somebody waiting, next first

    def __repr__(self) -> str:
        return f"Places(inside={self.inside}/{self.limit}, waiting={self.waiting}/{self.waiting_max})"

    def enter(self, place: _Place, now_s: float) -> _Place | None:
        """Give ``place`` a standing. A place that it crowds out of a full queue is returned, now outside.

        Nobody overtakes: with others of its key waiting, a new request waits as well.
        """
        queue: KeyQueue[_Place] = place.queue
        room = not self.limit or self.inside < self.limit
        if room and not queue.waiting and (not queue.limit or queue.inside < queue.limit):
            place.standing = _INSIDE
            self.inside += 1
            queue.inside += 1
            return None
        crowded_out = None
        if self.waiting >= self.waiting_max:
            crowded_out = self._crowded_out_by(queue)
            if crowded_out is None:
                return None
        place.entered_s = now_s
        place.standing = _WAITING
        if not queue.waiting:
            self._turns.append(queue)
        queue.waiting[place] = None
        self.waiting += 1
        return crowded_out

    def leave(self, place: _Place) -> list[_Place]:
        """Take ``place`` out, wherever it stands; those who got in instead. Leaving twice does nothing."""
        if place.standing is _INSIDE:
            place.standing = _OUTSIDE
            self.inside -= 1
            place.queue.inside -= 1
        elif place.standing is _WAITING:
            self._stop_waiting(place)
        return self.let_in() if self._turns else []

    def let_in(self) -> list[_Place]:
        """Let those in for whom there is room now (after somebody left, or after a limit was raised)."""
        admitted: list[_Place] = []
        while not self.limit or self.inside < self.limit:
            queue = self._next_turn()
            if queue is None:
                break
            place = next(iter(queue.waiting))
            self._stop_waiting(place)
            self._let_in(place)
            admitted.append(place)
        return admitted

    def expired(self, now_s: float) -> list[_Place]:
        """Take out those who have waited for too long, oldest of each key first."""
        late: list[_Place] = []
        for queue in self._turns:
            for place in queue.waiting:
                if now_s - place.entered_s < self.timeout_s:
                    break  # those behind came later
                late.append(place)
        for place in late:
            self._stop_waiting(place)
        return late

    def _let_in(self, place: _Place) -> None:
        place.standing = _INSIDE
        self.inside += 1
        place.queue.inside += 1

    def _stop_waiting(self, place: _Place) -> None:
        queue: KeyQueue[_Place] = place.queue
        del queue.waiting[place]
        place.standing = _OUTSIDE
        self.waiting -= 1
        if not queue.waiting:
            self._turns.remove(queue)

    def _next_turn(self) -> KeyQueue[_Place] | None:
        """The next key that has somebody waiting and room for one more; it goes to the end of the turns."""
        for queue in self._turns:
            if queue.has_room:
                self._turns.remove(queue)
                self._turns.append(queue)
                return queue
        return None

    def _crowded_out_by(self, queue: KeyQueue[_Place]) -> _Place | None:
        longest = max(self._turns, key=lambda other: len(other.waiting), default=None)
        if longest is None or len(longest.waiting) <= len(queue.waiting) + 1:
            return None
        newest = next(reversed(longest.waiting))
        self._stop_waiting(newest)
        return newest
