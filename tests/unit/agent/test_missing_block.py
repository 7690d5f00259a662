"""What had become of a block that a request missed."""

from pathlib import Path
from typing import Any

import pytest

from kveik.agent.block_fates import BlockFates
from kveik.agent.funnel import EVICTED, MissingBlock, RequestFunnel
from kveik.agent.missing_block import explain_missing
from kveik.agent.namespaces import Namespaces
from kveik.clock import FakeClock
from kveik.kv.keys import BlockKey
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from tests.agents import connected, running_agent, store_blocks
from tests.funnels import prompt, told

MINE = Namespace(dict.fromkeys(REQUIRED_FACTS, "same"), "model")
OTHER = MINE.with_facts(dtype="bfloat16")
HASH = b"\5" * 32


class Bench:
    """An arena behind a real agent, and what is remembered of it."""

    def __init__(self, arena: Any) -> None:
        self.clock = FakeClock()
        self.arena = arena
        self.fates = BlockFates(self.clock)
        self.namespaces = Namespaces()
        for namespace in (MINE, OTHER):
            self.namespaces.announce(namespace)

    def explained(self, **given: Any) -> RequestFunnel:
        asked_s = self.clock.monotonic()
        facts: dict[str, Any] = {"namespace": MINE.digest, "missing": MissingBlock(0, 0, 128, HASH), "asked_s": asked_s}
        record = told("a", prompt(300), **facts | given)
        explain_missing(record, self.arena, self.fates, self.namespaces)
        return record


def test_a_loss_that_is_remembered_is_told_with_its_age(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        bench = Bench(agent.arena)
        bench.fates.note([BlockKey.of(MINE.digest, HASH)], EVICTED, "arena")
        bench.clock.advance(4)
        record = bench.explained()
        assert (record.fate, record.fate_reason, record.fate_age_s) == (EVICTED, "arena", 4.0)


def test_a_block_of_another_namespace_is_told_with_the_facts_that_differ(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        client = connected(tmp_path)
        store_blocks(client, [BlockKey.of(OTHER.digest, HASH)])
        record = Bench(agent.arena).explained()
        assert (record.fate, record.fate_reason) == ("elsewhere", "dtype same != bfloat16")
        client.close()


def test_the_fate_of_the_rank_that_lacks_it_counts(tmp_path: Path) -> None:
    with running_agent(tmp_path) as agent:
        bench = Bench(agent.arena)
        bench.fates.note([BlockKey.of(MINE.digest, HASH, 0, 2)], EVICTED, "arena")
        assert bench.explained().fate == ""
        assert bench.explained(missing=MissingBlock(0, 0, 128, HASH, ranks=[2])).fate == EVICTED


@pytest.mark.parametrize(
    "given",
    [{"missing": None}, {"namespace": b""}, {"asked_s": -1.0}, {"missing": MissingBlock(0, 0, 128, b"no hash")}],
    ids=["nothing missing", "no namespace", "never asked", "no name"],
)
def test_what_has_no_name_or_was_never_asked_for_has_no_fate(tmp_path: Path, given: dict[str, Any]) -> None:
    with running_agent(tmp_path) as agent:
        assert Bench(agent.arena).explained(**given).fate == ""
