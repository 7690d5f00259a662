"""The simulated engine on real sockets: vLLM's API, time, cache, and clients that leave."""

import asyncio
import json
import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kveik.config import SimEngineSettings
from kveik.engine.metrics import Metric, parse_metrics
from kveik.errors import EngineStartError
from kveik.simulate.server import SimServer
from kveik.simulate.wire import Connection
from tests.agents import wait_until
from tests.unit.simulate.raw import CHAT, Raw, ask, events, texts


@pytest.fixture
def engine() -> Iterator[SimServer]:
    with SimServer(record=True) as running:
        yield running


def chat(engine: SimServer, **given: Any) -> Any:
    answer = ask(engine.url, "POST", "/v1/chat/completions", {**CHAT, **given})
    assert answer.status == 200, answer.body
    return answer.json()


def slow(**given: Any) -> SimServer:
    """About 60 tokens of a prompt a second, a token of an answer every 20 ms."""
    return SimServer(SimEngineSettings(port=0, **{"prefill_tokens_s": 1000.0, "decode_s": 0.02, **given}))


# -- the API -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/health", 200),
        ("GET", "/version", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/metrics", 200),
        ("GET", "/sim", 200),
        ("GET", "/kv_event_sources", 200),
        ("POST", "/reset_prefix_cache?reset_external=true", 200),
        ("GET", "/nonsense", 404),
        ("POST", "/v1/nonsense", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("POST", "/v1/chat/completions", 400),
    ],
)
def test_every_answer_says_that_it_is_simulated(engine: SimServer, method: str, path: str, status: int) -> None:
    answer = ask(engine.url, method, path)
    assert answer.status == status
    assert "x-kveik-simulated: 1\r\n" in answer.head
    if status >= 400:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["code"] == status


def test_the_model_card_says_what_it_is(engine: SimServer) -> None:
    (card,) = ask(engine.url, "GET", "/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"], card["simulated"]) == ("simulated", 32768, True)
    assert "simulated" in card["owned_by"]


def test_text_goes_to_tokens_and_back(engine: SimServer) -> None:
    found = ask(engine.url, "POST", "/tokenize", {"prompt": "Grüße, 世界"}).json()
    assert found["count"] == len(found["tokens"]) == 4
    assert found["max_model_len"] == 32768
    assert ask(engine.url, "POST", "/detokenize", {"tokens": found["tokens"]}).json()["prompt"] == "Grüße, 世界"


def test_a_prompt_is_as_long_as_tokenize_says(engine: SimServer) -> None:
    count = ask(engine.url, "POST", "/tokenize", CHAT).json()["count"]
    assert chat(engine, max_tokens=1)["usage"]["prompt_tokens"] == count


