"""Two nodes, each with an agent and an engine, share a folder on a server: hits across restarts, damage, loss and a
hang.

The folder is mounted for each node by a server of the test's (:mod:`tests.slow_mount`), as a network file system is.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.store.filesystem_layout import parse_block_name
from kveik.store.fsck_walk import FolderWalk
from tests.agents import AgentProcess, wait_until
from tests.engines.engine import Engine
from tests.slow_mount import SlowMount, slow_mounts

pytestmark = pytest.mark.long

Tokens = Callable[[int, int], list[int]]
BLOCK = 128
PROMPT_TOKENS = 900
HIT_TOKENS = PROMPT_TOKENS // BLOCK * BLOCK
LOOKUP_DEADLINE_S, LOAD_DEADLINE_S = 0.5, 2.0


class Node:
    """An agent over its own mount of the folder, and what its engines need to know."""

    def __init__(self, folder: Path, mounted: SlowMount, shared: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.mounted = mounted
        self.shared = shared
        self.agent = AgentProcess(
            folder, arena_bytes=128 << 20, filesystem=str(mounted.target / "kv"), probe_period_s=0
        )

    @property
    def extra(self) -> dict[str, Any]:
        # Whether loading pays is another question than whether it works.
        return {
            "socket": str(self.folder / "agent.sock"),
            "lookup_deadline_s": LOOKUP_DEADLINE_S,
            "load_deadline_max_s": LOAD_DEADLINE_S,
            "load_choice": "always",
        }

    def forget(self) -> None:
        """Start the agent again with an empty arena: what is left is the folder."""
        self.agent.kill()
        (self.folder / "arena").unlink()
        self.agent.restart()

    def files(self) -> list[Path]:
        return [path for path in self.shared.glob("kveik-1/*/??/??/*") if parse_block_name(path.name) is not None]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    folder = tmp_path_factory.mktemp("nodes")
    with slow_mounts(folder) as mount:
        mounted = [mount("mount one"), mount("mount two")]
        if mounted[0] is None or mounted[1] is None:
            pytest.skip("may not mount a file system here")
        shared = folder / "shared" / "kv"
        one, two = Node(folder / "one", mounted[0], shared), Node(folder / "two", mounted[1], shared)
        yield one, two
        for node in (one, two):
            node.mounted.set()
            node.agent.close()


@pytest.fixture(scope="module")
def engines(nodes: tuple[Node, Node], start_engine: Callable[..., Engine]) -> list[Engine]:
    """One a node; the second is used only after the first has its answers, so they may share a core."""
    started = [start_engine("tiny-qwen3", extra=node.extra, core=core) for core, node in enumerate(nodes)]
    return [engine.wait_ready() for engine in started]


def assert_equal(answer: dict[str, Any], cold: dict[str, Any]) -> None:
    assert answer["finish"] == "length"
    assert answer["ids"] == cold["ids"]
    assert max(abs(a - b) for a, b in zip(answer["logprobs"], cold["logprobs"], strict=True)) <= 1e-4


def stored(node: Node, engine: Engine, prompt: list[int]) -> tuple[dict[str, Any], float]:
    """A cold answer of one node whose blocks lie in the folder now, and the seconds it took."""
    before = len(node.files())
    started = time.monotonic()
    (cold,) = engine.generate(prompt)
    seconds = time.monotonic() - started
    engine.wait_saved()
    wait_until(lambda: len(node.files()) >= before + len(prompt) // BLOCK, "the blocks lie in the folder", 60)
    engine.reset()
    return cold, seconds


def hits_again(engine: Engine, prompt: list[int], cold: dict[str, Any]) -> Callable[[], bool]:
    def hits() -> bool:
        engine.reset()
        (answer,) = engine.generate(prompt)
        assert_equal(answer, cold)
        return bool(answer["cached"] == len(prompt) // BLOCK * BLOCK)

    return hits


def test_a_prefix_of_one_node_is_an_external_hit_on_the_other_after_restarts_too(
    nodes: tuple[Node, Node], engines: list[Engine], tokens: Tokens, start_engine: Callable[..., Engine]
) -> None:
    prompt = tokens(PROMPT_TOKENS, 1)
    cold, _ = stored(nodes[0], engines[0], prompt)

    (hit,) = engines[1].generate(prompt)
    assert (hit["cached"], engines[1].settle("kveik_connector_tokens_used", 1)) == (HIT_TOKENS, HIT_TOKENS)
    assert_equal(hit, cold)

    nodes[1].forget()
    wait_until(hits_again(engines[1], prompt, cold), "it hits after the restart of the agent, without its arena", 120)

    engines[1].kill()
    engines[1] = start_engine("tiny-qwen3", extra=nodes[1].extra, core=1).wait_ready()
    nodes[1].forget()
    wait_until(hits_again(engines[1], prompt, cold), "it hits after the restart of the engine as well", 120)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 2 * 4096] = bytes(byte ^ 0xFF for byte in content[4096 : 2 * 4096])
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def rename_key(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[12 : 12 + 16] = bytes(16)  # the namespace in the header
    path.write_bytes(content)


def test_damaged_files_are_computed_anew_and_no_request_fails(
    nodes: tuple[Node, Node], engines: list[Engine], tokens: Tokens
) -> None:
    damaged: set[Path] = set()
    for seed, damage in enumerate((flip, cut, empty, rename_key)):
        prompt = tokens(PROMPT_TOKENS, 10 + seed)
        before = set(nodes[0].files())
        cold, _ = stored(nodes[0], engines[0], prompt)
        mine = sorted(set(nodes[0].files()) - before)
        for path in mine[::2]:
            damage(path)
        one, two = mine[1].read_bytes(), mine[3].read_bytes()  # and two whole files swapped
        mine[1].write_bytes(two)
        mine[3].write_bytes(one)
        damaged.update([*mine[::2], mine[1], mine[3]])

        engines[1].reset()
        (answer,) = engines[1].generate(prompt)

        assert_equal(answer, cold)
        engines[1].wait_saved()
    assert engines[1].counter("kveik_connector_read_back_mismatches") == 0

    def most_are_sound_again() -> bool:
        return FolderWalk(nodes[0].shared).run().bad <= len(damaged) // 2

    wait_until(most_are_sound_again, "what was found wrong and computed anew was written over it", 60)


def test_blocks_that_vanish_after_the_lookup_are_computed(
    nodes: tuple[Node, Node], engines: list[Engine], tokens: Tokens
) -> None:
    prompt = tokens(PROMPT_TOKENS, 20)
    cold, _ = stored(nodes[0], engines[0], prompt)

    nodes[1].mounted.set(errors={"open": 2})  # names are there, files are not
    (answer,) = engines[1].generate(prompt)
    assert_equal(answer, cold)
    nodes[1].mounted.set()

    wait_until(hits_again(engines[1], prompt, cold), "what is there is a hit again", 120)


def test_a_hung_server_costs_a_request_its_deadlines_at_most_and_the_tier_comes_back_by_itself(
    nodes: tuple[Node, Node], engines: list[Engine], tokens: Tokens
) -> None:
    prompts = [tokens(PROMPT_TOKENS, 30 + seed) for seed in range(4)]
    colds = [stored(nodes[0], engines[0], prompt) for prompt in prompts]
    slowest = max(seconds for _, seconds in colds)

    nodes[1].mounted.set(hang=("read", "open", "lookup", "getattr"))
    try:
        for prompt, (cold, _) in zip(prompts, colds, strict=True):
            started = time.monotonic()
            (answer,) = engines[1].generate(prompt)
            assert_equal(answer, cold)
            # Cold, both deadlines, and room for a machine that does other things.
            assert time.monotonic() - started < 2 * slowest + LOOKUP_DEADLINE_S + LOAD_DEADLINE_S + 2.0
            engines[1].reset()
    finally:
        nodes[1].mounted.set()
    wait_until(hits_again(engines[1], prompts[0], colds[0][0]), "the tier came back by itself", 120)
