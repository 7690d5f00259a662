"""Load or compute: does an engine learn which is faster, and then do it?

What: seconds from sending the HTTP request to the first streamed token, one request at a time, of prompts whose blocks
lie in a folder tier only. The tier reads at a quarter of the rate at which this engine computes, and at four times it.
Where: two engines on the same core, one that always loads and one that goes by what it measured; they take turns. The
agent runs in this process, and its tier is slowed down by waiting.
Each round: in turn, a new prompt is computed cold and a stored one is asked of the engine that measures, four times;
then the other one is asked for it, too (of the slow tier in two rounds only). What the engine was asked for while it
still learned stands apart.
"""

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.options import Recorder, parser, rig_spec, say
from benchmarks.request import SAVE_S, ask, cold, unique_prompts
from benchmarks.result import BenchmarkError, Claim
from benchmarks.rig import Rig
from kveik.agent.node import NodeAgent
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.config import AgentSettings, StoreSettings
from kveik.engine.client import Completion
from kveik.engine.launch import Engine
from kveik.kv.frame import HEADER_BYTES
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, BlockStore, failed
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.tiered import LowerTiers
from kveik.store.wrapper import StoreWrapper
from kveik.verify.prompts import Prompt

COLD, LOADED, LEARNING, MEASURED = "computed", "always loaded", "while it learned", "as measured"
SLOW, FAST = "tier at a quarter", "tier at four times"
SHARES = {SLOW: 0.25, FAST: 4.0}
WITHIN = 1.05
#: Asked for while the engine learns, after each change of the tier; between two of them it may look at the tier again.
LEARNING_ASKS = 6
LEARNING_PAUSE_S = 6.0
#: Times that one prompt takes to be computed differ by half from one to the next on a shared machine.
REPEATS = 4
#: Rounds in which the slow tier is loaded from all the same: that takes its time, and always the same.
LOADED_ROUNDS = 2
GIB = 1 << 30


