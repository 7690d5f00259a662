"""Asks an engine, by a request of its own, which hash it gives the first block of a prompt: its KV events tell.

The prompt stands under a salt that nobody else uses, by which its block is known among the engine's events, and which
is equal for all engines that are compared.
"""

import time

import zmq
from zmq.utils.monitor import recv_monitor_message

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.errors import DoctorError, EventFormatError
from kveik.kv.events import BlockStored, decode_batch, salt_of, short_hash

#: From the handshake until the publisher certainly knows the subscription.
_SETTLE_S = 0.05


def first_block_hash(
    client: EngineClient, model: str, events: str, prompt: tuple[int, ...], salt: str, deadline_s: float
) -> str:
    """The low 64 bits in hex. Raises :class:`DoctorError` if no event tells it, :class:`EngineError` for no answer.

    ``prompt`` must be longer than a block of the engine. The deadline is for connecting, and again for the event.
    """
    with zmq.Context() as context, context.socket(zmq.SUB) as subscriber:
        subscriber.setsockopt(zmq.LINGER, 0)
        subscriber.setsockopt(zmq.IPV6, 1)
        _connect(subscriber, events, deadline_s)
        client.complete(CompletionRequest(prompt, max_tokens=1, cache_salt=salt), model)
        until_s = time.monotonic() + deadline_s
        while (left_s := until_s - time.monotonic()) > 0:
            if subscriber.poll(int(left_s * 1000) + 1):
                found = _hash_in(subscriber.recv_multipart(), salt)
                if found:
                    return found
    raise DoctorError(f"no event at {events} told of the prompt within {deadline_s:g} s")


def _connect(subscriber: "zmq.Socket[bytes]", events: str, deadline_s: float) -> None:
    """Connect and subscribe, and know that it is so: what is published before is lost."""
    monitor = subscriber.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
    try:
        subscriber.subscribe(b"")
        try:
            subscriber.connect(events)
        except zmq.ZMQError as error:
            raise DoctorError(f"{events!r} is no address of KV events: {error}") from error
        if not monitor.poll(int(deadline_s * 1000)):
            raise DoctorError(f"nobody publishes KV events at {events}")
        recv_monitor_message(monitor)
        time.sleep(_SETTLE_S)
    finally:
        subscriber.disable_monitor()
        monitor.close(linger=0)


def _hash_in(frames: list[bytes], salt: str) -> str:
    """The hash of the first block under the salt, if a message has it."""
    try:
        batch = decode_batch(frames[-1])
    except EventFormatError:
        return ""
    for event in batch.events:
        if isinstance(event, BlockStored) and event.parent_block_hash is None and salt_of(event) == salt:
            return f"{short_hash(event.block_hashes[0]):016x}"
    return ""
