"""Each fault switch does on the wire what it says, and can be taken back."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from kveik.config import SimEngineSettings
from kveik.engine.process import free_port
from kveik.simulate.server import SimServer
from tests.agents import wait_until
from tests.unit.simulate.raw import CHAT, Raw, ask, events

PATH = "/v1/chat/completions"
STREAM = {**CHAT, "stream": True, "max_tokens": 20}


@pytest.fixture
def engine() -> Iterator[SimServer]:
    with SimServer(SimEngineSettings(port=0, control_port=free_port())) as running:
        yield running


def works(engine: SimServer) -> bool:
    return ask(engine.url, "POST", PATH, {**CHAT, "max_tokens": 1}).status == 200


def healthy(engine: SimServer) -> bool:
    return ask(engine.url, "GET", "/health").status == 200


def stream(engine: SimServer, **given: Any) -> Raw:
    return Raw(engine.url).send("POST", PATH, {**STREAM, **given})


def test_switches_are_set_shown_and_taken_back_over_http(engine: SimServer) -> None:
    state = ask(engine.url, "POST", "/sim", {"status": 503, "every": 2}).json()
    assert (state["faults"]["status"], state["faults"]["every"], state["simulated"]) == (503, 2, True)
    assert ask(engine.url, "GET", "/sim").json()["faults"] == state["faults"]
    assert ask(engine.url, "POST", "/sim", {"reset": True}).json()["faults"]["status"] == 0
    for nonsense in (b"{", b"[]", {"unknown": 1}, {"every": 0}):
        assert ask(engine.url, "POST", "/sim", nonsense).status == 400


def test_the_first_byte_comes_late(engine: SimServer) -> None:
    engine.change_faults(first_byte_delay_s=0.2)
    for given in ({"stream": True}, {}):
        began_s = time.monotonic()
        with Raw(engine.url) as raw:
            raw.send("POST", PATH, {**CHAT, **given}).more()
        assert time.monotonic() - began_s >= 0.2


@pytest.mark.parametrize("chunks", [0, 1, 5])
def test_a_stream_stalls_and_stays_open(engine: SimServer, chunks: int) -> None:
    engine.change_faults(stall_after_chunks=chunks)
    with stream(engine) as raw:
        raw.until(b"\r\n\r\n")
        while raw.data.count(b"data: ") < chunks:
            assert raw.more()
        assert raw.silent(0.1)
        assert raw.data.count(b"data: ") == chunks
        assert engine.seen.active == engine.call(engine.app.core.gauges).running == 1
    wait_until(lambda: engine.seen.active == 0, "the client's leaving is noticed")
    assert engine.seen.aborted[0].chunks == chunks
    assert engine.call(engine.app.core.gauges).running == 0


@pytest.mark.parametrize("chunks", [0, 1, 5])
@pytest.mark.parametrize(("how", "end"), [("rst", "rst"), ("fin", "fin"), ("mid_line", "fin")])
def test_a_stream_dies_after_so_many_chunks(engine: SimServer, how: str, end: str, chunks: int) -> None:
    engine.change_faults(die_after_chunks=chunks, die_by=how)
    with stream(engine) as raw:
        data = raw.to_the_end()
    assert raw.end == end
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n")
    torn = int(how == "mid_line")
    assert (data.count(b"data: "), data.count(b"}\n\n")) == (chunks + torn, chunks)
    wait_until(lambda: engine.seen.active == 0, "the request is over")
    assert engine.seen.aborted_count == 0
    engine.change_faults(reset=True)
    assert works(engine)


def test_a_stream_that_is_shorter_than_the_fault_ends_well(engine: SimServer) -> None:
    engine.change_faults(die_after_chunks=50)
    with stream(engine, max_tokens=3) as raw:
        assert events(raw.answer().body)[-1] == "[DONE]"


@pytest.mark.parametrize("how", ["rst", "fin"])
def test_a_whole_answer_dies_in_its_middle(engine: SimServer, how: str) -> None:
    engine.change_faults(die_after_chunks=1, die_by=how)
    with Raw(engine.url).send("POST", PATH, CHAT) as raw:
        data = raw.to_the_end()
    assert raw.end == how
    head, _, body = data.partition(b"\r\n\r\n")
    assert (
        f"content-length: {2 * len(body)}".encode() in head or f"content-length: {2 * len(body) + 1}".encode() in head
    )


def test_a_connection_is_closed_without_an_answer(engine: SimServer) -> None:
    engine.change_faults(close_unanswered=True)
    with stream(engine) as raw:
        assert raw.to_the_end() == b""
        assert raw.end == "fin"
    assert healthy(engine)


def test_an_answer_is_another_status_with_a_given_body(engine: SimServer) -> None:
    body = {"error": {"message": "maximum context length is 10", "type": "InternalServerError"}}
    engine.change_faults(status=500, status_body=body, status_headers={"Retry-After": "7"})
    answer = ask(engine.url, "POST", PATH, CHAT)
    assert (answer.status, answer.json()) == (500, body)
    assert "Retry-After: 7\r\n" in answer.head
    assert healthy(engine)


def test_only_every_kth_request_is_hit(engine: SimServer) -> None:
    engine.change_faults(status=503, every=3)
    assert [ask(engine.url, "POST", PATH, CHAT).status for _ in range(7)] == [200, 200, 503, 200, 200, 503, 200]


def test_only_requests_with_a_given_text_are_hit(engine: SimServer) -> None:
    engine.change_faults(status=500, containing="poison")
    poisoned = {**CHAT, "messages": [{"role": "user", "content": "take this poison"}]}
    statuses = [ask(engine.url, "POST", PATH, body).status for body in (CHAT, poisoned, CHAT, poisoned)]
    assert statuses == [200, 500, 200, 500]


def test_a_request_can_kill_the_engine(engine: SimServer) -> None:
    engine.change_faults(crash=True, containing="poison")
    assert works(engine)
    with Raw(engine.url) as bystander, stream(engine, messages=[{"role": "user", "content": "poison"}]) as raw:
        raw.to_the_end()
        bystander.to_the_end()
        assert (raw.end, bystander.end) == ("rst", "rst")
    engine.change_faults(reset=True)  # does not bring it back
    with pytest.raises(ConnectionRefusedError):
        Raw(engine.url)
    assert engine.seen.aborted_count == 0
    engine.restart()
    assert works(engine)


def test_a_hung_engine_is_healthy_and_answers_nothing_until_it_goes_on() -> None:
    settings = SimEngineSettings(port=0, decode_s=0.005, answer_tokens=200)
    with SimServer(settings) as engine, stream(engine, max_tokens=200) as running:
        running.until(b"data: ")
        engine.change_faults(hang=True)
        with stream(engine) as late, Raw(engine.url).send("POST", PATH, CHAT) as whole:
            assert late.silent(0.1)
            assert whole.data == b""
            assert healthy(engine)
            while not running.silent(0.1):
                pass  # what had been on its way
            assert b"[DONE]" not in running.data
            engine.change_faults(hang=False)
            assert b"[DONE]" in running.until(b"[DONE]")
            assert late.answer().status == whole.answer().status == 200


def test_a_client_that_leaves_a_hung_engine_is_noticed(engine: SimServer) -> None:
    engine.change_faults(hang=True)
    stream(engine).leave()
    wait_until(lambda: engine.seen.aborted_count == 1, "it is noticed")
    engine.change_faults(hang=False)
    assert engine.seen.active == 0
    assert works(engine)


def test_health_alone_can_fail(engine: SimServer) -> None:
    engine.change_faults(health_status=503)
    assert not healthy(engine)
    assert works(engine)


def test_connections_are_accepted_and_never_read(engine: SimServer) -> None:
    engine.change_faults(never_read=True)
    with stream(engine) as raw:
        assert raw.silent(0.1)
        assert ask(engine.control_url, "GET", "/sim").json()["faults"]["never_read"] is True
        ask(engine.control_url, "POST", "/sim", {"reset": True})
        assert raw.answer().status == 200
    assert works(engine)


def test_a_slow_reader_takes_the_time_that_its_rate_gives(engine: SimServer) -> None:
    engine.change_faults(read_bytes_s=100_000)
    began_s = time.monotonic()
    assert ask(engine.url, "POST", "/v1/completions", {"prompt": "x" * 40_000, "max_tokens": 1}).status == 200
    assert time.monotonic() - began_s >= 0.2


def test_nobody_listens_while_requests_are_refused_but_at_the_control_port(engine: SimServer) -> None:
    with Raw(engine.url) as idle:
        assert idle.send("GET", "/health").answer().status == 200
        ask(engine.control_url, "POST", "/sim", {"refuse": True})
        idle.to_the_end()
        assert idle.end == "fin"
    with pytest.raises(ConnectionRefusedError):
        Raw(engine.url)
    ask(engine.control_url, "POST", "/sim", {"refuse": False})

    def back() -> bool:
        try:
            return works(engine)
        except ConnectionRefusedError:
            return False

    wait_until(back, "the port is open again")


def test_what_runs_goes_on_while_new_requests_are_refused() -> None:
    with SimServer(SimEngineSettings(port=0, decode_s=0.01)) as engine, stream(engine) as raw:
        raw.until(b"data: ")
        engine.change_faults(refuse=True)
        raw.until(b"[DONE]")


@pytest.mark.parametrize(("switch", "least_s"), [(0.2, 0.2), (0, 0)])
def test_an_idle_connection_is_closed_after_a_while(engine: SimServer, switch: float, least_s: float) -> None:
    engine.change_faults(keep_alive_s=switch)
    with Raw(engine.url) as raw:
        answer = raw.send("GET", "/health").answer()
        began_s = time.monotonic()
        assert "connection: close" not in answer.head
        assert raw.to_the_end() == b""
        assert raw.end == "fin"
        assert time.monotonic() - began_s >= least_s - 0.05


def test_a_connection_in_use_is_never_idle() -> None:
    settings = SimEngineSettings(port=0, keep_alive_s=0.05, decode_s=0.02)
    with SimServer(settings) as engine, Raw(engine.url) as raw:
        assert raw.silent(0.2)  # no request yet
        assert events(raw.send("POST", PATH, {**STREAM, "max_tokens": 15}).answer().body)[-1] == "[DONE]"


@pytest.mark.parametrize("fault", [{"die_after_chunks": 2}, {"stall_after_chunks": 2}, {"die_after_chunks": 0}])
def test_what_breaks_off_with_the_first_token_is_given_up_by_the_engine(fault: dict[str, Any]) -> None:
    with SimServer(SimEngineSettings(port=0, decode_s=3600.0)) as engine:
        engine.change_faults(**fault)
        with stream(engine) as raw:
            raw.until(b"\r\n\r\n")
        wait_until(lambda: engine.seen.active == 0, "the request is over")
        assert engine.call(engine.app.core.gauges).running == 0
