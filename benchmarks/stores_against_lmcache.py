"""External hits out of a store: Kveik against LMCache with the same store, and beside computing.

What: seconds from sending the HTTP request to the first streamed token, one request at a time. The prompt's blocks lie
in the store only: before each hit the engine's own cache and the shared cache's memory are emptied.
Where: for each store new engines on the same core: one with Kveik and an agent in this process, one with LMCache and
its multiprocess server, with this store as its second level. The store is a real server, the same for both.
Each round: both engines answer a new prompt cold, then both answer it out of the store, in turn.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.options import Recorder, parser, rig_spec, say
from benchmarks.real_stores import NAMES, RealStore, running_store
from benchmarks.request import SAVE_S, cold, external_hit, unique_prompts
from benchmarks.result import Claim, Round
from benchmarks.rig import Rig
from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings, load
from kveik.engine.launch import Engine
from kveik.errors import ConfigError
from kveik.verify.prompts import Prompt

KVEIK, LMCACHE = "Kveik", "LMCache"
GIB = 1 << 30
WRITE_S = 60.0
#: Why LMCache 0.5.6 is not measured with a store.
WITHOUT_LMCACHE = {
    "mooncake": "it ends with: Mooncake Store L2 adapter requires the C++ Mooncake extension, which its package lacks",
    "yuanrong": "it has no adapter for it",
}


def main() -> None:
    """Measure, print and write down."""
    options = parser(__doc__ or "", rounds=3, engine_environment=".venv-lmcache")
    options.add_argument("--tokens", type=int, default=7000, help="prompt length")
    options.add_argument("--repeats", type=int, default=3, help="hits of each side for each prompt")
    options.add_argument("--stores", nargs="+", default=list(NAMES), choices=NAMES)
    given = options.parse_args()
    question = f"TTFT of {given.tokens} tokens out of a store, {given.model.name}, {given.dtype}: Kveik against LMCache"
    recorder = Recorder("stores-against-lmcache", question, given)
    with recorder.writing(conditions(given), claims(given.stores)):
        for name in given.stores:
            try:
                measure_store(given, recorder, name)
            except ConfigError as error:
                say(f"{name} is left out: {error}")


def measure_store(given: argparse.Namespace, recorder: Recorder, name: str) -> None:
    """All rounds of one store."""
    with (
        TemporaryDirectory(prefix="kvb-") as text,
        running_store(name, Path(text) / "s", GIB, say) as store,
        running_node(Path(text), store) as node,
        Rig(replace(rig_spec(given), connector={"socket": node.socket_path, "load_choice": "always"}), say) as rig,
    ):
        sides = {KVEIK: Side(rig.kveik_engine(f"kveik-{name}"), written_of(node), emptied_of(node))}
        if name not in WITHOUT_LMCACHE:
            rig.start_lmcache_server(second_level(store, Path(text) / "lmcache"))
            sides[LMCACHE] = Side(
                rig.lmcache_engine(f"lmcache-{name}"), lambda: time.sleep(4 * SAVE_S), rig.empty_lmcache_memory
            )
        prompts = unique_prompts(sides[KVEIK].engine, given.tokens, given.seed)
        for number in range(given.rounds):
            order = list(sides) if number % 2 == 0 else list(sides)[::-1]
            with recorder.round(name) as one:
                measure_round(one, {side: sides[side] for side in order}, next(prompts), given.repeats)


class Side:
    """An engine, how to wait until what it saved lies in the store, and how to leave it there alone."""

    def __init__(self, engine: Engine, written: Callable[[], None], emptied: Callable[[], None]) -> None:
        self.engine = engine
        self.written = written
        self.emptied = emptied


def measure_round(one: Round, sides: Mapping[str, Side], prompt: Prompt, repeats: int) -> None:
    """One prompt: cold on every engine, then out of the store in turn. TTFT in seconds."""
    for name, side in sides.items():
        one.add(cold_label(name), cold(side.engine, prompt).ttft_s)
        side.written()
    for _ in range(repeats):
        for name, side in sides.items():
            side.emptied()
            answer = external_hit(side.engine, prompt)
            one.add(hit_label(name), answer.ttft_s, answer.cached_tokens)


@contextmanager
def running_node(folder: Path, store: RealStore) -> Iterator[NodeAgent]:
    """The agent in this process, with its tier open."""
    arena = Path(f"/dev/shm/{folder.name}.arena")
    given = {"socket": str(folder / "agent.sock"), "arena": str(arena), "arena_bytes": GIB, "tier_deadline_s": 20.0}
    node = NodeAgent(load(AgentSettings, given={**given, **store.agent}), store.stores)
    try:
        node.start()
        until_s = time.monotonic() + WRITE_S
        while node.lower.stats()[0]["state"] != "ready" and time.monotonic() < until_s:
            time.sleep(0.1)
        yield node
    finally:
        node.close()
        arena.unlink(missing_ok=True)


def written_of(node: NodeAgent) -> Callable[[], None]:
    """Waits until nothing is to be written down any more."""
    return lambda: None if node.lower.drain(WRITE_S) else say("blocks are still being written")


def emptied_of(node: NodeAgent) -> Callable[[], None]:
    """Forgets all blocks in the arena, as soon as no load holds them any more."""

    def empty() -> None:
        until_s = time.monotonic() + WRITE_S
        while node.arena.stats().blocks and time.monotonic() < until_s:
            node.arena.drop(node.arena.keys())
            time.sleep(0.01)

    return empty


def second_level(store: RealStore, folder: Path) -> dict[str, object]:
    """The same store as LMCache names it; a folder beside ours."""
    if store.name == "filesystem":
        folder.mkdir()
        return {"type": "fs_native", "base_path": str(folder)}
    host, _, port = store.address.rpartition(":")
    return {"type": "resp", "host": host, "port": int(port)}


def hit_label(name: str) -> str:
    """The side of hits out of the store."""
    return f"{name} out of the store"


def cold_label(name: str) -> str:
    """The side of cold runs."""
    return f"{name} cold"


def claims(stores: list[str]) -> list[Claim]:
    """Ahead with each store that both can use."""
    return [
        Claim(group=name, first=hit_label(KVEIK), second=hit_label(LMCACHE), direction="at most", bound=1.0)
        for name in stores
        if name not in WITHOUT_LMCACHE
    ]


def conditions(given: argparse.Namespace) -> dict[str, str]:
    """What a reader must know beside the machine."""
    return {
        "measured": "seconds from sending the HTTP request to the first streamed token, one request at a time",
        "model": f"{given.model.name}, {given.dtype}, prompts of {given.tokens} tokens",
        "engines": f"one for each side, both computing on core {given.core}, eager; they take turns",
        "emptied before each hit": "the engine's own prefix cache, and the memory of agent and LMCache's server",
        "Kveik": "default settings, but always loading and with longer deadlines; the page cache is warm",
        "LMCache": "multiprocess server, chunks of 256 tokens (default), second level fs_native or resp with defaults",
        **{
            f"LMCache with {name}": f"not measured: {why}"
            for name, why in WITHOUT_LMCACHE.items()
            if name in given.stores
        },
        "rounds": f"{given.rounds} prompts a store, {given.repeats} hits of each side for a prompt",
    }


if __name__ == "__main__":
    main()
