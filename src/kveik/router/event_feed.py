"""Follows one engine's KV events over ZMQ: in order, without a gap, or not at all.

Sockets are read on the event loop when their descriptors tell, a bounded time a turn; nothing waits. ::

    waiting --(connected)--> replaying --(end of the replay)--> live --(gap, odd number)--> replaying
    replaying --(no answer in time)--> waiting --(after a pause)--> replaying
    any --(events that can't be followed)--> ended

Every replay begins with the last batch that was taken: if the engine sends that very batch again, it is
the same life of the engine and what is missing follows. If it sends another one under that number, or
knows no such number, it has been restarted and holds nothing of what it held. Without a replay
socket a gap can't be repaired; then what the index has is dropped, and the engine is not
answered for exactly until it empties its cache or restarts.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from kveik.errors import EventFormatError
from kveik.kv.events import AllBlocksCleared, Course, EventBatch, Standing, decode_batch

logger = logging.getLogger(__name__)

#: Reading goes on in the next turn of the loop after so long.
TURN_S = 0.0005
REPLAY_S = 2.0
RETRY_S, RETRY_MAX_S = 2.0, 60.0
#: From the handshake until the engine certainly knows the subscription.
SETTLE_S = 0.05
#: Live batches that are kept during a replay, by number and size; of more, the oldest are asked for again.
KEPT_MAX, KEPT_MAX_BYTES = 5_000, 128 << 20
MESSAGE_MAX_BYTES = 64 << 20
_HEARTBEAT_MS, _HEARTBEAT_LOST_MS = 5_000, 15_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 100, 2_000
_END = (-1).to_bytes(8, "big", signed=True)
_LIVE = (zmq.EVENT_HANDSHAKE_SUCCEEDED,)
_GONE = (zmq.EVENT_DISCONNECTED,)


class Follower(Protocol):
    """Who is told of the events."""

    def began(self, *, restarted: bool) -> None:
        """Whatever was known of the engine's blocks is void. ``restarted``: and so may be all else of the engine."""

    def took(self, batch: EventBatch) -> str:
        """The next batch. Why events like these can't be followed; empty if they can."""

    def settled(self, why: str) -> None:
        """All that the engine holds is known; or why not."""


