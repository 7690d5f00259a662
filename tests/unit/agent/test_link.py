import threading
from pathlib import Path

import pytest

from kveik.agent import link
from kveik.agent.client import AgentClient
from kveik.agent.link import AgentLink
from kveik.clock import Deadline
from kveik.errors import ArenaError
from kveik.records import Record, StateRecord
from tests.agents import load_blocks, running_agent, some_keys, store_blocks, wait_until


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "RETRY_MIN_S", 0.02)
    monkeypatch.setattr(link, "RETRY_MAX_S", 0.05)


def link_to(folder: Path, **given: object) -> AgentLink:
    return AgentLink(str(folder / "agent.sock"), role="test", prefault=False, **given).start()  # type: ignore[arg-type]


def test_it_attaches_when_the_agent_appears(tmp_path: Path) -> None:
    attached: list[AgentClient] = []
    linked = link_to(tmp_path, on_attach=attached.append)
    assert linked.client is None
    assert not linked.wait_attached(0.1)
    with running_agent(tmp_path):
        assert linked.wait_attached(5)
        assert attached == [linked.client]
        linked.close()


def test_it_detaches_with_the_agent_and_attaches_to_the_next_one_with_all_blocks(tmp_path: Path) -> None:
    keys = some_keys(3)
    detached: list[AgentClient] = []
    with running_agent(tmp_path):
        linked = link_to(tmp_path, on_detach=detached.append)
        assert linked.wait_attached(5)
        assert linked.client is not None
        store_blocks(linked.client, keys)
        first = linked.client
    wait_until(lambda: linked.client is None, "it detaches")
    with running_agent(tmp_path):
        assert linked.wait_attached(5)
        assert detached == [first]
        assert linked.client is not None
        assert load_blocks(linked.client, keys) == ["hit"] * 3
        linked.close()
        assert linked.client is None


def test_slots_of_a_write_that_the_restart_cut_off_are_freed_when_it_has_ended(tmp_path: Path) -> None:
    with running_agent(tmp_path):
        linked = link_to(tmp_path)
        assert linked.wait_attached(5)
        assert linked.client is not None
        old = linked.client
        reserved = old.reserve(some_keys(2), 1000, Deadline.after(5))
        held = old.payload(reserved.grants[0], 1000)
    wait_until(lambda: linked.client is None, "it detaches")
    with running_agent(tmp_path) as agent:
        assert linked.wait_attached(5)
        assert agent.arena.stats().quarantined == 2
        held[:] = bytes(1000)  # the copy is still under way
        old.release(reserved.lease)
        wait_until(lambda: agent.arena.stats().quarantined == 0, "the slots are free again")
        linked.close()


def test_it_tells_once_that_no_agent_is_there(tmp_path: Path) -> None:
    records: list[Record] = []
    linked = link_to(tmp_path, listener=records.append)
    wait_until(lambda: bool(records), "the first attempt failed")
    threading.Event().wait(0.2)
    linked.close()
    assert len(records) == 1
    assert isinstance(records[0], StateRecord)
    assert "no agent at" in records[0].why


@pytest.mark.parametrize(
    "refusal", [RuntimeError("the device refused"), OSError("the device refused"), ArenaError("the device refused")]
)
def test_a_callback_that_refuses_once_is_asked_again(tmp_path: Path, refusal: Exception) -> None:
    calls: list[AgentClient] = []
    records: list[Record] = []

    def attach(client: AgentClient) -> None:
        calls.append(client)
        if len(calls) == 1:
            raise refusal

    with running_agent(tmp_path):
        linked = link_to(tmp_path, on_attach=attach, listener=records.append)
        assert linked.wait_attached(5)
        assert not calls[0].connected
        linked.close()
    assert isinstance(records[0], StateRecord)
    assert "the device refused" in records[0].why


def test_closing_an_attached_link_calls_on_detach_while_the_arena_is_mapped(tmp_path: Path) -> None:
    sizes: list[int] = []
    with running_agent(tmp_path):
        linked = link_to(tmp_path, on_detach=lambda client: sizes.append(len(client.arena)))
        assert linked.wait_attached(5)
        linked.close()
    assert sizes == [16 << 20]
    assert repr(linked).endswith("detached)")


def test_the_attached_client_is_given_a_beat_again_and_again(tmp_path: Path) -> None:
    beats: list[AgentClient] = []
    with running_agent(tmp_path):
        linked = link_to(tmp_path, on_beat=beats.append)
        assert linked.wait_attached(5)
        wait_until(lambda: len(beats) > 2, "the link beats")
        assert set(map(id, beats)) == {id(linked.client)}
        linked.close()
