"""What became of one request's hit, stage by stage: a record that the engine's connector fills and the agent keeps.

Tokens are counted from the prompt's start, and each stage includes the engine's own hit. The agent adds what only it
knows: which engine told it, and what had become of the block that was missing.
"""

import msgspec

#: What had become of a missing block, as the agent remembers it; empty: nothing is known.
EVICTED, REFUSED, GIVEN_UP, DROPPED, CORRUPT, ELSEWHERE = (
    "evicted",
    "refused",
    "given_up",
    "dropped",
    "corrupt",
    "elsewhere",
)


class MissingBlock(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The block for want of which a hit was not longer.

    It holds the tokens from ``first_token`` to before ``end_token``. ``failed``: it is there, and a load of it failed
    within the last half minute. ``ranks``: those that lack it, where others have it.
    """

    group: int
    first_token: int
    end_token: int
    block_hash: bytes
    failed: bool = False
    ranks: list[int] = []


class RequestFunnel(msgspec.Struct, gc=False, omit_defaults=True):
    """One request of one engine. Counts of tokens include those before; -1 or empty: it did not come so far.

    ``request_id`` is the engine's, which contains the client's. ``began_s`` is wall time; ``asked_s`` is when the
    agent was asked, by the machine's monotonic clock. ``first_hash`` is the beginning of the first block's hash.

    ``hashed_tokens``: whole hash blocks. ``local_tokens``: the engine's own hit. ``limit_tokens``: the longest hit to
    hope for. ``lookup`` is the outcome as in the connector's metrics, or why there was none: ``short``, ``skipped``.
    ``asked_blocks`` and ``found_blocks`` (by tier) count blocks of all groups. ``known_tokens``: what is there without
    a gap, usable or not; ``usable_tokens``: what all groups can use, ``cut`` why not more, ``missing`` the block.

    ``allowed_tokens``: what was offered to vLLM; ``choice`` and ``choice_s`` (seconds to load, to the first token, and
    to it without loading) are why. ``load_tokens``: what vLLM took; ``used_tokens``: what was there when the load
    ended; ``failed_blocks`` by reason. ``computed_from``: where computing began. After a failed load vLLM may look up
    again; what was found, allowed and taken stays that of the first time. ``admissions`` counts how often it allocated
    memory after a lookup, ``admitted_local_tokens`` and ``admitted_load_tokens`` are what it counted as hits then;
    ``looked_up``: it has looked up since.

    ``saved_blocks`` and ``dropped_blocks`` (by reason) are this request's own new blocks, of all ranks; ``ended`` and
    ``saving``: whether it is over, and how many saves are under way. ``prints``: see :mod:`kveik.kv.prompt_print`.
    """

    request_id: str
    began_s: float
    prompt_tokens: int
    hash_tokens: int
    unit_tokens: int
    namespace: bytes = b""
    first_hash: bytes = b""
    prints: bytes = b""
    hashed_tokens: int = 0
    local_tokens: int = 0
    limit_tokens: int = 0
    lookup: str = ""
    asked_s: float = -1.0
    lookup_s: float = 0.0
    asked_blocks: int = 0
    found_blocks: dict[str, int] = {}
    known_tokens: int = -1
    usable_tokens: int = -1
    cut: str = ""
    missing: MissingBlock | None = None
    allowed_tokens: int = -1
    choice: str = ""
    choice_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    load_tokens: int = -1
    load_s: float = 0.0
    used_tokens: int = -1
    failed_blocks: dict[str, int] = {}
    computed_from: int = -1
    looked_up: bool = False
    admissions: int = 0
    admitted_local_tokens: int = 0
    admitted_load_tokens: int = 0
    saves: bool = True
    saving: int = 0
    saved_blocks: int = 0
    dropped_blocks: dict[str, int] = {}
    ended: bool = False
    engine: str = ""
    engine_pid: int = 0
    fate: str = ""
    fate_reason: str = ""
    fate_age_s: float = -1.0


class KnownNamespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace that an engine of this node announced: its model's name and all its facts."""

    digest: bytes
    label: str
    facts: dict[str, str]
