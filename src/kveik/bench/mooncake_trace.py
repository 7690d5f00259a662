"""Mooncake's request traces: read, turned into requests, and a made-up one to try things with.

A trace (https://github.com/kvcache-ai/Mooncake, FAST25-release/traces) is a file of JSON lines: ``timestamp`` in
milliseconds, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, one id for each 512 tokens of the
prompt. Equal ids at the start of two prompts mean equal tokens. Contents are not in it: they are made up here.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from kveik.bench.arrivals import spread_s
from kveik.bench.planned import Planned, TokenPool, Workload
from kveik.errors import ConfigError

#: Prompt tokens that share one id.
BLOCK_TOKENS = 512
#: Lengths and times that no trace has; a line with more is no line of a trace.
_TOKENS_MAX = 100_000_000
_STAMP_MAX_MS = 10**12

_Tokens = Annotated[int, Meta(ge=0, le=_TOKENS_MAX)]


class TraceLine(msgspec.Struct, frozen=True, kw_only=True):
    """One request of a trace; see the module."""

    timestamp: Annotated[int, Meta(ge=0, le=_STAMP_MAX_MS)]
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class TraceScale:
    """What is made of a trace: its first ``requests``, lengths divided by ``shorter``, time ``speed`` times as fast."""

    requests: int = 100
    shorter: int = 1
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.requests < 1:
            raise ConfigError(f"requests of trace is {self.requests}, expected at least 1")
        if not 1 <= self.shorter <= BLOCK_TOKENS:
            raise ConfigError(f"shorter of trace is {self.shorter}, expected 1 to {BLOCK_TOKENS}")
        if not 0 < self.speed <= 1e6:
            raise ConfigError(f"speed of trace is {self.speed:g}, expected more than 0 and at most 1000000")


def read_trace(lines: Iterable[bytes], name: str, requests: int) -> list[TraceLine]:
    """The first ``requests`` lines. Raises :class:`ConfigError` with the number of a line that is none of a trace.

    Nothing is skipped but empty lines: a trace without its broken lines would be another trace.
    """
    decode: Callable[[bytes], TraceLine] = msgspec.json.Decoder(TraceLine).decode
    trace: list[TraceLine] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            trace.append(decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"{name}: line {number} is none of a Mooncake trace: {error}; expected JSON with timestamp, "
                "input_length, output_length and hash_ids"
            ) from None
        if len(trace) > 1 and trace[-1].timestamp < trace[-2].timestamp:
            raise ConfigError(f"{name}: line {number} goes back in time, expected timestamps that grow")
        if len(trace) == requests:
            break
    if not trace:
        raise ConfigError(f"{name} has no requests")
    return trace


def trace_workload(trace: Sequence[TraceLine], scale: TraceScale, pool: TokenPool, name: str) -> Workload:
    """The requests of a trace, due at its moments."""
    used = trace[: scale.requests]
    due = spread_s([line.timestamp for line in used], scale.speed)
    blocks: dict[int, tuple[int, ...]] = {}
    requests = [
        Planned(_prompt(line, number, scale.shorter, pool, blocks), max(1, line.output_length // scale.shorter), moment)
        for number, (line, moment) in enumerate(zip(used, due, strict=True))
    ]
    parameters: dict[str, int | float | str] = {
        "file": name,
        "requests": len(requests),
        "shorter": scale.shorter,
        "speed": scale.speed,
    }
    return Workload("trace", requests, parameters, timed=True)


def _prompt(
    line: TraceLine, number: int, shorter: int, pool: TokenPool, blocks: dict[int, tuple[int, ...]]
) -> tuple[int, ...]:
    length = max(1, line.input_length // shorter)
    tokens: list[int] = []
    for block in line.hash_ids:
        if len(tokens) >= length:
            break
        if block not in blocks:
            blocks[block] = pool.draw(f"block {block}", BLOCK_TOKENS // shorter)
        tokens += blocks[block]
    missing = length - len(tokens)  # a trace may name fewer blocks than its prompts have
    return (*tokens[:length], *pool.draw(f"rest of {number}", max(0, missing)))


def sample_trace(requests: int, seed: int) -> list[TraceLine]:
    """A made-up trace with what real ones have: a shared start, chats that come back longer, and single prompts.

    The share of blocks that came before is about a half, as in Mooncake's conversation trace; nothing else is claimed.
    """
    dice = random.Random(f"trace/{seed}")
    next_block, stamp_ms, chats = 3, 0, [[0, 1, 2]]
    lines: list[TraceLine] = []
    for _ in range(requests):
        stamp_ms += round(dice.expovariate(1 / 300))
        grown = list(dice.choice(chats[-16:]) if dice.random() < 0.6 else chats[0])
        new_blocks = dice.randint(1, 8)
        grown += range(next_block, next_block + new_blocks)
        next_block += new_blocks
        chats.append(grown)
        length = len(grown) * BLOCK_TOKENS - dice.randrange(BLOCK_TOKENS)
        lines.append(
            TraceLine(
                timestamp=stamp_ms // 1000 * 1000,
                input_length=length,
                output_length=dice.randint(16, 512),
                hash_ids=tuple(grown),
            )
        )
    return lines


def trace_text(trace: Iterable[TraceLine]) -> bytes:
    """A trace as the file that it is read from."""
    return b"".join(msgspec.json.encode(line) + b"\n" for line in trace)
