"""How fast a prefix comes out of each tier into the arena, beside what the store's own client reaches.

What: bytes a second of all blocks of a prefix, from asking the agent for them until they lie in its arena, verified.
The bytes are frames of the size that the model's blocks have, 128 tokens a block.
Where: an agent in this process with that one tier and its default settings; the store's own client in another process
reads the same blocks. Nobody computes meanwhile, and both take turns; who is first changes with each round.
"""

import argparse
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.machine import ROOT
from benchmarks.options import Recorder, recorder_options, say
from benchmarks.own_clients import OwnClient
from benchmarks.real_stores import NAMES, OWN_WORDS, RealStore, running_store
from benchmarks.result import BenchmarkError, Claim, Round
from kveik.agent.client import AgentClient
from kveik.agent.node import NodeAgent
from kveik.agent.protocol import ARENA
from kveik.clock import Deadline
from kveik.config import AgentSettings, load
from kveik.errors import ConfigError
from kveik.kv.frame import frame_bytes, payload_digest
from kveik.kv.keys import NAMESPACE_BYTES, BlockKey
from kveik.verify.testbed import kv_bytes_per_token, read_model_config

TIER, OWN = "the agent's tier", "the store's own client"
COLD, WARM = "filesystem, page cache cold", "filesystem, page cache warm"
SHARE = 0.7
BLOCK_TOKENS = 128
PATIENCE_S = 120.0
GIB = 1 << 30


