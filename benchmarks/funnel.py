"""What keeping a record of each request costs: ``python -m benchmarks.funnel``.

Microseconds of processor time on the engine's scheduling thread, with and without records; time and bytes in the
background by length of the prompt. One thread, the best of several runs; on a busy machine caches are shared, and the
numbers higher.
"""

import time
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from kveik.agent.funnel import RequestFunnel
from kveik.agent.protocol import Located
from kveik.clock import SYSTEM_CLOCK
from kveik.connector import funnel, plan
from kveik.connector.funnel import Funnels
from kveik.connector.load_choice import Choice
from kveik.connector.plan import Shape
from kveik.kv.groups import GroupKind, GroupSpec
from kveik.kv.hit_length import HitLength
from kveik.kv.prompt_print import prompt_print

SHAPE = Shape((GroupSpec(0, GroupKind.FULL, 16),), 16)
HASHES = [index.to_bytes(32, "big") for index in range(500)]
PROMPT = list(range(8000))
NAME = "cmpl-8f3c0a7be2d94c51-0-0123abcd"
REQUESTS, RUNS = 500, 9
NONE_FAILED: frozenset[tuple[int, bytes]] = frozenset()


def life(funnels: Funnels, request: Any, found: plan.Found, hit: HitLength) -> RequestFunnel | None:
    """All that the scheduler's side notes of one request of 8000 tokens, half of which is there."""
    record = funnels.begin(request)
    funnel.note_limits(record, b"n" * 16, HASHES, 0, 8000)
    funnel.note_lookup(record, "hit", 1.0, 0.001)
    funnel.note_found(record, SHAPE, found, hit, NONE_FAILED, ["", "arena"].__getitem__)
    funnel.note_choice(record, Choice(4000, "all", 0.1, 0.2, 0.3))
    funnel.note_taken(record, 0, 4000)
    funnels.changed(record)
    funnel.note_loaded(record, 4000, 0.1, {})
    funnels.changed(record)
    funnel.note_saving(record)
    funnel.note_saved(record, 250, {})
    funnels.changed(record)
    return record


def best_us(action: Callable[[], object], times: int) -> float:
    """Microseconds of one ``action`` in the best of several runs."""
    runs = []
    for _ in range(RUNS):
        began_s = time.thread_time()
        for _ in range(times):
            action()
        runs.append((time.thread_time() - began_s) / times)
    return min(runs) * 1e6


def in_background(tokens: int, found: plan.Found, hit: HitLength) -> str:
    """What digesting and sending a prompt of so many tokens costs."""
    prompt = list(range(tokens))
    digesting_us = best_us(lambda: prompt_print(prompt), 3)
    kept = Funnels(1, SHAPE, SYSTEM_CLOCK)
    life(kept, SimpleNamespace(request_id=NAME, num_prompt_tokens=tokens, prompt_token_ids=prompt), found, hit)
    (record,) = kept.take()
    sent = len(msgspec.msgpack.encode(record))
    return (
        f"{tokens} tokens: digested in {digesting_us:.0f} us; {sent} bytes sent, {len(record.prints)} of them digests"
    )


def main() -> None:
    """Measure and print."""
    parts = plan.lookup_parts(SHAPE, HASHES, 0, 8000)
    found = plan.found_of(0, parts, Located(1, [b"\1" * 250 + bytes(250)]))
    hit = plan.usable(SHAPE, found, 8000, NONE_FAILED)
    request = SimpleNamespace(request_id=NAME, num_prompt_tokens=len(PROMPT), prompt_token_ids=PROMPT)
    on, off = Funnels(512, SHAPE, SYSTEM_CLOCK), Funnels(0, SHAPE, SYSTEM_CLOCK)
    with_us = best_us(lambda: life(on, request, found, hit), REQUESTS)
    without_us = best_us(lambda: life(off, request, found, hit), REQUESTS)
    print(f"scheduling thread: {with_us:.1f} us a request, {without_us:.1f} us without records")
    for tokens in (1000, 8000, 100_000):
        print(in_background(tokens, found, hit))
    tracemalloc.start()
    many = Funnels(REQUESTS, SHAPE, SYSTEM_CLOCK)
    for _ in range(REQUESTS):
        life(many, request, found, hit)
    print(f"kept, without digests: {tracemalloc.get_traced_memory()[0] / REQUESTS:.0f} bytes a request")


if __name__ == "__main__":
    main()
