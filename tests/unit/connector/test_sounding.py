"""Blocks are brought up from a slow tier in the background, and let go of again."""

from pathlib import Path

from kveik.connector.plan import Found, LookupPart
from kveik.connector.sounding import sound
from tests.agents import NAMESPACE, PAYLOAD_BYTES, connected, running_agent, some_keys, store_blocks, wait_until

BELOW = 2


def test_some_blocks_of_a_place_are_read_and_the_tier_is_timed(tmp_path: Path) -> None:
    with running_agent(tmp_path, filesystem=str(tmp_path / "blocks")) as agent:
        client = connected(tmp_path)
        keys = some_keys(6)
        store_blocks(client, keys)
        assert agent.lower.drain(10.0)
        wait_until(lambda: agent.arena.stats().pinned == 0, "all is written")
        agent.arena.drop(keys[2:])
        places = bytes([1, 1, BELOW, BELOW, 0, BELOW])
        found = Found(0, (LookupPart(0, 0, [key.block_hash for key in keys]),), (places,))

        assert sound(client, NAMESPACE, 0, found, BELOW, 2, {0: PAYLOAD_BYTES}) == 2

        wait_until(lambda: agent.lower.rate(0).get is not None, "the tier is timed")
        wait_until(lambda: agent.arena.stats().blocks == 4, "two blocks are in the arena again")
        wait_until(lambda: agent.arena.stats().pinned == 0, "and nobody holds them")
        assert [slot >= 0 for slot in agent.arena.locate(keys)] == [True] * 4 + [False] * 2
        client.close()


def test_an_agent_that_is_gone_costs_nothing(tmp_path: Path) -> None:
    with running_agent(tmp_path):
        client = connected(tmp_path)
    client.disconnect()
    found = Found(0, (LookupPart(0, 0, [b"h" * 32]),), (bytes([BELOW]),))
    assert sound(client, NAMESPACE, 0, found, BELOW, 5, {0: PAYLOAD_BYTES}) == 1
    client.close()