@dataclass(frozen=True)
class Prefix:
    """The blocks of one prefix."""

    keys: list[BlockKey]
    payload_bytes: int

    @classmethod
    def of(cls, model: Path, dtype: str, tokens: int) -> "Prefix":
        """As large as this model's."""
        size = BLOCK_TOKENS * kv_bytes_per_token(read_model_config(model), dtype)
        keys = [BlockKey.of(b"b" * NAMESPACE_BYTES, os.urandom(32)) for _ in range(tokens // BLOCK_TOKENS)]
        return cls(keys, size)

    @property
    def frame_bytes(self) -> int:
        """Bytes of all blocks as they are stored."""
        return len(self.keys) * frame_bytes(self.payload_bytes)


class TierPath:
    """An agent with one tier, which holds the prefix."""

    def __init__(self, node: NodeAgent, client: AgentClient, prefix: Prefix) -> None:
        self._node = node
        self._client = client
        self._prefix = prefix

    def store(self) -> None:
        """Write all blocks, wait until they are in the tier, and forget them in the arena."""
        for key in self._prefix.keys:
            reserved = self._client.reserve([key], self._prefix.payload_bytes, Deadline.after(PATIENCE_S))
            payload = self._client.payload(reserved.grants[0], self._prefix.payload_bytes)
            payload[:] = os.urandom(self._prefix.payload_bytes)
            self._client.commit(reserved.lease, [(0, payload_digest(payload))], Deadline.after(PATIENCE_S))
            self._node.lower.drain(PATIENCE_S)
        self.forget()

    def forget(self) -> None:
        """Let the tier alone have the blocks, as soon as nobody reads them any more."""
        until_s = time.monotonic() + PATIENCE_S
        while max(self._node.arena.locate(self._prefix.keys)) >= 0:
            self._node.arena.drop(self._prefix.keys)
            if time.monotonic() > until_s:
                raise BenchmarkError("blocks stay in the arena: somebody still reads them")
            time.sleep(0.001)

    def read(self) -> float:
        """Seconds until all blocks lie in the arena. Raises BenchmarkError if some did not come."""
        start_s = time.perf_counter()
        granted = self._client.read(self._prefix.keys, self._prefix.payload_bytes, Deadline.after(PATIENCE_S))
        taken_s = time.perf_counter() - start_s
        lost = [grant.reason or grant.status for grant in granted.grants if grant.place <= ARENA]
        if granted.lease:
            self._client.release(granted.lease)
        if lost:
            raise BenchmarkError(f"{len(lost)} of {len(self._prefix.keys)} blocks did not come: {lost[0]}")
        self.forget()
        return taken_s


def main() -> None:
    """Measure, print and write down."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--engine-python", default=str(ROOT / ".venv-vllm/bin/python"), help="whose versions are told")
    options.add_argument("--model", type=Path, default=ROOT / ".kveik/models/smollm2-135m-instruct", help="its KV size")
    options.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    options.add_argument("--tokens", type=int, default=7000, help="length of the prefix")
    options.add_argument("--stores", nargs="+", default=list(NAMES), choices=NAMES)
    options.add_argument("--folder", type=Path, help="where the filesystem tier lies; default: temporary files")
    recorder_options(options, rounds=9)
    given = options.parse_args()
    prefix = Prefix.of(given.model, given.dtype, given.tokens)
    recorder = Recorder("store-tiers", f"A prefix of {given.tokens} tokens out of each tier into the arena", given)
    with recorder.writing(conditions(given, prefix), claims(given.stores)):
        for name in given.stores:
            try:
                measure_store(given, recorder, name, prefix)
            except ConfigError as error:
                say(f"{name} is left out: {error}")


def measure_store(given: argparse.Namespace, recorder: Recorder, name: str, prefix: Prefix) -> None:
    """All rounds of one store."""
    with TemporaryDirectory(prefix="kvb-", dir=given.folder) as folder, ExitStack() as stack:
        store = stack.enter_context(running_store(name, Path(folder) / "s", GIB, say))
        own = stack.enter_context(OwnClient(store.own, store.options, prefix.frame_bytes))
        tier = stack.enter_context(running_tier(Path(folder), store, prefix))
        tier.store()
        names = store.own_names(prefix.keys)
        for way in (tier.read, lambda: own.read(names)):
            way()  # threads, processes and connections are there from now on
        for number in range(given.rounds):
            for group in groups(name):
                with recorder.round(group, unit="GB/s") as one:
                    measure_round(one, tier, own, names, prefix, cold=group == COLD, own_first=number % 2 == 1)


def measure_round(
    one: Round, tier: TierPath, own: OwnClient, names: list[str], prefix: Prefix, *, cold: bool, own_first: bool
) -> None:
    """Both sides in turn, once each."""
    ways = [(TIER, tier.read), (OWN, lambda: own.read(names))]
    for label, way in ways[::-1] if own_first else ways:
        if cold:
            drop_page_cache(names)
        one.add(label, prefix.frame_bytes / way() / 1e9)


def drop_page_cache(files: Sequence[str]) -> None:
    """Let the next read of these files come from their disk."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # pages that are not written yet would stay
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextmanager
def running_tier(folder: Path, store: RealStore, prefix: Prefix) -> Iterator[TierPath]:
    """The agent, with all of its arena faulted in and its tier open."""
    arena = Path(f"/dev/shm/kveik-benchmark-{os.getpid()}.arena")
    given = {"socket": str(folder / "agent.sock"), "arena": str(arena), "arena_bytes": GIB, "tier_deadline_s": 20.0}
    settings = load(AgentSettings, given={**given, **store.agent})
    warm = threading.Event()
    node = NodeAgent(
        settings, store.stores, listener=lambda record: warm.set() if "faulted in" in str(record) else None
    )
    try:
        node.start()
        client = AgentClient.connect(settings.socket, role="benchmark", prefault=False)
        warm.wait(PATIENCE_S)
        until_s = time.monotonic() + PATIENCE_S
        while node.lower.stats()[0]["state"] != "ready":
            if time.monotonic() > until_s:
                raise BenchmarkError(f"the {store.name} tier does not open: {node.lower.stats()[0]}")
            time.sleep(0.05)
        yield TierPath(node, client, prefix)
        client.close()
    finally:
        node.close()
        arena.unlink(missing_ok=True)


def groups(store: str) -> list[str]:
    """What is measured of a store."""
    return [WARM, COLD] if store == "filesystem" else [store]


def claims(stores: Sequence[str]) -> list[Claim]:
    """Most of what the store's own client reaches."""
    return [
        Claim(group=group, first=TIER, second=OWN, direction="at least", bound=SHARE)
        for store in stores
        for group in groups(store)
    ]


def conditions(given: argparse.Namespace, prefix: Prefix) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "bytes of all frames of the prefix, by the seconds from asking for them until all are there",
        "prefix": f"{len(prefix.keys)} blocks of {BLOCK_TOKENS} tokens, {prefix.payload_bytes / 1e6:.2f} MB each, as "
        f"{given.model.name} has them in {given.dtype}; random bytes",
        TIER: "asked over the agent's socket; default settings (4 threads, yuanrong 2 processes) but for a longer "
        "deadline; every frame is verified, which its own client does not do",
        **{f"{name}'s own client": words for name, words in OWN_WORDS.items() if name in given.stores},
        "page cache cold": "posix_fadvise DONTNEED on every file before each read",
        "rounds": f"{given.rounds}, one read of each side in each",
    }


if __name__ == "__main__":
    main()
