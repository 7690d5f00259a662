import logging

import pytest

from kveik.records import FailureRecord, OutageRecord, StateRecord, TransferRecord
from kveik.telemetry.logs import LogStates


@pytest.fixture
def listener() -> LogStates:
    return LogStates(logging.getLogger("kveik.test"))


def test_a_change_of_state_is_one_clear_line(listener: LogStates, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    listener(StateRecord("filesystem.writes", "read-only", "writable", "a block could be written again"))
    assert caplog.messages == ["filesystem.writes: read-only -> writable: a block could be written again"]
    assert caplog.records[0].levelno == logging.INFO


@pytest.mark.parametrize("after", ["open", "read-only", "detached", "fenced"])
def test_trouble_is_a_warning(listener: LogStates, caplog: pytest.LogCaptureFixture, after: str) -> None:
    listener(StateRecord("filesystem.breaker", "closed", after, "3 failures in a row"))
    assert caplog.records[0].levelno == logging.WARNING


def test_a_corrupt_block_is_a_warning_and_traffic_is_silent(
    listener: LogStates, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    listener(TransferRecord("arena", "get", 2, 200, 0.5))
    listener(FailureRecord("arena", "get", "failed", "timeout", 1))
    assert not caplog.messages
    listener(FailureRecord("arena", "get", "corrupt", "checksum", 1))
    assert caplog.records[0].levelno == logging.WARNING


def test_an_outage_is_told_in_one_line_when_it_is_over(listener: LogStates, caplog: pytest.LogCaptureFixture) -> None:
    listener(OutageRecord("redis", 95.0, 3, 2, 1800, "redis tier out from 14:13 to 14:15: refused"))
    assert caplog.messages == ["redis tier out from 14:13 to 14:15: refused"]
