"""What Kveik itself logs is what the dictionary has of Kveik: the lines are made by its own code."""

import io
import logging
from collections.abc import Iterator

import pytest

from kveik.cli.settings_flags import log_to_stderr
from kveik.doctor.log_line import read_line
from kveik.records import FailureRecord, StateRecord
from kveik.telemetry.logs import LogStates
from tests.log_samples import DICTIONARY, causes, ranked

#: Changes of state as the code tells them, and the entry that explains each; empty for good news.
STATES = {
    ("filesystem.breaker", "closed", "open", "3 failures in a row"): "kveik-tier-out",
    ("mooncake", "closed", "opening", "not there yet; the agent serves without it meanwhile"): "kveik-tier-out",
    ("redis", "opening", "out", "connection refused; trying again every 5 s"): "kveik-tier-out",
    ("filesystem.writes", "writable", "read-only", "the quota is used up"): "kveik-read-only",
    ("mooncake.fence", "sound", "fenced", "a probe read other bytes"): "kveik-tier-fenced",
    ("arena file", "expected", "changed", "it was made for another size"): "kveik-arena-changed",
    ("router.keys", "ready", "broken", "line 3 is no key"): "kveik-keys-broken",
    ("registry", "following", "away", "etcd does not answer; the last known fleet stands"): "kveik-registry",
    ("registry file", "sound", "failing", "the disk is full"): "kveik-registry-file",
    ("engine engine-1", "ready", "isolated", "watchdog: dead: it has no process"): "kveik-engine-isolated",
    ("engine-1", "starting", "failed", "it ended with code 1"): "kveik-part-failed",
    ("filesystem.breaker", "open", "closed", "a block could be read again"): "",
    ("mooncake.fence", "fenced", "sound", "3 probes in a row were well"): "",
    ("registry", "away", "following", "etcd answers again"): "",
    ("engine engine-1", "draining", "isolated", "roll: it is being restarted"): "",
    ("agent link", "detached", "attached", "agent 12742-8a54e513"): "",
    ("arena", "ready", "warm", "all 1024 bytes are faulted in"): "",
}


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What Kveik's processes write to standard error, in their own format."""
    stream = io.StringIO()
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    root.handlers.clear()
    monkeypatch.setattr("sys.stderr", stream)
    log_to_stderr()
    yield stream
    root.handlers[:], root.level = before, level


def line_of(written: io.StringIO, part: str, before: str, after: str, why: str) -> str:
    LogStates(logging.getLogger("kveik.agent"))(StateRecord(part, before, after, why))
    return written.getvalue().splitlines()[-1]


@pytest.mark.parametrize("state", STATES, ids=lambda state: " ".join(state[:3]))
def test_a_change_of_state_is_explained_as_it_is_logged(written: io.StringIO, state: tuple[str, str, str, str]) -> None:
    entry = DICTIONARY.find(read_line(line_of(written, *state)))
    assert (entry.id if entry else "") == STATES[state]


def test_corrupt_blocks_are_explained_as_they_are_logged(written: io.StringIO) -> None:
    LogStates(logging.getLogger("kveik.agent"))(FailureRecord("filesystem", "get", "corrupt", "checksum", 2))
    assert causes(ranked(written.getvalue())) == ["kveik-block-refused"]


def test_a_fault_of_our_own_is_told_with_its_exception_as_unknown(written: io.StringIO) -> None:
    try:
        raise ZeroDivisionError("no flux")
    except ZeroDivisionError:
        logging.getLogger("kveik.router").exception("a request failed in the router")
    found = ranked(*written.getvalue().splitlines())
    assert causes(found) == ["kveik-router-fault"]
    assert [group.first.text for group in found.unknown] == ["ZeroDivisionError: no flux"]
    assert found.unknown_first


def test_each_process_of_a_node_is_told_by_its_own_name_where_logs_are_shown_together(written: io.StringIO) -> None:
    state = ("mooncake.fence", "sound", "fenced", "a probe read other bytes")
    found = ranked(f"agent    | {line_of(written, *state)}")
    assert found.findings[0].group.processes == {"agent": 1}
