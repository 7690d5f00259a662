"""What a decision of the router costs: body to facts and keys, match, policy and learning, over eight engines.

    python -m benchmarks.router_choice [--rounds 40]

One core, one process; the best of several rounds, since everything else on the machine only adds.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle

from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.choice import Chooser
from kveik.router.engines import EngineView
from kveik.router.prompt import PromptReader

ENGINES = 8
BATCH = 256
GROUPS = 64
TARGET = b"/v1/chat/completions"
SIZES = (400, 4096, 16384)
ALPHABETS = {"ASCII": "abcdefghij klmnop", "Chinese": "的一是在不了有和人这中大为上个国我以要他时来用们"}


@dataclass(frozen=True)
class Load:
    """Bodies of one kind, in the order in which they come."""

    name: str
    bodies: list[bytes]


def body(text: str) -> bytes:
    """A chat request as the official client writes it."""
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": text}]
    request = {"messages": messages, "model": "mock", "max_tokens": 16, "stream": True}
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()


def loads(size: int) -> Iterator[Load]:
    """Known prefixes with a question each, the same in Chinese, and prompts that nobody has seen."""
    for language, alphabet in ALPHABETS.items():
        dice = random.Random(size)
        length = (size - 230) // len(alphabet[0].encode())
        texts = ["".join(dice.choices(alphabet, k=length)) for _ in range(GROUPS)]
        bodies = [body(f"{texts[n % GROUPS]} question {n} of group {n % GROUPS}") for n in range(4096)]
        yield Load(f"{GROUPS} groups, {language}", bodies)
    yield Load("all unique, ASCII", [body(f"{n} {text}") for n in range(192) for text in texts])


def engines() -> list[EngineView]:
    """Eight engines with some work each."""
    views = []
    for slot in range(ENGINES):
        said = EngineAnnouncement(
            url=f"http://10.0.0.{slot}:8000", engine_id=f"gpu-{slot}", models=("mock",), namespace="a"
        )
        views.append(EngineView(said, slot, in_flight=2, waiting_tokens=100 * slot, group="a"))
        views[-1].prefill.tokens_s = 9000.0
    return views


def decisions(load: Load) -> dict[str, Callable[[bytes], None]]:
    """The steps whose time is taken, each with those before it."""
    read = PromptReader()
    chooser = Chooser(RouterSettings())
    views = engines()
    counter = iter(range(1, 1 << 40))

    def facts(request: bytes) -> None:
        read(TARGET, request)

    def whole(request: bytes) -> None:
        told = read(TARGET, request)
        engine, _ = chooser.choose(told, views, 1.0)
        chooser.learn(told, engine, 1.0)
        engine.chosen = next(counter)

    for request in load.bodies[: 4 * GROUPS]:
        whole(request)
    return {"facts and keys": facts, "whole decision": whole}


def cost_us(step: Callable[[bytes], None], bodies: list[bytes], rounds: int) -> float:
    """Time a call, of the best round."""
    stream = cycle(bodies)
    best = float("inf")
    for _ in range(rounds):
        batch = [next(stream) for _ in range(BATCH)]
        started = time.perf_counter()
        for request in batch:
            step(request)
        best = min(best, (time.perf_counter() - started) / len(batch))
    return best * 1e6


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    print("| body, bytes | prompts | facts and keys, us | whole decision, us |\n|---|---|---|---|")
    for size in SIZES:
        for load in loads(size):
            steps = decisions(load)
            costs = " | ".join(f"{cost_us(step, load.bodies, rounds):.1f}" for step in steps.values())
            print(f"| {len(load.bodies[0]):,} | {load.name} | {costs} |")


if __name__ == "__main__":
    main()
