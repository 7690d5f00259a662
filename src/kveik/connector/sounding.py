"""Have the agent bring up some blocks that nobody waits for, so that their tier is timed."""

from collections.abc import Mapping
from concurrent.futures import Future

from kveik.agent.client import AgentClient
from kveik.agent.protocol import Granted
from kveik.connector.plan import Found
from kveik.kv.keys import BlockKey

DEADLINE_S = 2.0


def sound(
    client: AgentClient,
    namespace: bytes,
    rank: int,
    found: Found,
    place: int,
    blocks: int,
    payload_bytes: Mapping[int, int],
) -> int:
    """Ask for up to so many blocks of one place, without waiting; they stay in the arena. How many were asked for."""
    chosen = [
        (part.group, part.hashes[index])
        for part, places in zip(found.parts, found.places, strict=True)
        for index, where in enumerate(places)
        if where == place
    ][:blocks]
    keys = [BlockKey.of(namespace, bytes(block_hash), group, rank) for group, block_hash in chosen]
    future = client.submit_read(keys, [payload_bytes[group] for group, _ in chosen], DEADLINE_S)
    future.add_done_callback(lambda done: _release(client, done))
    return len(keys)


def _release(client: AgentClient, read: "Future[Granted]") -> None:
    if not read.cancelled() and read.exception() is None and (lease := read.result().lease):
        client.release(lease)
