"""KV events over ZMQ in vLLM's format, so a router can follow what a simulated engine holds.

A batch is three frames: topic, sequence number (8 bytes, big endian, from 0), and msgpack of
``[time, events, data parallel rank]``. An event is a map whose ``type`` names it. Who asks the
replay socket with a number gets all later batches that are still kept, then a batch numbered -1.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from kveik.simulate.block_hashes import short_hash
from kveik.simulate.prefix_cache import CacheChange, RemovedBlocks, StoredBlocks

logger = logging.getLogger("kveik.simulate")

#: Batches that are kept for replay, as in vLLM.
KEPT_BATCHES = 10_000
#: Messages that may wait for a slow subscriber, as in vLLM; later ones are lost to it.
_WAITING_MESSAGES = 100_000
_END = (-1).to_bytes(8, "big", signed=True)


class EventEncoder:
    """Changes of the cache as vLLM's events; hashes as 64-bit numbers, or whole (``short`` false)."""

    def __init__(self, block_tokens: int, *, short: bool = True) -> None:
        self._block_tokens = block_tokens
        self._short = short

    def event(self, change: CacheChange) -> dict[str, Any]:
        """One event."""
        if isinstance(change, StoredBlocks):
            return {
                "type": "BlockStored",
                "block_hashes": self._hashes(change.hashes),
                "parent_block_hash": None if change.parent is None else self._hashes([change.parent])[0],
                "token_ids": list(change.tokens),
                "block_size": self._block_tokens,
                "lora_id": None,
                "medium": "GPU",
                "lora_name": None,
                "extra_keys": [
                    [change.salt] if change.salt and not number else None for number in range(len(change.hashes))
                ],
                "group_idx": 0,
            }
        if isinstance(change, RemovedBlocks):
            hashes = self._hashes(change.hashes)
            return {"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU", "group_idx": 0}
        return {"type": "AllBlocksCleared"}

    def _hashes(self, hashes: Sequence[bytes]) -> list[int | bytes]:
        return [short_hash(one) for one in hashes] if self._short else list(hashes)


class EventPublisher:
    """A PUB socket at ``endpoint``, and a ROUTER socket at ``replay`` unless that is empty. Both bind.

    Changes within one turn of the event loop make one batch. Raises :class:`OSError` where an
    endpoint cannot be had.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, encoder: EventEncoder, endpoint: str, replay: str = "", topic: str = ""
    ) -> None:
        import zmq  # noqa: PLC0415 (an extra that only engines with events need)

        self._zmq = zmq
        self._loop = loop
        self._encoder = encoder
        self._topic = topic.encode()
        self._pending: list[dict[str, Any]] = []
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=KEPT_BATCHES)
        self.next_sequence = 0
        self._context = zmq.Context()
        self._publisher = self._bound(zmq.PUB, endpoint)
        self.endpoint = self._publisher.getsockopt_string(zmq.LAST_ENDPOINT)
        self._replayer = self._bound(zmq.ROUTER, replay) if replay else None
        self.replay = ""
        if self._replayer is not None:
            self.replay = self._replayer.getsockopt_string(zmq.LAST_ENDPOINT)
            loop.add_reader(self._replayer.getsockopt(zmq.FD), self._serve_replays)

    def __call__(self, change: CacheChange) -> None:
        """Publish a change with the others of this turn of the loop."""
        if not self._pending:
            self._loop.call_soon(self._flush)
        self._pending.append(self._encoder.event(change))

    def config(self) -> dict[str, Any]:
        """How to follow it: what vLLM tells of its publisher at ``/kv_event_sources``."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay or None,
            "buffer_steps": KEPT_BATCHES,
            "hwm": _WAITING_MESSAGES,
            "topic": self._topic.decode(),
        }

    def close(self) -> None:
        """Publish what is pending and give the sockets back."""
        if self._publisher.closed:
            return
        self._flush()
        if self._replayer is not None:
            self._loop.remove_reader(self._replayer.getsockopt(self._zmq.FD))
            self._replayer.close(linger=0)
        self._publisher.close(linger=200)  # milliseconds
        self._context.term()

    def drop_next(self, batches: int) -> None:
        """Skip sequence numbers, as if batches had been lost on their way; they can still be replayed."""
        for _ in range(batches):
            self._keep(msgspec.msgpack.encode([time.time(), [], 0]))

    def _bound(self, kind: int, endpoint: str) -> Any:
        socket = self._context.socket(kind)
        socket.set_hwm(_WAITING_MESSAGES)
        try:
            socket.bind(endpoint)
        except self._zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"{endpoint}: {error.strerror}") from error
        return socket

    def _flush(self) -> None:
        if not self._pending or self._publisher.closed:
            return
        events, self._pending = self._pending, []
        payload = msgspec.msgpack.encode([time.time(), events, 0])
        self._publisher.send_multipart((self._topic, self._keep(payload), payload))

    def _keep(self, payload: bytes) -> bytes:
        number = self.next_sequence.to_bytes(8, "big")
        self.next_sequence += 1
        self._kept.append((number, payload))
        return number

    def _serve_replays(self) -> None:
        """Answer all requests that are there: the socket's descriptor tells of new ones only once."""
        socket = self._replayer
        if socket is None:
            return
        while True:
            try:
                frames = socket.recv_multipart(flags=self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            if len(frames) != 3 or len(frames[2]) != 8:
                logger.warning("simulated engine: a replay request of %d frames is none", len(frames))
                continue
            client, _, start = frames
            for number, payload in self._kept:
                if number >= start:
                    socket.send_multipart((client, b"", self._topic, number, payload))
            socket.send_multipart((client, b"", b"", _END, b""))
