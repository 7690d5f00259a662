"""Known blocks of Kveik's own that probes put into a tier: which keys, which bytes. Pure.

A canary's bytes follow from its key, so whoever reads one knows what it has to be.
"""

import hashlib
from dataclasses import dataclass

from kveik.errors import FrameError
from kveik.kv import frame
from kveik.kv.keys import BlockKey

#: The namespace of all canaries of all agents; no model can have it, a digest of facts is never this text.
PROBE_NAMESPACE = b"kveik probe tier"
SMALL_BYTES = 4096
LARGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Canary:
    """One canary: ``payload_bytes`` known bytes under a key that no other agent and no other round has."""

    key: BlockKey
    payload_bytes: int

    @classmethod
    def of(cls, owner: str, number: int, payload_bytes: int = SMALL_BYTES) -> "Canary":
        """The canary number ``number`` of ``owner``, the agent and tier that put it there."""
        name = f"{owner}/{number}/{payload_bytes}".encode()
        return cls(BlockKey.of(PROBE_NAMESPACE, hashlib.sha256(name).digest()), payload_bytes)

    @property
    def payload(self) -> bytes:
        """The bytes that it must have."""
        return hashlib.shake_128(self.key).digest(self.payload_bytes)

    def sealed(self, written_at_s: float) -> memoryview:
        """Its frame, in memory of its own."""
        buffer = memoryview(bytearray(frame.frame_bytes(self.payload_bytes)))
        buffer[frame.HEADER_BYTES :] = self.payload
        frame.seal(buffer, self.key, self.payload_bytes, written_at_s)
        return buffer

    def buffer(self) -> memoryview:
        """Empty memory into which its frame fits."""
        return memoryview(bytearray(frame.frame_bytes(self.payload_bytes)))

    def is_in(self, buffer: memoryview) -> bool:
        """Whether ``buffer`` holds it, byte for byte; the store's own word is not taken for it."""
        try:
            frame.verify(buffer, self.key, self.payload_bytes)
        except FrameError:
            return False
        return bytes(buffer[frame.HEADER_BYTES : frame.frame_bytes(self.payload_bytes)]) == self.payload