def test_a_stream_is_the_whole_answer_in_pieces(engine: SimServer) -> None:
    whole = chat(engine, max_tokens=9)
    body = {**CHAT, "max_tokens": 9, "stream": True, "stream_options": {"include_usage": True}}
    with Raw(engine.url) as raw:
        answer = raw.send("POST", "/v1/chat/completions", body).answer()
    assert "content-type: text/event-stream" in answer.head
    assert texts(answer.body) == whole["choices"][0]["message"]["content"]
    *chunks, usage, done = events(answer.body)
    assert done == "[DONE]"
    assert json.loads(usage)["usage"]["completion_tokens"] == 9
    assert len(chunks) == 10
    reasons = [json.loads(chunk)["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * 9 + ["length"]
    assert json.loads(chunks[0])["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_every_event_is_a_chunk_of_its_own(engine: SimServer) -> None:
    with Raw(engine.url) as raw:
        raw.send("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5, "stream": True}).until(b"\r\n\r\n")
        chunks = list(raw.chunks())
    assert len(chunks) == 6
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)


def test_an_answer_that_is_cut_is_continued_word_by_word(engine: SimServer) -> None:
    whole = chat(engine, max_tokens=12)["choices"][0]["message"]["content"]
    begun = [*CHAT["messages"], {"role": "assistant", "content": whole[:20]}]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    rest = chat(engine, messages=begun, max_tokens=7, **options)
    assert rest["choices"][0]["message"]["content"] == whole[20:]


def test_several_choices_are_different_and_all_counted(engine: SimServer) -> None:
    answer = chat(engine, n=3, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3
    assert answer["usage"]["completion_tokens"] == 12
    streamed = ask(engine.url, "POST", "/v1/chat/completions", {**CHAT, "n": 3, "max_tokens": 4, "stream": True})
    chunks = [json.loads(data) for data in events(streamed.body)[:-1]]
    for index, choice in enumerate(answer["choices"]):
        mine = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert "".join(c["delta"]["content"] for c in mine) == choice["message"]["content"]


def test_an_answer_ends_before_its_stop_string(engine: SimServer) -> None:
    whole = chat(engine, max_tokens=20)["choices"][0]["message"]["content"]
    stopped = chat(engine, max_tokens=20, stop=[whole[21:25]])["choices"][0]
    assert stopped["message"]["content"] == whole[: whole.index(whole[21:25])]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", whole[21:25])
    streamed = ask(
        engine.url, "POST", "/v1/chat/completions", {**CHAT, "max_tokens": 20, "stop": whole[21:25], "stream": True}
    )
    assert texts(streamed.body) == stopped["message"]["content"]
    assert json.loads(events(streamed.body)[-2])["choices"][0]["finish_reason"] == "stop"


def test_what_a_completion_asks_for_comes_with_it(engine: SimServer) -> None:
    given = {"prompt": "a", "max_tokens": 3, "logprobs": 2, "return_token_ids": True}
    given["return_tokens_as_token_ids"] = True
    (whole,) = ask(engine.url, "POST", "/v1/completions", given).json()["choices"]
    assert len(whole["token_ids"]) == len(whole["logprobs"]["token_logprobs"]) == 3
    assert [next(iter(top)) for top in whole["logprobs"]["top_logprobs"]] == [
        f"token_id:{n}" for n in whole["token_ids"]
    ]
    streamed = ask(engine.url, "POST", "/v1/completions", {**given, "stream": True})
    pieces = [json.loads(data)["choices"][0] for data in events(streamed.body)[:-1]]
    assert [piece["token_ids"] for piece in pieces] == [[n] for n in whole["token_ids"]]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]


def test_messages_speak_the_form_of_anthropic(engine: SimServer) -> None:
    body = {"model": "simulated", "messages": CHAT["messages"], "max_tokens": 3}
    whole = ask(engine.url, "POST", "/v1/messages", body).json()
    assert (whole["type"], whole["stop_reason"], whole["usage"]["output_tokens"]) == ("message", "max_tokens", 3)
    streamed = ask(engine.url, "POST", "/v1/messages", {**body, "stream": True}).body.decode()
    kinds = [line.removeprefix("event: ") for line in streamed.splitlines() if line.startswith("event: ")]
    deltas = ["content_block_delta"] * 3
    ends = ["content_block_stop", "message_delta", "message_stop"]
    assert kinds == ["message_start", "content_block_start", *deltas, *ends]
    assert "[DONE]" not in streamed


def test_a_prompt_that_is_too_long_is_told_so_in_vllm_s_words(engine: SimServer) -> None:
    answer = ask(engine.url, "POST", "/v1/completions", {"prompt": "x" * 140_000})
    assert answer.status == 400
    assert "maximum context length is 32768 tokens" in answer.json()["error"]["message"]
    assert answer.json()["error"]["type"] == "BadRequestError"


def test_a_key_is_asked_for_where_one_is_set() -> None:
    with SimServer(SimEngineSettings(port=0, api_key="secret")) as engine:
        assert ask(engine.url, "GET", "/v1/models").status == 401
        assert ask(engine.url, "GET", "/health").status == 200
        assert ask(engine.url, "GET", "/v1/models", headers={"Authorization": "Bearer secret"}).status == 200


# -- HTTP --------------------------------------------------------------------------------------


def test_requests_that_come_at_once_are_answered_in_order(engine: SimServer) -> None:
    with Raw(engine.url) as raw:
        for path in ("/version", "/nonsense", "/v1/models"):
            raw.send("GET", path)
        raw.send("POST", "/v1/chat/completions", {**CHAT, "max_tokens": 2, "stream": True})
        raw.send("GET", "/health")
        assert [raw.answer().status for _ in range(5)] == [200, 404, 200, 200, 200]


def test_a_body_may_come_in_chunks_and_in_drops(engine: SimServer) -> None:
    body = json.dumps({**CHAT, "max_tokens": 1}).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nTransfer-Encoding: chunked\r\n\r\n"
    wire = head + b"%x\r\n%b\r\n5\r\n     \r\n0\r\n\r\n" % (len(body), body)
    with Raw(engine.url) as raw:
        for start in range(0, len(wire), 7):
            raw.socket.sendall(wire[start : start + 7])
        assert raw.answer().status == 200


def test_who_waits_for_100_continue_gets_it(engine: SimServer) -> None:
    with Raw(engine.url) as raw:
        raw.socket.sendall(
            b"POST /tokenize HTTP/1.1\r\nHost: sim\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n"
        )
        raw.until(b"HTTP/1.1 100 Continue\r\n\r\n")
        raw.socket.sendall(b'{"prompt":"a"}')
        assert raw.answer().status == 200


@pytest.mark.parametrize("request_line", [b"GET /health HTTP/1.0", b"GET /health HTTP/1.1\r\nConnection: close"])
def test_who_wants_the_connection_closed_gets_it_closed(engine: SimServer, request_line: bytes) -> None:
    with Raw(engine.url) as raw:
        raw.socket.sendall(request_line + b"\r\n\r\n")
        assert b"connection: close\r\n" in raw.to_the_end()
        assert raw.end == "fin"


def test_what_is_no_http_is_answered_with_400_and_the_end(engine: SimServer) -> None:
    with Raw(engine.url) as raw:
        raw.socket.sendall(b"\x16\x03\x01 what is this\r\n\r\n")
        assert raw.to_the_end().startswith(b"HTTP/1.1 400 ")
    assert ask(engine.url, "GET", "/health").status == 200


def test_no_bytes_keep_the_engine_from_serving_others(engine: SimServer) -> None:
    body = json.dumps({**CHAT, "max_tokens": 1}).encode()
    good = b"POST /v1/chat/completions HTTP/1.1\r\nHost: sim\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    chooser = random.Random(5)
    for _ in range(60):
        bad = bytearray(good)
        for _ in range(chooser.randint(1, 5)):
            bad[chooser.randrange(len(bad))] = chooser.randrange(256)
        with Raw(engine.url) as raw:
            raw.socket.sendall(bytes(bad))
            raw.socket.shutdown(socket.SHUT_WR)
            raw.to_the_end()
    assert chat(engine, max_tokens=1)
    assert engine.seen.active == 0


# -- time --------------------------------------------------------------------------------------


def test_an_answer_takes_the_time_that_the_rates_give() -> None:
    with slow() as engine:
        began_s = time.monotonic()
        usage = chat(engine, max_tokens=5)["usage"]
        assert time.monotonic() - began_s >= usage["prompt_tokens"] / 1000 + 4 * 0.02


def test_the_headers_of_a_stream_come_before_its_first_token_as_from_vllm() -> None:
    with slow(prefill_tokens_s=0.001) as engine, Raw(engine.url) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "stream": True})
        assert b" 200 " in raw.until(b"\r\n\r\n")
        assert raw.silent(0.05)


def test_the_headers_of_a_stream_come_with_its_first_token_if_that_is_set() -> None:
    with slow(prefill_tokens_s=0.001, early_headers=False) as engine, Raw(engine.url) as raw:
        assert raw.send("POST", "/v1/chat/completions", {**CHAT, "stream": True}).silent(0.05)


def test_who_is_over_the_capacity_waits_and_the_metrics_say_so() -> None:
    with slow(capacity=1, decode_s=3600.0) as engine, Raw(engine.url) as first, Raw(engine.url) as second:
        for raw in (first, second):
            raw.send("POST", "/v1/chat/completions", {**CHAT, "stream": True})

        def load() -> tuple[float, float]:
            snapshot = parse_metrics(ask(engine.url, "GET", "/metrics").body.decode())
            return snapshot.total(Metric.RUNNING), snapshot.total(Metric.WAITING)

        wait_until(lambda: load() == (1, 1), "one runs, one waits")
        first.leave()
        wait_until(lambda: load() == (1, 0), "the second runs")
        second.until(b"data: ")


# -- cache -------------------------------------------------------------------------------------


def cached(answer: Any) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_a_repeated_prompt_is_a_hit_until_the_cache_is_reset(engine: SimServer) -> None:
    first, second = chat(engine, max_tokens=1), chat(engine, max_tokens=1)
    assert cached(first) == 0
    assert cached(second) == (second["usage"]["prompt_tokens"] - 1) // 16 * 16
    assert ask(engine.url, "POST", "/reset_prefix_cache").json() == {"success": True}
    assert cached(chat(engine, max_tokens=1)) == 0


def test_the_next_turn_of_a_chat_hits_the_answer_too(engine: SimServer) -> None:
    first = chat(engine, max_tokens=64)
    turn = [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}]
    second = chat(engine, messages=[*CHAT["messages"], *turn, {"role": "user", "content": "And?"}], max_tokens=1)
    assert cached(second) >= (first["usage"]["total_tokens"] - 1) // 16 * 16


