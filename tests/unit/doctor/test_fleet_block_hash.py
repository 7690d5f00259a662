"""The hash of a prompt's first block, as an engine's events tell it."""

from collections.abc import Iterator

import pytest

from kveik.doctor.fleet_block_hash import first_block_hash
from kveik.engine.client import EngineClient
from kveik.engine.process import free_port
from kveik.errors import DoctorError
from tests.routers import SimProcess

PROMPT = tuple(range(5, 45))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineClient, str]]:
    events = f"tcp://127.0.0.1:{free_port()}"
    with SimProcess(tmp_path_factory.mktemp("sim"), events=events) as sim:
        yield EngineClient(sim.url), events


def test_one_prompt_under_one_salt_has_one_hash_and_under_another_another(engine: tuple[EngineClient, str]) -> None:
    client, events = engine
    first = first_block_hash(client, "simulated", events, PROMPT, "salt-1", 20.0)
    other = first_block_hash(client, "simulated", events, PROMPT, "salt-2", 20.0)
    assert len(first) == 16
    assert first != other


def test_a_prompt_without_a_whole_block_is_told_by_no_event(engine: tuple[EngineClient, str]) -> None:
    client, events = engine
    with pytest.raises(DoctorError, match="no event at"):
        first_block_hash(client, "simulated", events, (5, 6), "salt-3", 0.3)


def test_where_nobody_publishes_that_is_said(engine: tuple[EngineClient, str]) -> None:
    client, _ = engine
    with pytest.raises(DoctorError, match="nobody publishes KV events"):
        first_block_hash(client, "simulated", f"tcp://127.0.0.1:{free_port()}", PROMPT, "salt-4", 0.3)
    with pytest.raises(DoctorError, match="no address of KV events"):
        first_block_hash(client, "simulated", "nonsense", PROMPT, "salt-5", 0.3)
