"""Requests to compare choices with: when each is due and what it asks. Pure, but for reading a trace.

A trace of real traffic has no contents, only which blocks of its prompts were the same. Here a block
becomes text that nobody else has, shorter by a factor, and time runs faster by another one, so
that an hour of a large fleet fits into a minute of simulated engines.
"""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kveik.bench.arrivals import spread_ms
from kveik.bench.mooncake_trace import BLOCK_TOKENS, TraceLine

#: Bytes of a token, for the simulated engines.
TOKEN_BYTES = 4
MODEL = "mock"


@dataclass(frozen=True)
class Planned:
    """One request: seconds from the start at which it is due, and its body."""

    due_s: float
    body: bytes


@dataclass(frozen=True)
class SharedPrefix:
    """llm-d's workload: tenants with a long context each, and some users of each who ask the same again.

    Lengths in tokens. ``first_per_s`` and ``last_per_s``: requests a second at the start and at the end,
    at random moments; between them the rate rises evenly.
    """

    tenants: int = 150
    users: int = 5
    context_tokens: int = 750
    question_tokens: int = 150
    answer_tokens: int = 32
    first_per_s: float = 3.0
    last_per_s: float = 80.0

    def distinct_tokens(self) -> int:
        """Prompt tokens that a fleet has to hold to compute nothing twice."""
        return self.tenants * (self.context_tokens + self.users * self.question_tokens)

    def schedule(self, seconds: float, seed: int) -> list[Planned]:
        """All requests that are due within ``seconds``."""
        dice = random.Random(seed)
        planned: list[Planned] = []
        due_s = 0.0
        while (due_s := due_s + dice.expovariate(self.per_s(due_s / seconds))) < seconds:
            planned.append(Planned(due_s, self._body(dice)))
        return planned

    def per_s(self, part: float) -> float:
        """The rate after that part of the time."""
        return self.first_per_s + (self.last_per_s - self.first_per_s) * part

    def _body(self, dice: random.Random) -> bytes:
        tenant, user = dice.randrange(self.tenants), dice.randrange(self.users)
        context = text_of(f"tenant {tenant}", self.context_tokens)
        question = text_of(f"tenant {tenant} user {user}", self.question_tokens)
        return chat([("system", context), ("user", question)], self.answer_tokens)


@dataclass(frozen=True)
class Scale:
    """How a trace is made smaller: ``lengths`` and ``requests`` divide tokens and count, it takes ``seconds``."""

    lengths: int = 8
    requests: int = 2000
    seconds: float = 60.0


def read_trace(path: Path, requests: int) -> list[TraceLine]:
    """The first requests of a Mooncake trace. Raises OSError, and msgspec.MsgspecError for what is none."""
    decode = msgspec.json.Decoder(TraceLine).decode
    with path.open("rb") as lines:
        return [decode(line) for line, _ in zip(lines, range(requests), strict=False)]


def schedule_of(trace: Sequence[TraceLine], scale: Scale) -> list[Planned]:
    """The requests of a trace, all within ``scale.seconds``."""
    due = spread_s([line.timestamp for line in trace], scale.seconds)
    return [Planned(due_s, _trace_body(line, scale.lengths)) for due_s, line in zip(due, trace, strict=True)]


def spread_s(timestamps: Sequence[int], seconds: float) -> list[float]:
    """Moments from 0 to ``seconds``. Requests with one timestamp are spread evenly until the next one.

    The timestamps of a trace are as coarse as three seconds: what came within that time did not come at once.
    """
    moments_ms, span_ms = spread_ms(timestamps, alone_ms=1)
    factor = seconds / max(1, span_ms)
    return [moment_ms * factor for moment_ms in moments_ms]


def _trace_body(line: TraceLine, lengths: int) -> bytes:
    block_tokens = BLOCK_TOKENS // lengths
    text = "".join(text_of(f"block {number}", block_tokens) for number in line.hash_ids)
    prompt = text[: max(1, line.input_length // lengths) * TOKEN_BYTES]
    return chat([("user", prompt)], max(1, line.output_length // lengths))


def text_of(name: str, tokens: int) -> str:
    """Text of so many tokens that follows from ``name`` and is like no other."""
    size = tokens * TOKEN_BYTES
    return hashlib.shake_128(name.encode()).hexdigest((size + 1) // 2)[:size]


def chat(messages: Sequence[tuple[str, str]], answer_tokens: int) -> bytes:
    """The body of a streamed chat request that asks for its usage too."""
    request = {
        "model": MODEL,
        "messages": [{"role": role, "content": content} for role, content in messages],
        "max_tokens": answer_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return json.dumps(request, separators=(",", ":")).encode()


def percentile(values: Sequence[float], part: float) -> float:
    """The least value that ``part`` of all values don't exceed. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]