def test_a_small_cache_forgets_what_was_used_longest_ago() -> None:
    with SimServer(SimEngineSettings(port=0, cache_blocks=6)) as engine:
        prompts = [[{"role": "user", "content": letter * 400}] for letter in "ab"]
        for messages in prompts:
            chat(engine, messages=messages, max_tokens=1)
        assert cached(chat(engine, messages=prompts[1], max_tokens=1)) > 0
        assert cached(chat(engine, messages=prompts[0], max_tokens=1)) == 0


def test_metrics_and_usage_agree(engine: SimServer) -> None:
    answers = [chat(engine, max_tokens=7) for _ in range(3)]
    snapshot = parse_metrics(ask(engine.url, "GET", "/metrics").body.decode())
    prompts = sum(answer["usage"]["prompt_tokens"] for answer in answers)
    assert snapshot.total(Metric.PROMPT_TOKENS) == snapshot.total(Metric.LOCAL_QUERIES) == prompts
    assert snapshot.total(Metric.LOCAL_HITS) == sum(map(cached, answers)) > 0
    assert sum(snapshot.samples["vllm:generation_tokens_total"].values()) == 21
    assert sum(snapshot.samples["vllm:time_to_first_token_seconds_count"].values()) == 3
    assert (
        snapshot.samples["vllm:request_success_total"][
            frozenset({"engine": "0", "model_name": "simulated", "finished_reason": "length"}.items())
        ]
        == 3
    )