class EventFeed:
    """One engine's events. ``replay`` may be empty. Belongs to the thread of its loop."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", events: str, replay: str, follower: Follower) -> None:
        """Raises :class:`zmq.ZMQError` for an address that is none."""
        self._loop = asyncio.get_running_loop()
        self._context, self._replay_address, self._follower = context, replay, follower
        self._events = events
        self._course: Course | None = None
        self._why = "not connected to its events yet"
        self._incomplete = ""
        self._live = False
        self._kept: deque[tuple[int, bytes]] = deque()
        self._kept_bytes = 0
        self._retry_s = RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._replayer: zmq.Socket[bytes] | None = None
        self._answered = self._holey = False
        self._asked_at = 0
        self.batches = self.replays = 0
        self._subscriber = context.socket(zmq.SUB)
        for option, value in (
            (zmq.LINGER, 0), (zmq.IPV6, 1), (zmq.RCVHWM, KEPT_MAX), (zmq.MAXMSGSIZE, MESSAGE_MAX_BYTES),
            (zmq.HEARTBEAT_IVL, _HEARTBEAT_MS), (zmq.HEARTBEAT_TIMEOUT, _HEARTBEAT_LOST_MS),
            (zmq.RECONNECT_IVL, _RECONNECT_MS), (zmq.RECONNECT_IVL_MAX, _RECONNECT_MAX_MS),
        ):  # fmt: skip
            self._subscriber.setsockopt(option, value)
        self._subscriber.subscribe(b"")
        self._monitor = self._subscriber.get_monitor_socket()
        try:
            self._subscriber.connect(events)
        except zmq.ZMQError:
            self._close_subscriber()
            raise
        self._listen(self._subscriber, self._read_live)
        self._listen(self._monitor, self._read_monitor)

    def __repr__(self) -> str:
        return f"EventFeed({self._events}, {self._course}, {self._why or 'complete'})"

    @property
    def closed(self) -> bool:
        """Whether it has ended, by itself or by :meth:`close`."""
        return bool(self._subscriber.closed)

    def close(self) -> None:
        """End it; the follower hears nothing more."""
        if self.closed:
            return
        self._set_timer(None)
        self._close_replayer()
        self._loop.remove_reader(self._subscriber.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._close_subscriber()

    def _close_subscriber(self) -> None:
        self._subscriber.disable_monitor()
        self._monitor.close(linger=0)
        self._subscriber.close(linger=0)

    # -- reading --------------------------------------------------------------------------------

    def _listen(self, socket: "zmq.Socket[bytes]", read: Callable[[], None]) -> None:
        self._loop.add_reader(socket.fileno(), read)
        self._loop.call_soon(read)  # the descriptor tells of new messages only, and each time only once

    def _read_live(self) -> None:
        until_s = self._loop.time() + TURN_S
        while not self._subscriber.closed:
            try:
                frames = self._subscriber.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 3 and len(frames[1]) == 8:
                self._on_live(int.from_bytes(frames[1], "big"), frames[2])
            if self._loop.time() > until_s:
                self._loop.call_soon(self._read_live)
                return

    def _read_replay(self) -> None:
        until_s = self._loop.time() + TURN_S
        while (socket := self._replayer) is not None:
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 4 and frames[2] == _END:
                self._on_replay_end()
            elif len(frames) == 4 and len(frames[2]) == 8:
                self._on_replayed(int.from_bytes(frames[2], "big"), frames[3])
            if self._loop.time() > until_s:
                self._loop.call_soon(self._read_replay)
                return

    def _read_monitor(self) -> None:
        while not self._monitor.closed:
            try:
                seen = recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"]
            except zmq.Again:
                return
            if seen in _LIVE:
                self._set_timer(SETTLE_S)
            elif seen in _GONE:
                self._live = False
                self._close_replayer()
                self._set_timer(None)
                if not self._replay_address:  # whether it will be the same life of the engine can't be known
                    self._course = None
                    self._follower.began(restarted=True)
                self._settle("the connection to its events is lost")

    # -- live batches ---------------------------------------------------------------------------

    def _on_live(self, number: int, payload: bytes) -> None:
        if not self._live:
            self._keep(number, payload)
            return
        assert self._course is not None
        standing = self._course.standing(number, payload)
        if standing is Standing.NEXT:
            self._take(number, payload)
        elif standing is not Standing.REPEATED:
            self._repair(standing, number, payload)

    def _keep(self, number: int, payload: bytes) -> None:
        self._kept.append((number, payload))
        self._kept_bytes += len(payload)
        while len(self._kept) > KEPT_MAX or self._kept_bytes > KEPT_MAX_BYTES:
            self._kept_bytes -= len(self._kept.popleft()[1])

    def _take(self, number: int, payload: bytes) -> None:
        assert self._course is not None
        self.batches += 1
        try:
            batch = decode_batch(payload)
            why = self._follower.took(batch)
        except EventFormatError as error:
            why = str(error)
        if why:
            self._end(why)
            return
        self._course.take(number, payload)
        emptied = number == 0 or any(isinstance(event, AllBlocksCleared) for event in batch.events)
        if self._incomplete and emptied:  # what was before doesn't matter any more
            self._incomplete = ""
            self._settle("")

    def _repair(self, standing: Standing, number: int, payload: bytes) -> None:
        """A batch that doesn't follow the last one."""
        if self._replay_address:
            self._keep(number, payload)
            self._replay()
            return
        expected = self._course.next_number if self._course is not None else 0
        self._begin(number, restarted=standing is Standing.ANEW)
        if standing is Standing.GAP:
            self._incomplete = f"batches {expected} to {number - 1} were missed, and no replay socket is announced"
        elif number:
            self._incomplete = f"it was restarted, and its first {number} batches were missed"
        self._settle(self._incomplete)
        self._take(number, payload)

    def _begin(self, number: int, *, restarted: bool = False) -> None:
        self._course = Course(number)
        self._incomplete = ""
        self._follower.began(restarted=restarted)

    # -- replays --------------------------------------------------------------------------------

    def _synchronise(self) -> None:
        """Connected, or time for another try."""
        if self._replay_address:
            self._replay()
            return
        self._begin(0)
        # Whether it has published something before can't be known until it does again.
        self._incomplete = "no event was seen yet, and no replay socket is announced"
        self._settle(self._incomplete)
        self._go_live()

    def _replay(self) -> None:
        """Ask for what follows the last batch that was taken, and for that one to know the engine by it."""
        self._live = self._answered = self._holey = False
        self._asked_at = self.batches
        self.replays += 1
        self._close_replayer()
        first = max(0, self._course.next_number - 1) if self._course is not None else 0
        self._replayer = socket = self._context.socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_MAX_BYTES)
        socket.connect(self._replay_address)
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        self._listen(socket, self._read_replay)
        self._set_timer(REPLAY_S, self._on_no_replay)

    def _on_replayed(self, number: int, payload: bytes) -> None:
        self._set_timer(REPLAY_S, self._on_no_replay)
        first, self._answered = not self._answered, True
        if self._course is None:
            self._begin(number)
            if number:
                self._incomplete = f"its first {number} batches are no longer kept"
        assert self._course is not None
        standing = self._course.standing(number, payload)
        if standing is Standing.NEXT:
            self._take(number, payload)
        elif standing is Standing.GAP and first:
            lost = self._course.next_number
            self._begin(number)
            self._incomplete = f"batches {lost} to {number - 1} are lost, and no longer kept"
            self._take(number, payload)
        elif standing is Standing.GAP:
            self._holey = True  # the engine sends faster than its socket takes, and drops the rest
        elif standing is Standing.ANEW and first:
            self._restart()

    def _on_replay_end(self) -> None:
        if not self._answered and self._course is not None and self._course.next_number:
            self._restart()  # it knows no batch that it has sent before
            return
        if self._holey:
            if self.batches > self._asked_at:
                self._replay()
            else:
                self._drop("its replay leaves out batches")
            return
        self._close_replayer()
        self._set_timer(None)
        self._retry_s = RETRY_S
        if self._course is None:
            self._begin(0)
        self._settle(self._incomplete)
        self._go_live()

    def _go_live(self) -> None:
        self._live = True
        kept, self._kept, self._kept_bytes = self._kept, deque(), 0
        for number, payload in kept:
            if self.closed:
                return
            self._on_live(number, payload)

    def _restart(self) -> None:
        """The engine began anew: whatever it held is gone."""
        logger.info("the engine with events at %s was restarted", self._events)
        self._course = None
        self._follower.began(restarted=True)
        self._replay()

    def _on_no_replay(self) -> None:
        self._drop(f"its replay socket {self._replay_address} does not answer")

    def _drop(self, why: str) -> None:
        """What is known is worth nothing; begin again after a while."""
        self._close_replayer()
        self._course = None
        self._kept, self._kept_bytes = deque(), 0
        self._follower.began(restarted=False)
        self._settle(why)
        self._set_timer(self._retry_s)
        self._retry_s = min(2 * self._retry_s, RETRY_MAX_S)

    # -- ends -----------------------------------------------------------------------------------

    def _settle(self, why: str) -> None:
        if why != self._why:
            self._why = why
            self._follower.settled(why)

    def _end(self, why: str) -> None:
        self._follower.began(restarted=False)
        self._settle(why)
        self.close()

    def _close_replayer(self) -> None:
        if self._replayer is not None:
            self._loop.remove_reader(self._replayer.fileno())
            self._replayer.close(linger=0)
            self._replayer = None

    def _set_timer(self, after_s: float | None, then: Callable[[], None] | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if after_s is None else self._loop.call_later(after_s, then or self._synchronise)
