"""The process that hosts the library: asked, hung, crashed, ended and started anew. With a scripted library."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.errors import StoreError
from kveik.records import Record, StateRecord
from kveik.store import mooncake_client
from kveik.store.mooncake_client import LEAST_AGE_S, Call, MooncakeClient, why_replace
from kveik.store.mooncake_host import reads_at_once
from kveik.store.staging import Staging
from tests.agents import wait_until
from tests.mooncake_double import Double

NEVER = float("inf")
PATIENCE_S = 60.0


def judged(
    *, now_s: float = 100.0, started_s: float = 0.0, oldest_call_s: float = NEVER, late_since_s: float = NEVER
) -> str:
    return why_replace(
        now_s=now_s, started_s=started_s, oldest_call_s=oldest_call_s, late_since_s=late_since_s, hang_s=6.0
    )


def test_a_process_whose_calls_end_goes_on() -> None:
    assert judged() == ""
    assert judged(oldest_call_s=94.0) == ""


def test_a_call_that_hangs_costs_the_process_its_life_however_young_it_is() -> None:
    assert "more than 6 s" in judged(oldest_call_s=93.9)
    assert "more than 6 s" in judged(started_s=93.0, oldest_call_s=93.5)


def test_after_a_failed_transfer_the_process_is_replaced_but_not_again_and_again() -> None:
    assert "may come late" in judged(late_since_s=99.0)
    assert judged(started_s=100.0 - LEAST_AGE_S + 0.1, late_since_s=99.0) == ""


@pytest.fixture
def double(tmp_path: Path) -> Double:
    return Double(tmp_path)


@pytest.fixture
def staging() -> Iterator[Staging]:
    staging = Staging(1 << 16)
    yield staging
    staging.close()


Open = Callable[..., MooncakeClient]


@pytest.fixture
def records() -> list[Record]:
    return []


@pytest.fixture
def open_client(double: Double, staging: Staging, records: list[Record]) -> Iterator[Open]:
    opened: list[MooncakeClient] = []

    def open_client(hang_s: float = NEVER, lent_bytes: int = 0) -> MooncakeClient:
        client = MooncakeClient(
            double.plan(lent_bytes=lent_bytes),
            lambda: [(os.dup(staging.fd), staging.size)],
            part="mooncake.client",
            hang_s=hang_s,
            listener=records.append,
        )
        opened.append(client)
        return client

    yield open_client
    for client in opened:
        client.close()


def ready(client: MooncakeClient) -> MooncakeClient:
    client.wait_ready(PATIENCE_S)
    return client


def ask(client: MooncakeClient, op: str, **fields: object) -> Call:
    call = client.ask(op, **fields)
    assert call is not None
    return call


def codes(client: MooncakeClient, op: str, **fields: object) -> list[int] | None:
    call = ask(client, op, **fields)
    assert call.wait(PATIENCE_S)
    assert not call.may_touch_buffers()
    return call.codes


def put(client: MooncakeClient, key: str = "k", size: int = 4) -> list[int] | None:
    return codes(client, "put", keys=[key], at=[0], sizes=[size], prefer=[])


def test_bytes_go_between_the_shared_memory_and_the_store(open_client: Open, staging: Staging) -> None:
    client = ready(open_client())
    piece = staging.take(8192)
    assert piece is not None
    piece.view[:4] = b"abcd"

    assert put(client) == [0]
    assert codes(client, "exist", keys=["k", "no"]) == [1, 0]
    assert codes(client, "get", keys=["k", "no"], at=[4096, 0], sizes=[100, 100]) == [4, -704]
    assert bytes(piece.view[4096:4100]) == b"abcd"
    assert codes(client, "remove", keys=["k", "k"]) == [0, -704]
    assert client.segment == "double:1"


def test_of_a_key_that_is_there_already_a_put_says_so_and_keeps_it(open_client: Open) -> None:
    client = ready(open_client())

    assert put(client) == [0]
    assert put(client) == [-705]


def test_a_put_whose_bytes_did_not_arrive_is_given_up_and_leaves_nothing(open_client: Open, double: Double) -> None:
    client = ready(open_client())
    double.tell(move=2)
    call = ask(client, "put", keys=["k"], at=[0], sizes=[4], prefer=[])
    assert call.wait(PATIENCE_S)

    assert call.codes == [-1]
    assert call.may_touch_buffers()
    assert double.revoked == ["k"]
    double.tell()
    assert codes(client, "exist", keys=["k"]) == [0]


def test_a_put_that_was_not_completed_is_given_up_too(open_client: Open, double: Double) -> None:
    client = ready(open_client())
    double.tell(end=-10)

    assert put(client) == [-10]
    assert double.revoked == ["k"]


def test_copies_and_wished_segments_reach_the_library(open_client: Open, double: Double) -> None:
    client = ready(open_client())

    assert codes(client, "put", keys=["k"], at=[0], sizes=[4], prefer=["near:1", "near:2"]) == [0]

    assert double.config == [1, False, ["near:1", "near:2"]]


def test_a_store_that_cannot_be_joined_is_said_in_time_and_tried_again(open_client: Open, double: Double) -> None:
    double.tell(setup=-1)
    client = open_client()

    wait_until(lambda: "setup answered -1" in client.why_not, "it failed", PATIENCE_S)
    with pytest.raises(StoreError, match="setup answered -1"):
        client.wait_ready(0)
    assert client.ask("exist", keys=["k"]) is None
    double.tell()
    wait_until(lambda: client.ready, "the master is there now", PATIENCE_S)
    assert codes(client, "exist", keys=["k"]) == [0]


def test_memory_that_the_library_does_not_take_is_a_store_that_cannot_be_joined(
    open_client: Open, double: Double
) -> None:
    double.tell(register=-600)

    client = open_client()

    wait_until(lambda: "65536 bytes were not registered: -600" in client.why_not, "it failed", PATIENCE_S)


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("raise ImportError('libibverbs.so.1: no such file')", "libibverbs.so.1: no such file .*needs libibverbs1"),
        ("class MooncakeDistributedStore: pass", "older than 0.3.13"),
    ],
)
def test_a_library_that_cannot_be_used_at_all_is_said_at_once_with_the_reason(
    open_client: Open, double: Double, library: str, words: str
) -> None:
    double.be(library)

    with pytest.raises(StoreError, match=words):
        open_client().wait_ready(PATIENCE_S)


def test_places_count_over_all_memory_one_piece_after_the_other(double: Double, staging: Staging) -> None:
    second = Staging(4096)
    memory = [(staging.fd, staging.size), (second.fd, second.size)]
    client = MooncakeClient(double.plan(), lambda: [(os.dup(fd), size) for fd, size in memory], part="two")
    try:
        ready(client)
        first, piece = staging.take(4), second.take(4)
        assert first is not None
        assert piece is not None
        piece.view[:] = b"abcd"

        assert codes(client, "put", keys=["k"], at=[staging.size], sizes=[4], prefer=[]) == [0]
        assert codes(client, "get", keys=["k"], at=[0], sizes=[4]) == [4]
        assert bytes(first.view) == b"abcd"
    finally:
        client.close()
        second.close()


@pytest.mark.parametrize(("how", "words"), [("crash", "signal 6"), ("raise", "RuntimeError: told to")])
def test_a_library_that_crashes_takes_nobody_with_it_and_is_back_soon(
    open_client: Open, double: Double, records: list[Record], how: str, words: str
) -> None:
    client = ready(open_client())
    double.tell(get=how)

    assert codes(client, "get", keys=["k"], at=[0], sizes=[4]) is None

    double.tell()
    wait_until(lambda: client.ready, "a new process is there", PATIENCE_S)
    assert put(client) == [0]
    told = [record.why for record in records if isinstance(record, StateRecord) and record.after == "starting"]
    assert len(told) == 1
    assert words in told[0]


def test_a_process_that_is_killed_is_started_anew(open_client: Open) -> None:
    client = ready(open_client())
    first = client.pid
    os.kill(first, signal.SIGKILL)

    wait_until(lambda: client.ready and client.pid != first, "a new process is there", PATIENCE_S)
    assert put(client) == [0]


def test_a_call_that_hangs_is_ended_with_its_process_and_then_touches_no_buffer(
    open_client: Open, double: Double
) -> None:
    client = ready(open_client(hang_s=0.5))
    first = client.pid
    double.tell(get="hang")

    call = ask(client, "get", keys=["k"], at=[0], sizes=[4])
    assert call.may_touch_buffers()
    assert call.wait(PATIENCE_S)

    assert call.codes is None
    assert not call.may_touch_buffers()
    assert not Path(f"/proc/{first}").exists()
    wait_until(lambda: client.ready, "a new process is there", PATIENCE_S)


def test_questions_are_answered_while_all_transfers_hang(open_client: Open, double: Double) -> None:
    client = ready(open_client())
    double.tell(get="hang")
    hung = [ask(client, "get", keys=["k"], at=[0], sizes=[4]) for _ in range(5)]

    assert codes(client, "exist", keys=["k"]) == [0]
    assert not any(call.wait(0) for call in hung)


@pytest.mark.parametrize(("cores", "reads"), [(1, 2), (2, 2), (8, 2), (16, 4), (64, 16)])
def test_the_library_reads_no_more_at_once_than_the_cores_are_good_for(cores: int, reads: int) -> None:
    assert reads_at_once(cores) == reads


def test_a_process_that_cannot_be_started_is_tried_again(double: Double, staging: Staging) -> None:
    files = [OSError("no such file"), None]

    def open_memory() -> list[tuple[int, int]]:
        error = files.pop(0) if files else None
        if error is not None:
            raise error
        return [(os.dup(staging.fd), staging.size)]

    client = MooncakeClient(double.plan(), open_memory, part="late")
    try:
        wait_until(lambda: client.ready or "no such file" in client.why_not, "it failed", PATIENCE_S)
        ready(client)
    finally:
        client.close()


def test_a_stopped_process_is_a_hung_one(open_client: Open) -> None:
    client = ready(open_client(hang_s=0.5))
    os.kill(client.pid, signal.SIGSTOP)

    assert put(client) is None
    wait_until(lambda: client.ready, "a new process is there", PATIENCE_S)
    assert put(client) == [0]


def test_after_a_failed_transfer_its_buffers_are_busy_until_the_process_was_replaced(
    open_client: Open, double: Double, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mooncake_client, "LEAST_AGE_S", 0.5)
    client = ready(open_client())
    first = client.pid
    double.tell(get=-800)

    call = ask(client, "get", keys=["k"], at=[0], sizes=[4])
    assert call.wait(PATIENCE_S)

    assert call.codes == [-800]
    double.tell()
    wait_until(lambda: not call.may_touch_buffers(), "its process is gone", PATIENCE_S)
    assert client.pid != first


def test_a_refusal_costs_nobody_anything(open_client: Open, double: Double) -> None:
    client = ready(open_client())
    first = client.pid
    double.tell(put=-200)

    assert put(client) == [-200]
    assert client.pid == first


def test_closing_gives_lent_memory_back_in_order(open_client: Open, double: Double) -> None:
    client = ready(open_client(lent_bytes=1 << 20))
    pid = client.pid

    client.close()

    assert double.closed
    assert not Path(f"/proc/{pid}").exists()
    assert client.ask("exist", keys=["k"]) is None


def test_closing_waits_for_no_hung_call_and_ends_it(open_client: Open, double: Double) -> None:
    client = ready(open_client())
    double.tell(exist="hang")
    call = ask(client, "exist", keys=["k"])

    client.close()

    assert call.wait(0)
    assert call.codes is None