# -- what it has seen --------------------------------------------------------------------------


def test_requests_groups_and_the_most_at_a_time_are_counted() -> None:
    with slow(prefill_tokens_s=0.0) as engine:
        bodies = [{**CHAT, "messages": [{"role": "user", "content": f"{n % 2} " * 200 + str(n)}]} for n in range(4)]
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda body: ask(engine.url, "POST", "/v1/chat/completions", body), bodies))
        seen = ask(engine.url, "GET", "/sim").json()["seen"]
        assert seen["requests"]["/v1/chat/completions"] == 4
        assert sorted(seen["prefix_groups"].values()) == [2, 2]
        assert (seen["active"], seen["aborted"]) == (0, 0)
        assert 1 <= seen["active_max"] <= 4
        assert seen["statuses"]["200"] == 4
        ask(engine.url, "POST", "/sim/forget")
        assert ask(engine.url, "GET", "/sim").json()["seen"]["prefix_groups"] == {}


def test_a_recorded_request_is_there_as_it_came(engine: SimServer) -> None:
    ask(engine.url, "POST", "/v1/chat/completions?a=b", CHAT, {"X-Request-Id": "r-1"})
    recorded = engine.seen.recorded[-1]
    assert (recorded.method, recorded.path, recorded.headers["x-request-id"]) == ("POST", "/v1/chat/completions", "r-1")
    assert json.loads(recorded.body) == CHAT


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["prefill", "decode", "queue"])
@pytest.mark.parametrize("way", ["fin", "rst"])
def test_a_client_that_leaves_frees_the_engine_at_once(stream: bool, where: str, way: str) -> None:
    rates = {"prefill_tokens_s": 0.001 if where == "prefill" else 0.0, "decode_s": 3600.0}
    with slow(capacity=1, **rates) as engine, Raw(engine.url) as blocker:
        if where == "queue":
            blocker.send("POST", "/v1/chat/completions", CHAT)
            wait_until(lambda: engine.seen.active == 1, "the first is there")
        raw = Raw(engine.url).send("POST", "/v1/chat/completions", {**CHAT, "stream": stream})
        wait_until(lambda: engine.seen.active == 1 + (where == "queue"), "the request is there")
        if way == "rst":
            raw.reset()
        left_s = raw.leave()
        wait_until(lambda: engine.seen.aborted_count == 1, "it is noticed")
        aborted = engine.seen.aborted[0]
        assert aborted.path == "/v1/chat/completions"
        assert aborted.noticed_s - left_s < 1.0
        gauges = engine.call(engine.app.core.gauges)
        assert (gauges.running, gauges.waiting) == (int(where == "queue"), 0)


