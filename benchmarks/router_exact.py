"""What exact answers of the router cost: rendering, keys, look-ups and events, and memory for each block.

    python -m benchmarks.router_exact [--model-folder FOLDER] [--rounds 40]

One core, one process; the best of several rounds, since everything else on the machine only adds. With a
model's folder (tokenizer and chat template) rendering is measured, too: for conversations of which all but
the last message was seen before, and with everything seen before.
"""

import argparse
import json
import random
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count as counting
from pathlib import Path

from kveik.kv.events import BlockStored, EventBatch
from kveik.router.exact_index import ExactIndex
from kveik.router.facts import TokenPrompt
from kveik.router.model_folder import Rendering
from kveik.router.tokenizer import TokenizerFiles

BLOCK_TOKENS = 16
ENGINES = 8
PROMPT_TOKENS = (100, 1000, 4000, 16000)
BLOCKS = 200_000
TARGET = b"/v1/chat/completions"


def best_us(work: Callable[[], object], rounds: int, batch: int = 50) -> float:
    """Microseconds of one call in the best round."""
    found = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(batch):
            work()
        found = min(found, (time.perf_counter() - began) / batch)
    return found * 1e6


def stored(dice: random.Random, tokens: list[int]) -> EventBatch:
    """An engine tells that it holds this prompt."""
    count = len(tokens) // BLOCK_TOKENS
    names: list[int | bytes] = [dice.getrandbits(64) for _ in range(count)]
    return EventBatch(0.0, [BlockStored(names, None, tokens[: count * BLOCK_TOKENS], BLOCK_TOKENS)], 0)


def measure_index(rounds: int) -> None:
    """Keys and look-ups of prompts that one of eight engines holds, and the events that say so."""
    dice = random.Random(1)
    index = ExactIndex(1 << 22)
    for slot in range(ENGINES):
        index.open(slot, BLOCK_TOKENS)
    print(f"{'prompt tokens':>13} {'keys us':>8} {'match us':>9} {'event us':>9} {'us a block':>10}")
    for count in PROMPT_TOKENS:
        tokens = [dice.randrange(100_000) for _ in range(count)]
        index.apply(1, stored(dice, tokens))
        packed = array("I", tokens).tobytes()
        match_us = best_us(partial(index.match, TokenPrompt(packed), 0.0), rounds)
        with_keys_us = best_us(partial(match_anew, index, packed), rounds)
        taken = iter([stored(dice, [dice.randrange(100_000) for _ in range(count)]) for _ in range(rounds)])
        event_us = best_us(partial(take_next, index, taken), rounds, 1)
        blocks = count // BLOCK_TOKENS
        print(f"{count:13} {with_keys_us - match_us:8.1f} {match_us:9.1f} {event_us:9.1f} {event_us / blocks:10.2f}")


def match_anew(index: ExactIndex, packed: bytes) -> None:
    """A prompt whose keys are not known yet."""
    index.match(TokenPrompt(packed), 0.0)


def take_next(index: ExactIndex, batches: Iterator[EventBatch]) -> None:
    """The next event of an engine."""
    index.apply(2, next(batches))


def measure_memory() -> None:
    """Bytes for each block, of one engine and of eight that hold the same."""
    for engines in (1, ENGINES):
        dice = random.Random(2)
        index = ExactIndex(1 << 24)
        for slot in range(engines):
            index.open(slot, BLOCK_TOKENS)
            index.reserve(slot, BLOCKS)  # as the router does when an engine's metrics tell its size
        longest_s = 0.0
        while index.size < BLOCKS:
            batch = stored(dice, [dice.randrange(100_000) for _ in range(100 * BLOCK_TOKENS)])
            for slot in range(engines):
                began = time.perf_counter()
                index.apply(slot, batch)
                longest_s = max(longest_s, time.perf_counter() - began)
        each = index.memory_bytes / index.size / engines
        print(f"{BLOCKS} blocks in {engines} engine(s): {each:.0f} bytes a block and engine")
        print(f"    the longest event, of 100 blocks: {longest_s * 1e3:.2f} ms")


def measure_rendering(folder: Path, rounds: int) -> None:
    """Conversations of growing length."""
    rendering = Rendering(folder, TokenizerFiles())
    print(f"{'body bytes':>10} {'tokens':>7} {'render us':>10} {'new message us':>15}")
    for turns in (1, 4, 12, 40):
        talk = []
        for turn in range(turns):
            talk += [
                {"role": "user", "content": f"Question {turn}: " + "why is the sky blue and the sea deep? " * 12},
                {"role": "assistant", "content": f"Answer {turn}: " + "of reasons that are known to all. " * 12},
            ]

        seen = body(talk, -1)
        tokens = len(rendering.prompt(TARGET, seen))
        seen_us = best_us(partial(rendering.prompt, TARGET, seen), rounds, 20)
        fresh_us = best_us(partial(rendered_anew, rendering, talk, counting()), rounds, 5)
        print(f"{len(seen):10} {tokens:7} {seen_us:10.1f} {fresh_us - seen_us:15.1f}")


def body(talk: list[dict[str, str]], number: int) -> bytes:
    """A conversation with one more question."""
    return json.dumps({"messages": [*talk, {"role": "user", "content": f"And why is that {number}?"}]}).encode()


def rendered_anew(rendering: Rendering, talk: list[dict[str, str]], numbers: Iterator[int]) -> None:
    """A conversation with a question that was not seen before; writing the body counts, too."""
    rendering.prompt(TARGET, body(talk, next(numbers)))


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="What exact answers of the router cost.")
    parser.add_argument("--model-folder", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=40)
    given = parser.parse_args()
    measure_index(given.rounds)
    measure_memory()
    if given.model_folder is not None:
        measure_rendering(given.model_folder, given.rounds)


if __name__ == "__main__":
    main()