class SlowedStore(StoreWrapper):
    """``inner``, read no faster than ``bytes_per_s`` by all callers together; 0: as fast as it goes."""

    def __init__(self, inner: BlockStore, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(inner)
        self.bytes_per_s = 0.0
        self._clock = clock
        self._lock = threading.Lock()
        self._free_s = 0.0

    def lookup(self, keys: Sequence[BlockKey], deadline: Deadline) -> list[bool]:
        """As fast as the inner one."""
        return self._inner.lookup(keys, deadline)

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """Read, and wait until that many bytes may have come; at the deadline it has failed."""
        results = self._inner.get(keys, buffers, deadline)
        return [self._late(result, deadline) for result in results]

    def _late(self, result: BlockResult, deadline: Deadline) -> BlockResult:
        if not self.bytes_per_s or not result.bytes:
            return result
        with self._lock:
            now_s = self._clock.monotonic()
            self._free_s = max(self._free_s, now_s) + result.bytes / self.bytes_per_s
            wait_s = self._free_s - now_s
        time.sleep(min(wait_s, deadline.remaining_s))
        return failed("timeout", "slowed down") if deadline.passed else result

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        """As fast as the inner one."""
        return self._inner.put(keys, frames, deadline)

    def delete(self, keys: Sequence[BlockKey]) -> list[BlockResult]:
        """As the inner one."""
        return self._inner.delete(keys)


class SlowedNode(NodeAgent):
    """An agent whose folder tier can be slowed down."""

    slowed: SlowedStore

    def _open_tiers(self, settings: AgentSettings, stores: StoreSettings, clock: Clock) -> LowerTiers:
        folder = FilesystemStore(FilesystemOptions.from_settings(settings), name="filesystem", clock=clock)
        self.slowed = SlowedStore(folder)
        return LowerTiers([self.slowed], threads=settings.filesystem_threads or 4, queue_bytes=GIB // 4, clock=clock)

    def only_below(self) -> None:
        """Every block lies in the folder, and none in the arena."""
        if not self.lower.drain(60.0):
            raise BenchmarkError("the tier could not be written within a minute")
        self.arena.drop_namespace(b"")


def main() -> None:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=9)
    options.add_argument("--tokens", type=int, default=2048, help="prompt length")
    given = options.parse_args()
    recorder = Recorder("load-or-compute", f"Load or compute, {given.model.name}, {given.dtype}", given)
    folder = TemporaryDirectory(prefix="kveik-bench-")
    with recorder.writing(conditions(given), claims()), folder, running_node(Path(folder.name)) as node:
        measure(given, recorder, node)


@contextmanager
def running_node(folder: Path) -> Iterator[SlowedNode]:
    """The agent in this process."""
    settings = AgentSettings(
        socket=str(folder / "agent.sock"),
        arena=str(folder / "arena"),
        arena_bytes=GIB,
        filesystem=str(folder / "blocks"),
        tier_deadline_s=60.0,
    )
    node = SlowedNode(settings)
    node.start()
    try:
        yield node
    finally:
        node.close()


def measure(given: argparse.Namespace, recorder: Recorder, node: SlowedNode) -> None:
    """Both rates in turn, each as a share of what the engine computes just then."""
    with Rig(rig_spec(given), say) as rig:
        always, measured = (engine_of(rig, node, choice) for choice in ("always", "measured"))
        prompts = unique_prompts(measured, given.tokens, given.seed)
        stored = next(prompts)
        cold(measured, stored)
        size = stored_bytes(node)
        for group, share in SHARES.items():
            rate = size / median(cold(measured, next(prompts)).ttft_s for _ in range(3))
            say(f"{stored.tokens} tokens are {size / 1e6:.0f} MB of blocks and are computed at {rate / 1e6:.1f} MB/s")
            node.slowed.bytes_per_s = share * rate
            learning = [while_it_learns(measured, node, stored) for _ in range(LEARNING_ASKS)]
            for number in range(given.rounds):
                with recorder.round(group) as one:
                    for _ in range(REPEATS):
                        one.add(COLD, cold(measured, next(prompts)).ttft_s)
                        answer = from_below(measured, node, stored)
                        one.add(MEASURED, answer.ttft_s, answer.cached_tokens)
                    if group == FAST or number < LOADED_ROUNDS:
                        answer = from_below(always, node, stored)
                        one.add(LOADED, answer.ttft_s, answer.cached_tokens)
                    if number < len(learning):
                        one.add(LEARNING, learning[number].ttft_s, learning[number].cached_tokens)


def engine_of(rig: Rig, node: SlowedNode, choice: str) -> Engine:
    """An engine that chooses so."""
    connector: dict[str, str | float] = {"socket": node.socket_path, "lookup_deadline_s": 2.0, "load_choice": choice}
    if choice == "always":  # by default it would give up when computing was faster
        connector["load_deadline_s"] = 120.0
    return rig.engine(f"engine-{choice}", connector)


def while_it_learns(engine: Engine, node: SlowedNode, prompt: Prompt) -> Completion:
    """One answer, and time for another look at the tier."""
    answer = from_below(engine, node, prompt)
    time.sleep(LEARNING_PAUSE_S)
    return answer


def stored_bytes(node: SlowedNode) -> int:
    """Bytes of all blocks in the arena, frames included."""
    stats = node.arena.stats()
    return stats.payload_bytes + HEADER_BYTES * stats.blocks


def from_below(engine: Engine, node: SlowedNode, prompt: Prompt) -> Completion:
    """The answer to a prompt whose blocks lie in the folder only."""
    engine.client.reset_local_cache()
    node.only_below()
    answer = ask(engine, prompt)
    time.sleep(SAVE_S)
    return answer


def claims() -> list[Claim]:
    """What must hold once it has learned."""
    return [
        Claim(group=SLOW, first=MEASURED, second=COLD, direction="at most", bound=WITHIN),
        Claim(group=FAST, first=MEASURED, second=LOADED, direction="at most", bound=WITHIN),
        Claim(group=FAST, first=MEASURED, second=COLD, direction="at most", bound=WITHIN),
    ]


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "seconds from sending the HTTP request to the first streamed token, one request at a time",
        "model": f"{given.model.name}, {given.dtype}, prompts of {given.tokens} tokens",
        "engines": f"two, both computing on core {given.core}, eager; they take turns",
        "cache": "blocks in a folder only, whose reads wait until its rate allows them",
        "rounds": f"{given.rounds} for each rate, after {LEARNING_ASKS} asks in which it learns",
    }


if __name__ == "__main__":
    main()
