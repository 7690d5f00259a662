"""The small block that each agent keeps in a shared tier, to show that it is there: its name, and what it says. Pure.

Names follow from fleet, node and a number, so that every node can ask for every other node's block without being told
anything. The numbers go round: a node needs no clock to find the newest, and a killed agent leaves few blocks behind.
"""

import hashlib
import json
from dataclasses import dataclass

import msgspec

from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey
from kveik.store.canary import PROBE_NAMESPACE

#: How many names each node has. Its blocks take them in turn.
NAMES = 16
PAYLOAD_BYTES = 1024
TEXT_MAX = 128


class Entry(msgspec.Struct, frozen=True):
    """What one block says of its writer.

    ``nonce`` is of the agent's life, ``number`` counts its blocks, ``at_s`` is its wall time, ``renew_s`` says how soon
    it means to write the next one. ``fleet``, ``node`` and ``host`` are for people.
    """

    fleet: str
    node: str
    host: str
    nonce: str
    number: int
    at_s: float
    renew_s: float


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is called: all ``nodes`` of ``fleet`` that have an agent, ``node`` being this one."""

    fleet: str
    node: str
    nodes: tuple[str, ...]

    @classmethod
    def of(cls, fleet: str, node: str, nodes: str) -> "Roster":
        """From names with commas between them; ``node`` is one of them, whether it stands there or not."""
        named = [name.strip() for name in nodes.split(",") if name.strip()]
        return cls(fleet, node, tuple(dict.fromkeys([*named, node])))

    @property
    def others(self) -> tuple[str, ...]:
        """All but this node."""
        return tuple(name for name in self.nodes if name != self.node)

    def key(self, node: str, number: int) -> BlockKey:
        """Under which key a node's block of that number lies."""
        name = json.dumps(["roll call", self.fleet, node, number % NAMES]).encode()
        return BlockKey.of(PROBE_NAMESPACE, hashlib.sha256(name).digest())

    def entry(self, host: str, nonce: str, number: int, at_s: float, renew_s: float) -> Entry:
        """What this node's block of that number says."""
        return Entry(
            self.fleet[:TEXT_MAX], self.node[:TEXT_MAX], host[:TEXT_MAX], nonce, number, round(at_s, 3), renew_s
        )


def sealed(key: BlockKey, entry: Entry) -> memoryview:
    """The frame of a block that says this, in memory of its own."""
    buffer = empty()
    text = msgspec.json.encode(entry)
    buffer[frame.HEADER_BYTES : frame.HEADER_BYTES + len(text)] = text
    frame.seal(buffer, key, PAYLOAD_BYTES, entry.at_s)
    return buffer


def empty() -> memoryview:
    """Memory that such a frame fits into."""
    return memoryview(bytearray(frame.frame_bytes(PAYLOAD_BYTES)))


def read(buffer: memoryview, key: BlockKey) -> Entry | str:
    """What the frame in ``buffer`` says, or why it is not what its writer put there."""
    try:
        frame.verify(buffer, key, PAYLOAD_BYTES)
    except FrameError as error:
        return str(error)
    text = bytes(buffer[frame.HEADER_BYTES : frame.frame_bytes(PAYLOAD_BYTES)]).rstrip(b"\0")
    try:
        entry = msgspec.json.decode(text, type=Entry)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return f"it is of another version, or somebody else's: {error}"
    return entry
