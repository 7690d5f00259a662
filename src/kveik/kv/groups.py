"""KV cache groups: which blocks a hit of a given length needs, for each kind of attention.

A *group* is a set of layers that share one block table (vLLM ``v1/kv_cache_interface.py``).
Granularities are in tokens. Block ``i`` of a group covers tokens ``[i*block, (i+1)*block)``, and
its key is the chained hash of the prompt up to its end.
"""

from dataclasses import dataclass
from enum import Enum

from kveik.errors import LayoutRefusedError


class GroupKind(Enum):
    """How a group's blocks depend on each other."""

    FULL = "full"  # every block from the start is needed
    SLIDING_WINDOW = "sliding_window"  # only blocks that the window of the next token can see
    STATE = "state"  # one block holds the state after all tokens up to its end (Mamba, GDN)


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One KV cache group. ``window_tokens`` counts the token itself, as in vLLM."""

    index: int
    kind: GroupKind
    block_tokens: int
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise LayoutRefusedError(f"group {self.index}: block of {self.block_tokens} tokens, expected at least 1")
        if (self.kind is GroupKind.SLIDING_WINDOW) != (self.window_tokens > 0):
            raise LayoutRefusedError(f"group {self.index}: {self.kind.value} with a window of {self.window_tokens}")

    def needed_blocks(self, hit_tokens: int) -> range:
        """Indices of the blocks that must be present for a hit of ``hit_tokens``.

        ``hit_tokens`` must be a multiple of ``block_tokens``. The next token, at position
        ``hit_tokens``, sees itself and the ``window_tokens - 1`` tokens before it.
        """
        end = hit_tokens // self.block_tokens
        if self.kind is GroupKind.FULL:
            return range(end)
        if self.kind is GroupKind.STATE:
            return range(max(0, end - 1), end)
        first_seen = max(0, hit_tokens - (self.window_tokens - 1))
        return range(min(end, first_seen // self.block_tokens), end)

    def describe(self) -> str:
        """Short text for namespaces and messages."""
        window = f", window {self.window_tokens}" if self.window_tokens else ""
        return f"{self.kind.value}, block {self.block_tokens}{window}"