# -- start, stop, crash ------------------------------------------------------------------------


def test_a_crash_resets_all_connections_and_a_restart_comes_back_empty_on_the_same_port() -> None:
    with slow(decode_s=3600.0) as engine:
        url = engine.url
        with Raw(url) as raw:
            raw.send("POST", "/v1/chat/completions", {**CHAT, "stream": True}).until(b"data: ")
            engine.crash()
            raw.to_the_end()
            assert raw.end == "rst"
        with pytest.raises(ConnectionRefusedError):
            Raw(url)
        engine.restart()
        assert engine.url == url
        state = ask(url, "GET", "/sim").json()
        assert (state["running"], state["cached_blocks"], state["seen"]["requests"]) == (0, 0, {"/sim": 1})


def test_it_runs_in_the_loop_of_who_opens_it_and_drains() -> None:
    async def scene() -> bytes:
        engine = SimServer(SimEngineSettings(port=0, decode_s=0.01))
        await engine.open()
        reader, writer = await asyncio.open_connection("127.0.0.1", engine.port)
        body = json.dumps({**CHAT, "max_tokens": 20, "stream": True}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        first = await reader.readuntil(b"data: ")
        shutting = asyncio.create_task(engine.shut(drain_s=10))
        rest = b""
        while b"[DONE]" not in rest:
            rest += await reader.read(1 << 16)
        await shutting
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", engine.port)
        writer.close()
        return first + rest

    assert b" 200 OK" in asyncio.run(scene())


def test_idle_connections_end_cleanly_when_the_engine_does() -> None:
    with SimServer() as engine, Raw(engine.url) as raw:
        raw.send("GET", "/health").answer()
        engine.close()
        raw.to_the_end()
        assert raw.end == "fin"


def test_without_a_drain_what_runs_is_cut() -> None:
    with slow(decode_s=3600.0) as engine, Raw(engine.url) as raw:
        raw.send("POST", "/v1/chat/completions", {**CHAT, "stream": True}).until(b"data: ")
        engine.close()
        raw.to_the_end()
        assert raw.end == "rst"
        engine.close()


def test_a_client_that_was_accepted_in_the_last_moment_is_dropped_too() -> None:
    async def scene() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        engine = SimServer()
        await engine.open()
        (door,) = engine._doors
        ours, theirs = socket.socketpair()
        late = asyncio.create_task(loop.connect_accepted_socket(lambda: Connection(door, loop), theirs))
        await engine.shut()
        await late
        ours.setblocking(False)
        with ours:
            return engine.seen.connections_total, await loop.sock_recv(ours, 1)

    assert asyncio.run(scene()) == (1, b"")


def test_a_port_that_is_taken_is_an_error_that_says_so(engine: SimServer) -> None:
    with pytest.raises(EngineStartError, match="cannot listen"), SimServer(SimEngineSettings(port=engine.port)):
        pass
